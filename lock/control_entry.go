package lock

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// controlVersion is the version of the entries that this code reads and writes.
const controlVersion = 1

// controlEntry is the value of one target in the hash of the controls, as JSON.
type controlEntry struct {
	Version int         `json:"v"`
	Limit   *limitEntry `json:"limit,omitempty"`
	Pause   *pauseEntry `json:"pause,omitempty"`
}

// orderedBy is who gave an order, why and when.
type orderedBy struct {
	Why   string    `json:"why,omitempty"`
	By    string    `json:"by"`
	Since time.Time `json:"since"`
}

type limitEntry struct {
	orderedBy
	Holders int `json:"holders"`
}

type pauseEntry struct {
	orderedBy
	Until *time.Time `json:"until,omitempty"` // by Redis' clock; nil: until resumed
}

func (p *pauseEntry) endedAt(serverTime time.Time) bool {
	return p.Until != nil && !p.Until.After(serverTime)
}

var (
	errNewerVersion = errors.New("it was written by a newer version of automutex")
	errNoEntry      = errors.New("it is no entry of automutex")
)

// parseEntry reads an entry. It returns an error for every entry that is not safe to obey,
// whatever program wrote it.
func parseEntry(raw string) (e controlEntry, err error) {
	var version struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal([]byte(raw), &version); err != nil || version.Version < 1 {
		return controlEntry{}, errNoEntry
	}
	if version.Version > controlVersion {
		return controlEntry{}, fmt.Errorf("%w (its version is %d, this one reads %d)", errNewerVersion, version.Version, controlVersion)
	}
	if err := json.Unmarshal([]byte(raw), &e); err != nil {
		return controlEntry{}, errNoEntry
	}
	if e.Limit != nil && (e.Limit.Holders < 1 || e.Limit.Holders > maxLimit) {
		return controlEntry{}, fmt.Errorf("its limit is %d: from 1 to %d", e.Limit.Holders, maxLimit)
	}
	e.inUTC()
	return e, nil
}

// inUTC converts all times to UTC, so that the results of parsing one entry twice are ==.
func (e controlEntry) inUTC() {
	if e.Limit != nil {
		e.Limit.Since = e.Limit.Since.UTC()
	}
	if e.Pause == nil {
		return
	}
	e.Pause.Since = e.Pause.Since.UTC()
	if e.Pause.Until != nil {
		*e.Pause.Until = e.Pause.Until.UTC()
	}
}

// text is the entry as it is stored.
func (e controlEntry) text() string {
	e.Version = controlVersion
	b, err := json.Marshal(e)
	if err != nil {
		// JSON has all kinds of the fields. Only a time after the year 9999 fails, which Pause refuses.
		panic(fmt.Sprintf("lock: a control cannot be written: %v", err))
	}
	return string(b)
}

// control returns the orders of the entry that are in force at a time of Redis' clock.
func (e controlEntry) control(target string, serverTime time.Time) (c Control, inForce bool) {
	c.Target = target
	if e.Limit != nil {
		c.Limit, inForce = e.Limit.Holders, true
		c.Why, c.By, c.Since = e.Limit.Why, e.Limit.By, e.Limit.Since
	}
	if e.Pause != nil && !e.Pause.endedAt(serverTime) {
		c.Paused, inForce = true, true
		if e.Pause.Until != nil {
			c.PausedUntil = *e.Pause.Until
		}
		if e.Limit != nil {
			c.pauseBy, c.limitBy = e.Pause.orderedBy, e.Limit.orderedBy
		}
		if e.Limit == nil || !e.Pause.Since.Before(c.Since) {
			c.Why, c.By, c.Since = e.Pause.Why, e.Pause.By, e.Pause.Since
		}
	}
	return c, inForce
}

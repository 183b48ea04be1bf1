package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"
)

// controlVersion is the version of the entries that this code reads and writes.
const controlVersion = 1

// MaxLimit is the highest limit that an entry may set.
const MaxLimit = 1<<31 - 1

// Entry is the value of one target in the hash of the controls, as JSON.
type Entry struct {
	Version int         `json:"v"`
	Limit   *LimitEntry `json:"limit,omitempty"`
	Pause   *PauseEntry `json:"pause,omitempty"`
}

// OrderedBy is who gave an order, why and when.
type OrderedBy struct {
	Why   string    `json:"why,omitempty"`
	By    string    `json:"by"`
	Since time.Time `json:"since"`
}

// LimitEntry is the control of how many hold a lock.
type LimitEntry struct {
	OrderedBy
	Holders int `json:"holders"`
}

// PauseEntry is the control of a pause.
type PauseEntry struct {
	OrderedBy
	Until *time.Time `json:"until,omitempty"` // by Redis' clock; nil: until resumed
}

// EndedAt reports whether the pause was over at that time by Redis' clock.
func (p *PauseEntry) EndedAt(serverTime time.Time) bool {
	return p.Until != nil && !p.Until.After(serverTime)
}

// ParseControlRead reads a reply of the script control_read: Redis' time (us), how many entries there
// are, and the entries by target. There are none if there are too many.
func ParseControlRead(reply any) (us, count int64, entries iter.Seq2[string, string], err error) {
	f := listOf(reply)
	us, count = f.num(0), f.num(1)
	list := listOf(field[[]any](f, 2))
	for i := range list.list {
		list.text(i)
	}
	f.wrong = f.wrong || us <= 0 || list.wrong || len(list.list)%2 != 0
	return us, count, func(yield func(target, entry string) bool) {
		for i := 0; i < len(list.list); i += 2 {
			if !yield(list.text(i), list.text(i+1)) {
				return
			}
		}
	}, f.err(reply)
}

var (
	// ErrNewerVersion is the error of an entry that this version may not read.
	ErrNewerVersion = errors.New("it was written by a newer version of automutex")
	errNoEntry      = errors.New("it is no entry of automutex")
)

// ParseEntry reads an entry. It returns an error for every entry that is not safe to obey,
// whatever program wrote it.
func ParseEntry(raw string) (e Entry, err error) {
	var version struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal([]byte(raw), &version); err != nil || version.Version < 1 {
		return Entry{}, errNoEntry
	}
	if version.Version > controlVersion {
		return Entry{}, fmt.Errorf("%w (its version is %d, this one reads %d)", ErrNewerVersion, version.Version, controlVersion)
	}
	if err := json.Unmarshal([]byte(raw), &e); err != nil {
		return Entry{}, errNoEntry
	}
	if e.Limit != nil && (e.Limit.Holders < 1 || e.Limit.Holders > MaxLimit) {
		return Entry{}, fmt.Errorf("its limit is %d: from 1 to %d", e.Limit.Holders, MaxLimit)
	}
	e.inUTC()
	if _, err := json.Marshal(e); err != nil { // a time that is after the year 9999 in UTC
		return Entry{}, errNoEntry
	}
	return e, nil
}

// inUTC converts all times to UTC, so that the results of parsing one entry twice are ==.
func (e Entry) inUTC() {
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

// Text is the entry as it is stored.
func (e Entry) Text() string {
	e.Version = controlVersion
	b, err := json.Marshal(e)
	if err != nil {
		// JSON has all kinds of the fields. Only a time after the year 9999 fails, which Pause refuses.
		panic(fmt.Sprintf("lock: a control cannot be written: %v", err))
	}
	return string(b)
}

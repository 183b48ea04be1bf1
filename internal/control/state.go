// Package control reads the orders of operators, keeps the last state that was read, and changes them.
//
// All orders of a prefix are in one hash: a field for each target (target.go), whose value has its pause and its limit (state.go). A
// Reader reads the hash again and again (reader.go). Operators change it through a Reader, too (change.go).
package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/automutex/automutex/internal/printable"
)

// Order is one order of an operator for a target: a pause, or a limit.
type Order struct {
	Target string    `json:"-"` // as Reader.Pause takes it
	Paused bool      `json:"-"`
	Until  time.Time `json:"until,omitzero"`    // of a pause, by Redis' clock; zero: until it is resumed
	Limit  int       `json:"holders,omitempty"` // 0: it is a pause
	OrderedBy
}

// OrderedBy is who gave an order, why and when.
type OrderedBy struct {
	Why   string    `json:"why,omitempty"`
	By    string    `json:"by"`
	Since time.Time `json:"since"`
}

// Text describes the order in a few words, for an operator.
func (o Order) Text() string {
	text := fmt.Sprintf("limited to %d", o.Limit)
	if o.Paused {
		text = "paused until somebody resumes it"
		if !o.Until.IsZero() {
			text = "paused until " + o.Until.UTC().Format(time.RFC3339)
		}
	}
	text += fmt.Sprintf(", ordered by %s at %s", printable.Short(o.By), o.Since.UTC().Format(time.RFC3339))
	if o.Why != "" {
		text += fmt.Sprintf(" (%s)", printable.Short(o.Why))
	}
	return text
}

// For returns those orders of a list, as State.Orders gives it, that are for the lock with that Redis key, and what comes of them: the
// limit, 0 for none, and the pause, nil for none. All targets of one lock are beginnings of its key, so the last one is the narrowest, and
// wins.
func For(list []Order, key string) (its []Order, limit int, pause *Order) {
	for _, o := range list {
		switch {
		case !AppliesTo(o.Target, key):
			continue
		case o.Paused:
			pause = &o
		default:
			limit = o.Limit
		}
		its = append(its, o)
	}
	return its, limit, pause
}

// Control has the fields of lock.Control, which says what they mean.
type Control struct {
	Target      string
	Limit       int
	Paused      bool
	PausedUntil time.Time
	Why, By     string
	Since       time.Time
}

// Control is the order as what is ordered for its target.
func (o Order) Control() Control {
	return Control{Target: o.Target, Limit: o.Limit, Paused: o.Paused, PausedUntil: o.Until, Why: o.Why, By: o.By, Since: o.Since}
}

// Text is that of the pause, else of the limit.
func (c Control) Text() string {
	return Order{Paused: c.Paused, Until: c.PausedUntil, Limit: c.Limit, OrderedBy: OrderedBy{Why: c.Why, By: c.By, Since: c.Since}}.Text()
}

// Controls lists what is in force now for each target, sorted by target. Why, By and Since are those of the latest order.
func (s *State) Controls() (list []Control) {
	for _, o := range s.Orders() {
		c := o.Control()
		if last := len(list) - 1; last >= 0 && list[last].Target == o.Target { // its pause comes before its limit
			pause := list[last]
			c.Paused, c.PausedUntil = true, pause.PausedUntil
			if !c.Since.After(pause.Since) {
				c.Why, c.By, c.Since = pause.Why, pause.By, pause.Since
			}
			list = list[:last]
		}
		list = append(list, c)
	}
	return list
}

// entry is the value of one target in Redis, as JSON.
type entry struct {
	Version int    `json:"v"`
	Limit   *Order `json:"limit,omitempty"`
	Pause   *Order `json:"pause,omitempty"`
}

const (
	entryVersion = 1         // that this code reads and writes
	maxLimit     = 1<<31 - 1 // the highest limit
)

var (
	errNewerVersion = errors.New("it was written by a newer version of automutex")
	errNoEntry      = errors.New("it is no entry of automutex")
)

// parseEntry reads the entry of a target. It returns an error for every entry that is not safe to obey, whatever program wrote it.
func parseEntry(target, raw string) (e entry, err error) {
	err = json.Unmarshal([]byte(raw), &e) // reads the version of a newer entry even if the rest has another form
	switch {
	case e.Version > entryVersion:
		return entry{}, fmt.Errorf("%w (its version is %d, this one reads %d)", errNewerVersion, e.Version, entryVersion)
	case e.Version < 1 || err != nil:
		return entry{}, errNoEntry
	case e.Limit != nil && (e.Limit.Limit < 1 || e.Limit.Limit > maxLimit):
		return entry{}, fmt.Errorf("its limit is %d: from 1 to %d", e.Limit.Limit, maxLimit)
	}
	for _, o := range []*Order{e.Limit, e.Pause} {
		if o != nil { // in UTC what two reads of one entry give is ==
			o.Target, o.Paused, o.Since, o.Until = target, o == e.Pause, o.Since.UTC(), o.Until.UTC()
		}
	}
	if e.Pause != nil {
		e.Pause.Limit = 0
	}
	if _, err := json.Marshal(e); err != nil { // a time that is after the year 9999 in UTC
		return entry{}, errNoEntry
	}
	return e, nil
}

// isPaused reports whether the entry has a pause that is in force at a time of Redis' clock.
func (e entry) isPaused(now time.Time) bool {
	return e.Pause != nil && (e.Pause.Until.IsZero() || e.Pause.Until.After(now))
}

// State is the controls as they were read at one time. It is immutable.
type State struct {
	targets    map[string]*controlled // by target, as it is stored
	sent       time.Time              // the local time just before it was read: later changes may not be in it
	serverTime time.Time              // when it was read, by Redis' clock
	localTime  time.Time              // the local time just after it, with its monotonic reading
}

// controlled is the entry of one target.
type controlled struct {
	entry
	raw   string
	wrong error // why the entry cannot be read; nil: it can. A wrong entry has no orders
}

var errManyControls = errors.New("too many controls")

// parse reads a reply of the script read. It does not parse entries again that before has with the same text.
func (r *Reader) parse(reply any, before *State) (*State, error) {
	list, _ := reply.([]any)
	list = append(list, nil, nil, nil)
	us, _ := list[0].(int64)
	count, isCount := list[1].(int64)
	entries, isList := list[2].([]any)
	switch {
	case us <= 0 || !isCount || !isList || len(entries)%2 != 0:
		return nil, fmt.Errorf("unexpected reply %v", reply)
	case count > mostRead:
		return nil, fmt.Errorf("%w: %d entries, and at most %d are read; see them with HSCAN, and remove some with HDEL", errManyControls, count, mostRead)
	}
	state := &State{serverTime: time.UnixMicro(us), localTime: time.Now(), targets: make(map[string]*controlled, count)}
	for pair := range slices.Chunk(entries, 2) {
		target, raw := fmt.Sprint(pair[0]), fmt.Sprint(pair[1])
		if before != nil && before.targets[target] != nil && before.targets[target].raw == raw {
			state.targets[target] = before.targets[target]
			continue
		}
		t := &controlled{raw: raw}
		t.entry, t.wrong = parseEntry(r.typed(target), raw)
		state.targets[target] = t
	}
	return state, nil
}

// Now is the present time of Redis' clock: that of the read, plus the local time since.
func (s *State) Now() time.Time { return s.serverTime.Add(time.Since(s.localTime)) }

// skew is how far Redis' clock is ahead of the local one. Less than a second counts as 0: the exchange may have taken that long.
func (s *State) skew() time.Duration {
	d := s.serverTime.Sub(s.localTime.Round(0)) // by the wall clock
	if d.Abs() < time.Second {
		return 0
	}
	return d
}

// Unreadable returns why each entry that cannot be read is wrong, by target as it is stored.
func (s *State) Unreadable() map[string]string {
	list := map[string]string{}
	for target, t := range s.targets {
		if t.wrong != nil {
			list[target] = t.wrong.Error()
		}
	}
	return list
}

// Orders lists the orders in force now: of all that are for one lock, those of a wider target come before those of a narrower one.
// The pause of a target comes before its limit.
func (s *State) Orders() (list []Order) {
	now := s.Now()
	for _, target := range slices.Sorted(maps.Keys(s.targets)) {
		t := s.targets[target]
		if t.isPaused(now) {
			list = append(list, *t.Pause)
		}
		if t.Limit != nil {
			list = append(list, *t.Limit)
		}
	}
	return list
}

// of returns what is in force for the lock with that text between the braces of its key: the limit (0: none) and the pause (nil:
// none). The narrowest target with a limit decides the limit, and the narrowest with a pause the pause. It is called for each
// command, so it allocates nothing.
func (s *State) of(text string) (limit int, pause *Order) {
	if s == nil || len(s.targets) == 0 {
		return 0, nil
	}
	now := s.Now()
	for target := text; target != ""; target = wider(target) {
		t := s.targets[target]
		if t == nil {
			continue
		}
		if limit == 0 && t.Limit != nil {
			limit = t.Limit.Limit
		}
		if pause == nil && t.isPaused(now) {
			pause = t.Pause
		}
	}
	return limit, pause
}

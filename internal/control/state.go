// Package control reads the orders of operators, keeps the last state that was read, and changes them.
//
// All orders of a prefix are in one hash: a field for each pause and each limit of a target (target.go, state.go). A
// Reader reads the hash again and again (reader.go). Operators change it through a Reader, too (change.go).
package control

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
)

// Order is one order of an operator for a target: a pause, or a limit.
type Order struct {
	Target string    `json:"-"` // as Reader.Pause takes it
	Paused bool      `json:"-"`
	Until  time.Time `json:"until,omitzero"`  // of a pause, by Redis' clock; zero: until it is resumed
	Limit  int       `json:"limit,omitempty"` // 0: it is a pause
	Why    string    `json:"why,omitempty"`
	By     string    `json:"by"` // the owner label of who gave it
	Since  time.Time `json:"since"`
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

// For returns those orders of a list, as State.Orders gives it, that are for the lock with that Redis key, and what
// comes of them: the limit, 0 for none, and the pause, nil for none. All targets of one lock are beginnings of its key,
// so the last one is the narrowest, and wins.
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

// Control has the fields of lock.Control, which says what they mean. Its JSON is what the command prints.
type Control struct {
	Target      string    `json:"target"`
	Limit       int       `json:"limit,omitempty"`
	Paused      bool      `json:"paused,omitempty"`
	PausedUntil time.Time `json:"paused_until,omitzero"`
	Why         string    `json:"why,omitempty"`
	By          string    `json:"by"`
	Since       time.Time `json:"since"`
}

// Control is the order as what is ordered for its target.
func (o Order) Control() Control {
	return Control{Target: o.Target, Limit: o.Limit, Paused: o.Paused, PausedUntil: o.Until, Why: o.Why, By: o.By,
		Since: o.Since}
}

// Text is that of the pause, else of the limit.
func (c Control) Text() string {
	return Order{Paused: c.Paused, Until: c.PausedUntil, Limit: c.Limit, Why: c.Why, By: c.By, Since: c.Since}.Text()
}

// Controls lists what is in force now for each target, sorted by target. Why, By and Since are those of the latest
// order.
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

// The field of an order is one of these and its target; the value is the Order as JSON.
const (
	pauseOf  = "pause "
	limitOf  = "limit "
	maxLimit = 1<<31 - 1 // the highest limit
)

var errNoOrder = errors.New("it is no order of automutex")

// parseOrder reads an order of a kind. It returns an error for every text that is not safe to obey, whatever program
// wrote it.
func parseOrder(kind, target, raw string) (o Order, err error) {
	err = json.Unmarshal([]byte(raw), &o)
	// in UTC two reads of one order are ==
	o.Target, o.Paused, o.Since, o.Until = target, kind == pauseOf, o.Since.UTC(), o.Until.UTC()
	switch {
	case err != nil || o.Since.Year() > 9999 || o.Until.Year() > 9999 || o.Paused != (o.Limit == 0):
		return Order{}, errNoOrder
	case !o.Paused && (o.Limit < 1 || o.Limit > maxLimit):
		return Order{}, fmt.Errorf("its limit is %d: from 1 to %d", o.Limit, maxLimit)
	}
	return o, nil
}

// isOver reports whether the order is a pause that has ended by a time of Redis' clock.
func (o Order) isOver(now time.Time) bool { return !o.Until.IsZero() && !o.Until.After(now) }

// State is the controls as they were read at one time. It is immutable.
type State struct {
	fields     map[string]*field      // all that there are
	targets    map[string]*controlled // what is in force, by target, as it is stored
	sent       time.Time              // the local time just before it was read: later changes may not be in it
	serverTime time.Time              // when it was read, by Redis' clock
	localTime  time.Time              // the local time just after it, with its monotonic reading
}

// field is one field of the hash.
type field struct {
	raw    string
	target string // as it is stored
	order  Order
	wrong  error // why it cannot be read; nil: it can
}

func (r *Reader) parseField(name, raw string) *field {
	f := &field{raw: raw, wrong: errNoOrder}
	for _, kind := range []string{pauseOf, limitOf} {
		if target, is := strings.CutPrefix(name, kind); is && keys.IsKeyText(target) {
			f.target = target
			f.order, f.wrong = parseOrder(kind, r.typed(target), raw)
		}
	}
	return f
}

// controlled is the orders for one target.
type controlled struct{ pause, limit *Order }

// isPaused reports whether the pause is in force at a time of Redis' clock.
func (t *controlled) isPaused(now time.Time) bool { return t.pause != nil && !t.pause.isOver(now) }

var errManyControls = errors.New("too many controls")

// parse reads a reply of the script read. It does not parse fields again that before has with the same text.
func (r *Reader) parse(reply any, before *State) (*State, error) {
	list, _ := reply.([]any)
	list = append(list, nil, nil, nil)
	us, _ := list[0].(int64)
	count, isCount := list[1].(int64)
	fields, isList := list[2].([]any)
	switch {
	case us <= 0 || !isCount || !isList || len(fields)%2 != 0:
		return nil, fmt.Errorf("unexpected reply %v", reply)
	case count > mostRead:
		return nil, fmt.Errorf("%w: %d entries, and at most %d are read; see them with HSCAN, and remove some with HDEL",
			errManyControls, count, mostRead)
	}
	s := &State{
		serverTime: time.UnixMicro(us), localTime: time.Now(), fields: make(map[string]*field, count),
		targets: make(map[string]*controlled, count),
	}
	for pair := range slices.Chunk(fields, 2) {
		name, raw := fmt.Sprint(pair[0]), fmt.Sprint(pair[1])
		var f *field
		if before != nil {
			f = before.fields[name]
		}
		if f == nil || f.raw != raw {
			f = r.parseField(name, raw)
		}
		s.fields[name] = f
		if f.wrong != nil || f.order.isOver(s.serverTime) {
			continue
		}
		t := cmp.Or(s.targets[f.target], &controlled{})
		if s.targets[f.target] = t; f.order.Paused {
			t.pause = &f.order
		} else {
			t.limit = &f.order
		}
	}
	return s, nil
}

// Now is the present time of Redis' clock: that of the read, plus the local time since.
func (s *State) Now() time.Time { return s.serverTime.Add(time.Since(s.localTime)) }

// skew is how far Redis' clock is ahead of the local one. Less than a second counts as 0: the exchange may have taken
// that long.
func (s *State) skew() time.Duration {
	d := s.serverTime.Sub(s.localTime.Round(0)) // by the wall clock
	if d.Abs() < time.Second {
		return 0
	}
	return d
}

// Unreadable returns why each field that cannot be read is wrong, by its name.
func (s *State) Unreadable() map[string]string {
	list := map[string]string{}
	for name, f := range s.fields {
		if f.wrong != nil {
			list[name] = f.wrong.Error()
		}
	}
	return list
}

// Orders lists the orders in force now: of all that are for one lock, those of a wider target come before those of a
// narrower one. The pause of a target comes before its limit.
func (s *State) Orders() (list []Order) {
	now := s.Now()
	for _, target := range slices.Sorted(maps.Keys(s.targets)) {
		t := s.targets[target]
		if t.isPaused(now) {
			list = append(list, *t.pause)
		}
		if t.limit != nil {
			list = append(list, *t.limit)
		}
	}
	return list
}

// of returns what is in force for the lock with that text between the braces of its key: the limit (0: none) and the
// pause (nil: none). The narrowest target with a limit decides the limit, and the narrowest with a pause the pause. It
// is called for each command, so it allocates nothing.
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
		if limit == 0 && t.limit != nil {
			limit = t.limit.Limit
		}
		if pause == nil && t.isPaused(now) {
			pause = t.pause
		}
	}
	return limit, pause
}

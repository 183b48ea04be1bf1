// Package control reads the orders of operators, keeps the last state that was read, and changes them.
//
// All orders of a prefix are in one hash: a field for each pause and each limit of a target.
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
)

// Controls lists what is in force now for each target, sorted by target. Why, By and Since are those of the latest
// order.
func (s *State) Controls() (list []Control) {
	for _, o := range s.Orders() {
		last := len(list) - 1
		if last < 0 || list[last].Target != o.Target {
			list = append(list, o.Control)
			continue
		}
		c := &list[last]
		if o.Kind.merge(c, o.Control); !o.Since.Before(c.Since) {
			c.Why, c.By, c.Since = o.Why, o.By, o.Since
		}
	}
	return list
}

var errNoOrder = errors.New("it is no order that this version knows")

// parseOrder reads an order of a kind, as JSON. A text that is not safe to obey is an error, whatever program wrote it.
func parseOrder(kind *Kind, target, raw string) (Order, error) {
	c := Control{Paused: kind == Pauses}
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		return Order{}, errNoOrder
	}
	for _, k := range Kinds {
		if k.has(c) != (k == kind) {
			return Order{}, errNoOrder
		}
	}
	if kind.check != nil {
		if err := kind.check(c); err != nil {
			return Order{}, err
		}
	}
	// in UTC two reads of one order are ==
	c.Target, c.Since, c.PausedUntil = target, c.Since.UTC(), c.PausedUntil.UTC()
	if c.Since.Year() > 9999 || c.PausedUntil.Year() > 9999 {
		return Order{}, errNoOrder
	}
	return Order{kind, c}, nil
}

// State is the controls as they were read at one time. It is immutable.
type State struct {
	fields     map[string]*field      // all that there are
	targets    map[string]*controlled // what is in force, by target, as it is stored
	sent       time.Time              // the local time just before it was read: later changes may not be in it
	serverTime time.Time              // when it was read, by Redis' clock
	known      any                    // that in us, an int64
	localTime  time.Time              // the local time just after it, with its monotonic reading
}

type field struct {
	raw    string
	target string // as it is stored
	kind   int    // of order: its place in Kinds
	order  Order
	wrong  error // why it cannot be read; nil: it can
}

func (r *Reader) parseField(name, raw string) *field {
	f := &field{raw: raw, wrong: errNoOrder}
	for at, kind := range Kinds {
		if target, is := strings.CutPrefix(name, kind.Name+" "); is && keys.IsKeyText(target) {
			f.target, f.kind = target, at
			f.order, f.wrong = parseOrder(kind, r.Typed(target), raw)
		}
	}
	return f
}

// controlled is the orders for one target or lock, by their places in Kinds.
type controlled [len(Kinds)]*Order

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
		serverTime: time.UnixMicro(us), known: us, localTime: time.Now(), fields: make(map[string]*field, count),
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
		s.targets[f.target], t[f.kind] = t, &f.order
	}
	return s, nil
}

// Now is the present time of Redis' clock: that of the read, plus the local time since.
func (s *State) Now() time.Time { return s.serverTime.Add(time.Since(s.localTime)) }

// skew is how far Redis' clock is ahead. Less than a second counts as 0: the exchange may have taken that long.
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
// narrower one. Those of one target have the order of Kinds.
func (s *State) Orders() (list []Order) {
	now := s.Now()
	for _, target := range slices.Sorted(maps.Keys(s.targets)) {
		for _, o := range s.targets[target] {
			if o != nil && !o.isOver(now) {
				list = append(list, *o)
			}
		}
	}
	return list
}

// bounds returns what the orders make of the program's bounds of the lock with that text between the braces of its key.
// The narrowest target with an order of a kind decides for that kind. It is called for each command, so it
// allocates nothing.
func (s *State) bounds(text string, b Bounds) Bounds {
	if s == nil || len(s.targets) == 0 {
		return b
	}
	var narrowest controlled
	now := s.Now()
	for target := text; target != ""; target = wider(target) {
		if t := s.targets[target]; t != nil {
			for i, o := range t {
				if narrowest[i] == nil && o != nil && !o.isOver(now) {
					narrowest[i] = o
				}
			}
		}
	}
	for i, o := range narrowest {
		if o != nil {
			b = Kinds[i].apply(o, b)
		}
	}
	return b
}

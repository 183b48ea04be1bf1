package controls

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/wire"
)

// State is the controls as they were read at one time. It is immutable: for a change
// the reader makes a new one.
type State struct {
	targets    map[string]*controlled
	sent       time.Time // the local time just before it was read: later changes may not be in it
	serverTime time.Time // when it was read, by Redis' clock
	localTime  time.Time // the local time just after it, with its monotonic reading
}

// controlled is one entry.
type controlled struct {
	raw   string
	entry wire.Entry
	wrong error // why the entry cannot be read; nil: it can. A wrong entry is not in force
}

var errManyControls = errors.New("too many controls")

// parseControls reads the reply of control_read. It does not parse entries again that before
// has with the same text.
func parseControls(reply any, before *State) (*State, error) {
	us, count, entries, err := wire.ParseControlRead(reply)
	if err != nil {
		return nil, err
	}
	if count > mostRead {
		return nil, fmt.Errorf("%w: %d entries, and at most %d are read; see them with HSCAN, and remove some with HDEL", errManyControls, count, mostRead)
	}
	state := &State{serverTime: time.UnixMicro(us), localTime: time.Now()}
	if count > 0 {
		state.targets = make(map[string]*controlled, count)
	}
	for target, raw := range entries {
		if before != nil {
			if was := before.targets[target]; was != nil && was.raw == raw {
				state.targets[target] = was
				continue
			}
		}
		t := &controlled{raw: raw}
		t.entry, t.wrong = wire.ParseEntry(raw)
		state.targets[target] = t
	}
	return state, nil
}

// Now is the present time of Redis' clock: that of the read, plus the local time since.
func (s *State) Now() time.Time { return s.serverTime.Add(time.Since(s.localTime)) }

// skew is how far Redis' clock is ahead of the local one. A skew of less than a second counts
// as 0, because the exchange itself may have taken that long.
func (s *State) skew() time.Duration {
	d := s.serverTime.Sub(s.localTime.Round(0)) // by the wall clock
	if d.Abs() < time.Second {
		return 0
	}
	return d
}

// Unreadable returns why each entry that cannot be read is wrong, by target.
func (s *State) Unreadable() map[string]string {
	list := map[string]string{}
	for target, t := range s.targets {
		if t.wrong != nil {
			list[target] = t.wrong.Error()
		}
	}
	return list
}

// pauseLeft is the time until a pause ends; 0: it lasts until it is resumed.
func (s *State) pauseLeft(c *Order) time.Duration {
	if c.Until.IsZero() {
		return 0
	}
	return max(time.Millisecond, c.Until.Sub(s.Now()))
}

// Orders lists the orders that are in force now, sorted by target; of one target the pause first.
func (s *State) Orders() (list []Order) {
	now := s.Now()
	for target, t := range s.targets {
		if t.wrong == nil {
			list = append(list, ordersIn(t.entry, target, now)...)
		}
	}
	slices.SortStableFunc(list, func(a, b Order) int { return strings.Compare(a.Target, b.Target) })
	return list
}

// of returns the orders that are in force for one lock: the limit (0: none) and the pause (nil:
// none). An order for a narrower target wins over one of the same kind for a wider one. text is the lock's
// Redis key without prefix and first brace.
func (s *State) of(text string) (limit int, pause *Order) {
	key, _, ok := TargetsOf(text)
	if !ok {
		return 0, nil
	}
	now := s.Now()
	for target := key; target != ""; target = wider(target) {
		t := s.targets[target]
		if t == nil || t.wrong != nil {
			continue
		}
		for _, order := range ordersIn(t.entry, target, now) {
			switch {
			case order.Paused && pause == nil:
				pause = &order
			case !order.Paused && limit == 0:
				limit = order.Limit
			}
		}
	}
	return limit, pause
}

package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// controlState is the controls as they were read at one time. It is immutable: for a change
// the reader makes a new one.
type controlState struct {
	targets    map[string]*controlled
	serverTime time.Time // when it was read, by Redis' clock
	localTime  time.Time // the local time just after it, with its monotonic reading
}

// controlled is one entry.
type controlled struct {
	raw   string
	entry controlEntry
	wrong error // why the entry cannot be read; nil: it can. A wrong entry is not in force
}

var errManyControls = errors.New("too many controls")

// parseControls reads the reply of control_read. It does not parse entries again that before
// has with the same text.
func parseControls(reply any, before *controlState) (*controlState, error) {
	f := listOf(reply)
	us, count, entries := f.num(0), f.num(1), listOf(field[[]any](f, 2))
	if f.wrong || us <= 0 {
		return nil, unexpected(reply)
	}
	if count > mostRead {
		return nil, fmt.Errorf("%w: %d entries, and at most %d are read; see them with HSCAN, and remove some with HDEL", errManyControls, count, mostRead)
	}
	state := &controlState{serverTime: time.UnixMicro(us), localTime: time.Now()}
	if count > 0 {
		state.targets = make(map[string]*controlled, count)
	}
	for i := 0; i < len(entries.list); i += 2 {
		target, raw := entries.text(i), entries.text(i+1)
		if before != nil {
			if was := before.targets[target]; was != nil && was.raw == raw {
				state.targets[target] = was
				continue
			}
		}
		t := &controlled{raw: raw}
		t.entry, t.wrong = parseEntry(raw)
		state.targets[target] = t
	}
	return state, entries.err(reply)
}

// now is the present time of Redis' clock: that of the read, plus the local time since.
func (s *controlState) now() time.Time { return s.serverTime.Add(time.Since(s.localTime)) }

// skew is how far Redis' clock is ahead of the local one. A skew of less than a second counts
// as 0, because the exchange itself may have taken that long.
func (s *controlState) skew() time.Duration {
	d := s.serverTime.Sub(s.localTime.Round(0)) // by the wall clock
	if d.Abs() < time.Second {
		return 0
	}
	return d
}

// inForce lists the controls that are in force now.
func (s *controlState) inForce() []Control {
	now := s.now()
	var list []Control
	for target, t := range s.targets {
		if t.wrong != nil {
			continue
		}
		if c, ok := t.entry.control(target, now); ok {
			list = append(list, c)
		}
	}
	return sortControls(list)
}

// unreadable returns why each entry that cannot be read is wrong, by target.
func (s *controlState) unreadable() map[string]string {
	list := map[string]string{}
	for target, t := range s.targets {
		if t.wrong != nil {
			list[target] = t.wrong.Error()
		}
	}
	return list
}

// of returns the orders that are in force for one lock: the limit (0: none) and the pause (nil:
// none). An order for the key wins over an order of the same kind for its scope.
func (s *controlState) of(l *Locker, lockKey string) (limit int, pause *Control) {
	text, ours := strings.CutPrefix(lockKey, l.controls.keyStart)
	if !ours {
		return 0, nil
	}
	key, scope, ok := controlTargets(text)
	if !ok {
		return 0, nil
	}
	now := s.now()
	for i, target := range [2]string{key, scope} {
		t := s.targets[target]
		if t == nil || t.wrong != nil || i > 0 && scope == key {
			continue
		}
		c, ok := t.entry.control(target, now)
		if !ok {
			continue
		}
		if limit == 0 {
			limit = c.Limit
		}
		if pause == nil && c.Paused {
			p := t.entry.Pause
			pause = &Control{Target: target, Paused: true, PausedUntil: c.PausedUntil, Why: p.Why, By: p.By, Since: p.Since}
		}
	}
	return limit, pause
}

// pauseLeft is the time until a pause ends; 0: it lasts until it is resumed.
func (s *controlState) pauseLeft(c *Control) time.Duration {
	if c.PausedUntil.IsZero() {
		return 0
	}
	return max(time.Millisecond, c.PausedUntil.Sub(s.now()))
}

// slots is the limit that the scripts get: how many may hold the lock at once. It is 0 while the
// lock is paused, so that the scripts grant the lock to nobody and keep the line.
func (m *Lock) slots() int {
	state := m.locker.controls.state.Load()
	if state == nil || len(state.targets) == 0 {
		return m.limit
	}
	limit, pause := state.of(m.locker, m.Key())
	switch {
	case pause != nil:
		return 0
	case limit == 0 || m.isLeader:
		return m.limit
	}
	return limit
}

// limitNow is how many may hold the lock at once: the number of a control, see [Controls], or
// else the number in the program. paused reports whether an operator has paused the lock.
func (m *Lock) limitNow() (n int, paused bool) {
	n = m.limit
	state := m.locker.controls.state.Load()
	if state == nil || m.err != nil {
		return n, false
	}
	limit, pause := state.of(m.locker, m.Key())
	if limit > 0 && !m.isLeader {
		n = limit
	}
	return n, pause != nil
}

// paused returns a *BusyError if the lock with that Redis key is paused, else nil. It does not
// ask for the lock. Only the first call of a Locker goes to Redis, to read the controls; if that
// fails, its error Is ErrBackend.
func (c *Controls) paused(ctx context.Context, key string) error {
	l := c.locker
	state := l.controls.state.Load()
	if state == nil {
		if err := l.enter(); err != nil {
			return err
		}
		defer l.work.Done()
		if err := l.controls.await(ctx, key, false); err != nil {
			return err
		}
	}
	if busy := l.pausedError(key, key); busy != nil {
		return busy
	}
	return nil
}

// pausedError returns the error for a lock that is paused, or nil.
func (m *Lock) pausedError() *BusyError { return m.locker.pausedError(m.Key(), m.name) }

func (l *Locker) pausedError(key, name string) *BusyError {
	state := l.controls.state.Load()
	if state == nil || len(state.targets) == 0 {
		return nil
	}
	_, pause := state.of(l, key)
	if pause == nil {
		return nil
	}
	return &BusyError{Name: name, Reason: ReasonPaused, Pause: pause, ExpiresIn: state.pauseLeft(pause)}
}

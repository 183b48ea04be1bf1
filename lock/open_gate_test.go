package lock

import (
	"errors"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// OpenGate ends a hold and a cooldown, lets the first in line in, and takes the lock from
// nobody; a rate's gate stays closed.
func TestOpenGate(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 3, TTL(time.Minute))
		other := handle(newLocker(t, s.Client(t)), m)
		opens := func(want bool) {
			t.Helper()
			if opened, err := other.openGate(t.Context()); opened != want || err != nil {
				t.Errorf("OpenGate: %v, %v; want %v; %s", opened, err, want, dump(m))
			}
			audit(t, m)
		}
		opens(false) // no key
		mutex := m.locker.Mutex(redistest.Name(t))
		alone := mustTry(t, mutex)
		if opened, err := mutex.openGate(t.Context()); opened || err != nil || !alone.Held() {
			t.Errorf("OpenGate of a held mutex: %v, %v", opened, err)
		}
		mustUnlock(t, alone)
		le := mustTry(t, m)
		opens(false)
		for why, closeIt := range map[string]func(*Lease) error{
			ReasonClosed: func(it *Lease) error {
				return errors.Join(it.closeGate(t.Context(), time.Hour), it.Unlock(t.Context()))
			},
			ReasonCooldown: func(it *Lease) error { return it.Cooldown(t.Context(), time.Hour) },
		} {
			redistest.Must(t, closeIt(mustTry(t, m)))
			if busy := mustBeBusy(t, m); busy.Reason != why {
				t.Errorf("busy with %q, want %q", busy.Reason, why)
			}
			w := inLine(t, m, 1)
			opens(true)
			mustUnlock(t, w.got(t))
			opens(false)
		}
		if _, ok := holds(t, le); !ok {
			t.Errorf("OpenGate took the lock from its holder; %s", dump(m))
		}
		mustUnlock(t, le)

		rated := m.locker.Mutex(redistest.Name(t), Rate(1, time.Hour, 1))
		mustUnlock(t, mustTry(t, rated))
		if opened, err := rated.openGate(t.Context()); opened || err != nil {
			t.Errorf("OpenGate of a rate's gate: %v, %v", opened, err)
		}
		if busy := mustBeBusy(t, rated); busy.Reason != ReasonRate {
			t.Errorf("busy with %q, want the rate", busy.Reason)
		}
	})
}

// DeleteFrom deletes what named holders hold, or nobody; somebody else's lock stays as it is,
// and what is not there is not deleted.
func TestDeleteFrom(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		other := newLocker(t, s.Client(t))
		for _, slots := range []int{1, 2} { // a string, a sorted set
			m := l.Semaphore(redistest.Name(t), slots, TTL(time.Minute))
			deleted := func(want bool, wantErr error, tokens ...string) {
				t.Helper()
				if got, err := handle(other, m).deleteFrom(t.Context(), tokens...); got != want || !errors.Is(err, wantErr) {
					t.Errorf("%d slots: DeleteFrom(%q): %v, %v; want %v, %v", slots, tokens, got, err, want, wantErr)
				}
			}
			deleted(false, nil)
			deleted(false, nil, "bogus")
			le := mustTry(t, m)
			for _, tokens := range [][]string{nil, {""}, {"bogus"}, {le.Token()[1:], le.Token() + "1"}, {"*"}, {"*", "*"}} {
				deleted(false, ErrBusy, tokens...)
			}
			if _, ok := holds(t, le); !ok {
				t.Errorf("%d slots: refused, and yet the holder is gone; %s", slots, dump(m))
			}
			deleted(true, nil, "gone.3000.1", le.Token())
			if _, ok := holds(t, le); ok {
				t.Errorf("%d slots: deleted, and yet held; %s", slots, dump(m))
			}
			deleted(false, nil, le.Token())
		}
		m := l.Mutex(redistest.Name(t))
		le := mustTry(t, m)
		redistest.Must(t, errors.Join(le.closeGate(t.Context(), time.Hour), le.Unlock(t.Context())))
		if ok, err := m.deleteFrom(t.Context(), le.Token()); !ok || err != nil {
			t.Errorf("DeleteFrom of a closed gate: %v, %v", ok, err)
		}
		mustTry(t, m)
	})
}

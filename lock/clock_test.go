package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// The host of Redis has no clock and boots in 1970, or has a wrong one: scores would
// leave their bands. Nobody gets a lock from a script then, and the error says why.
func TestWrongClockOfRedisGivesNoLock(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	l := asksAlways(newLocker(t, s.Client(t)))
	m, p := l.Mutex(redistest.Name(t)), l.Pool(redistest.Name(t))
	for _, now := range []time.Time{time.Unix(10, 0), time.Unix(90_000_000, 0), time.Unix(1_599_999_999, 0)} {
		s.SetTime(t, now)
		for what, f := range map[string]func() error{
			"TryLock": func() error { return second(m.TryLock(t.Context())) },
			"Lock":    func() error { return second(m.Lock(t.Context())) },
			"TryTake": func() error { return second(p.m.TryLock(t.Context())) },
			"Put":     func() error { return second(p.Put(t.Context(), "a")) },
			"Inspect": func() error { return second(m.inspectAll(t.Context())) },
			"Do":      func() error { return m.Do(t.Context(), func(context.Context) error { return nil }) },
			"Claim":   func() error { return second(l.claim(m.Key()).Take(t.Context(), "a", "", time.Minute)) },
		} {
			if err := f(); !errors.Is(err, ErrBackend) || !strings.Contains(err.Error(), "clock of Redis stands before September 2020") {
				t.Errorf("%s in %d: %v, want an error that names the clock", what, now.Year(), err)
			}
		}
	}
	s.SetTime(t, time.Now())
	mustUnlock(t, mustTry(t, m))
}

// A mutex that nobody holds is taken without a script, so it is given by such a clock too:
// to one holder, for its TTL. Others get the error that names the clock, and so does its
// holder, but for its Unlock.
func TestForm_wrongClockOfRedisGivesOneString(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	s := redistest.StartMini(t)
	others := newLocker(t, s.Client(t))
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, ErrBackend) || !strings.Contains(err.Error(), "clock of Redis stands before September 2020") {
			t.Errorf("%s of a held mutex: %v, want an error that names the clock", what, err)
		}
	}
	// Each by a Locker that has seen no contended key: one whose hash is equal would have it ask by a script.
	take := func(name string, ttl time.Duration) *Lease {
		t.Helper()
		le, err := newLocker(t, s.Client(t)).Mutex(redistest.Name(t)+name, TTL(ttl)).TryLock(t.Context())
		redistest.Must(t, err)
		return le
	}
	for i, now := range []time.Time{time.Unix(10, 0), time.Unix(1_599_999_999, 0)} {
		s.SetTime(t, now) // no key expires from here on: all others meet the first holder
		unlocked := take(fmt.Sprint("unlocked", i), time.Hour)
		refused("Extend", unlocked.Extend(t.Context(), time.Hour))
		if err := unlocked.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock: %v", err)
		}

		le := take(fmt.Sprint("lost", i), ttl)
		bound, m, other := le.Bind(t.Context()), le.lock, handle(others, le.lock)
		refused("TryLock", second(other.TryLock(t.Context())))
		refused("a second TryLock", second(m.TryLock(t.Context())))
		refused("Lock", second(other.Lock(t.Context())))
		refused("Do", other.Do(t.Context(), func(context.Context) error { return nil }))
		redistest.Eventually(t, soon, func() bool { return bound.Err() != nil }, "the lease is lost, since each renewal fails")
		if cause := context.Cause(bound); !errors.Is(cause, ErrLost) {
			t.Errorf("the lease ended with %v, want ErrLost", cause)
		}
		if body, left := raw(m).Get(t.Context(), m.Key()).Val(), raw(m).PTTL(t.Context(), m.Key()).Val(); !strings.HasPrefix(body, le.Token()+"|") || left <= 0 || left > ttl {
			t.Errorf("stored: %q for %s; want the first holder, for its TTL of %s at most", body, left, ttl)
		}
	}
}

package lock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// The host of Redis has no clock and boots in 1970, or has a wrong one: scores would
// leave their bands. Nobody gets a lock then, and the error says why.
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

package lock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// A lock that is got when ctx has ended is given back, and Do does not run f: whoever
// asks, and also if the lock became free only after ctx had ended.
func TestALeaseThatComesAfterTheContextEndedIsGivenBack(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		hook := &redistest.FailHook{}
		rdb.AddHook(hook)
		l := newLocker(t, rdb)
		owner := newLocker(t, s.Client(t))
		ran := false
		for name, take := range map[string]func(context.Context, *Lock) (*Lease, error){
			"TryLock":    func(ctx context.Context, m *Lock) (*Lease, error) { return m.TryLock(ctx) },
			"Lock":       func(ctx context.Context, m *Lock) (*Lease, error) { return m.Lock(ctx) },
			"LockOrPark": func(ctx context.Context, m *Lock) (*Lease, error) { return m.lockOrPark(ctx, nil) },
			"Acquire": func(ctx context.Context, m *Lock) (*Lease, error) {
				le, _, err := m.Acquire(ctx, time.Minute)
				return le, err
			},
			"Do": func(ctx context.Context, m *Lock) (*Lease, error) {
				return nil, m.Do(ctx, func(context.Context) error { ran = true; return nil })
			},
		} {
			m := l.Mutex(redistest.Name(t)+name, Note("note"))
			warm(t, m)
			held := mustTry(t, handle(owner, m))
			ctx, cancel := context.WithCancel(t.Context())
			hook.Before(func(cmd redis.Cmder) error {
				if scriptName(cmd) == wire.AskScript.Name && ctx.Err() == nil {
					cancel()
					return held.Unlock(t.Context())
				}
				return nil
			})
			le, err := take(ctx, m)
			hook.Before(nil)
			if le != nil || !errors.Is(err, context.Canceled) {
				t.Errorf("%s with a context that ended before the lock was free: %v, %v", name, le, err)
			}
			free(t, m, soon)
		}
		if ran {
			t.Error("Do ran f on a context that ended before the lock was free")
		}
	})
}

// A wait is a bound for the line: however short it is, a free lock is taken, and a
// taken one is not.
func TestAcquireTakesAFreeLockHoweverShortTheWait(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		for _, within := range []time.Duration{0, 1, time.Microsecond, time.Hour, inside.MaxTTL} {
			lease, ok, err := m.Acquire(t.Context(), within)
			if !ok || err != nil {
				t.Fatalf("Acquire of a free lock within %s: %t, %v", within, ok, err)
			}
			if within >= 0 && within < time.Hour {
				if other, ok, err := m.Acquire(t.Context(), within); other != nil || ok || err != nil {
					t.Errorf("Acquire of a taken lock within %s: %t, %v", within, ok, err)
				}
			}
			mustUnlock(t, lease)
			free(t, m, soon)
		}
	})
}

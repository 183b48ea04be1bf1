package lock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// The RedisMutex of Cloud 66's article has no spec; these are the behaviours
// that the article describes.
//
//	acquire and expiry are one step                   TestSeedLuaMutex_NeverWithoutAnExpiry
//	a global scope, and a local scope within it       TestSeedLuaMutex_Scopes
//	who is blocked gets in when it is released        TestSeedLuaMutex_BlockedUntilReleased
//	a greedy or dead holder is cut off (max_lock_time) TestSeedLuaMutex_MaxLockTime
//	release says whether the lock was held            TestSeedLuaMutex_ReleaseSaysWhetherItWasHeld
//	synchronise returns the value of the block        TestSeedLuaMutex_Synchronise
//
// Not carried over, on purpose:
//
//   - recheck_frequency, and the key event notifications of the second article:
//     a release grants to the first in line and tells it so.
//   - a release that deletes the key whoever holds it by now.
//   - the scopes joined by a dot, so that "a" + "b.c" is "a.b" + "c".
//   - the expiry passed as a key, which no Redis Cluster takes.
//   - a wait that nothing can end: a context does.

func TestSeedLuaMutex_NeverWithoutAnExpiry(t *testing.T) {
	t.Parallel()
	seed(t, "whatever takes or waits for the lock leaves it with a deadline and its key with a TTL", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t), TTL(10*time.Second))
		held := mustTry(t, m) // mustTry and its like look at the key's TTL
		deadline, ok := holds(t, held)
		if left := deadline.Sub(serverNow(t, m)); !ok || left <= 0 || left > 10*time.Second+time.Millisecond {
			t.Errorf("stored %v, for %s", ok, left)
		}
		mustBeBusy(t, handle(his, m))
		waiter := inLine(t, handle(his, m), 1)
		mustUnlock(t, held)
		granted := waiter.got(t)
		audit(t, m)
		if _, ok := holds(t, granted); !ok {
			t.Errorf("the granted one has no deadline; %s", dump(m))
		}
		// A holder that dies now leaves nothing for ever.
		if ttl := raw(m).PTTL(t.Context(), m.Key()).Val(); ttl <= 0 || ttl > time.Minute {
			t.Errorf("the key lasts for %s", ttl)
		}
		mustUnlock(t, granted)
	})
}

func TestSeedLuaMutex_Scopes(t *testing.T) {
	t.Parallel()
	seed(t, "one local scope excludes itself, not another, nor the global one", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		global := redistest.Name(t)
		server := func(l *Locker, id ...string) *Lock { return l.Mutex(global, Parts(id...)) }
		held := mustTry(t, server(hers, "17"))
		mustBeBusy(t, server(his, "17"))
		mustUnlock(t, mustTry(t, server(his, "18")))
		mustUnlock(t, mustTry(t, server(his)))
		mustUnlock(t, mustTry(t, server(his, "")))
		mustUnlock(t, held)
		mustUnlock(t, mustTry(t, server(his, "17")))
	})
	seed(t, "scopes that read alike when joined are different locks", func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		for _, m := range []*Lock{
			l.Mutex(name+".a", Parts("b")), l.Mutex(name, Parts("a.b")), l.Mutex(name + ".a.b"),
			l.Mutex(name, Parts("a", "b")), l.Mutex(name+"|a", Parts("b")), l.Mutex(name + "|a|b"),
		} {
			mustTry(t, m)
		}
	})
}

func TestSeedLuaMutex_BlockedUntilReleased(t *testing.T) {
	t.Parallel()
	seed(t, "it gets in with the release, without asking again and again", func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		k := newTap(rdb)
		hers, his := newLocker(t, s.Client(t)), newLocker(t, rdb)
		m := hers.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		began := time.Now()
		waiter := inLine(t, handle(his, m), 1)
		calm(t, his, 1) // no refresh is due from here on
		k.reset()
		mustUnlock(t, held)
		lease := waiter.got(t)
		// On a slow machine less than half of the granted lease may be left: then it asks once.
		if n := k.count(wire.AskScript); n > 1 || n == 1 && time.Since(began) < maxGrant/2 {
			t.Errorf("it asked %d times more, %s after it had joined the line", n, time.Since(began))
		}
		mustUnlock(t, lease)
	})
}

func TestSeedLuaMutex_MaxLockTime(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	seed(t, "a holder that does not let go is told to stop, and the next gets in", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t), TTL(200*time.Millisecond), MaxHold(300*time.Millisecond))
		next := make(chan *attempt, 1)
		err := m.Do(t.Context(), func(ctx context.Context) error {
			next <- lockBeside(t, handle(his, m, TTL(time.Minute)))
			select { // for ever, but for max_lock_time
			case <-ctx.Done():
			case <-time.After(soon):
				t.Error("it is not told to stop")
			}
			return context.Cause(ctx)
		})
		if !errors.Is(err, ErrLost) {
			t.Errorf("Do: %v, want ErrLost", err)
		}
		mustUnlock(t, (<-next).got(t))
	})
	seed(t, "a holder that lives and is not done keeps the lock beyond its TTL", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t), TTL(15*time.Second))
		held := mustTry(t, m)
		first, _ := holds(t, held)
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).After(first) }, "the end of the first TTL")
		mustBeBusy(t, handle(his, m))
		mustUnlock(t, held)
	})
}

func TestSeedLuaMutex_ReleaseSaysWhetherItWasHeld(t *testing.T) {
	t.Parallel()
	seed(t, "held: no error and what is free; not held: an error, and a successor is left alone", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t), TTL(100*time.Millisecond), NoRenew())
		late := mustTry(t, m)
		next := untilTaken(t, handle(his, m, TTL(time.Minute)))
		if free, err := late.Release(t.Context()); !errors.Is(err, ErrNotHeld) || free != 0 {
			t.Errorf("a late Release: %d, %v; want 0, ErrNotHeld", free, err)
		}
		if free, err := next.Release(t.Context()); err != nil || free != 1 {
			t.Errorf("Release: %d, %v; want 1", free, err)
		}
		if _, err := next.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("second Release: %v, want ErrNotHeld", err)
		}
	})
}

func TestSeedLuaMutex_Synchronise(t *testing.T) {
	t.Parallel()
	seed(t, "within a scope the work runs alone, its value comes back, and the lock is free after", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t), Parts("server 17"))
		value, err := With(t.Context(), m, func(ctx context.Context) (string, error) {
			_, ok, err := his.Mutex(m.name, Parts("server 17")).Acquire(ctx, 0)
			if ok {
				t.Error("a second one got in")
			}
			return "done", err
		})
		if value != "done" || err != nil {
			t.Errorf("With: %q, %v", value, err)
		}
		free(t, m, soon)
	})
}

package lock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// A waiter whose holder's deadline has passed goes on asking at its pace while Redis
// refuses, and gets the lock when it no longer does. It used to ask again at once.
func TestLine_asksAtItsPaceWhileRedisRefuses(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		hook := &redistest.FailHook{}
		rdb.AddHook(hook)
		name := redistest.Name(t)
		m := newLocker(t, rdb).Mutex(name, TTL(5*time.Second))
		// A holder that nobody renews, and that never releases.
		mustTry(t, newLocker(t, s.Client(t)).Mutex(name, TTL(1500*time.Millisecond), NoRenew()))
		waiter := inLine(t, m, 1)

		var refused atomic.Int64
		hook.Before(func(cmd redis.Cmder) error {
			if n := cmd.Name(); n != "evalsha" && n != "eval" {
				return nil
			}
			refused.Add(1)
			return redistest.ReplyError("MISCONF Redis is configured to save RDB snapshots, but cannot")
		})
		time.Sleep(3 * time.Second) // the deadline passes, and twice its length
		hook.Before(nil)
		mustUnlock(t, waiter.got(t))
		if n := refused.Load(); n == 0 || n > 40 {
			t.Errorf("%d asks were refused within 3s, want some, and at most 40", n)
		}
	})
}

// Redis refuses to take somebody who gave up out of the line: the Locker says it again.
func TestLine_leavesAgainIfRedisRefuses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		hook := &redistest.FailHook{}
		rdb.AddHook(hook)
		name := redistest.Name(t)
		held := mustTry(t, newLocker(t, s.Client(t)).Mutex(name))
		m := newLocker(t, rdb).Mutex(name)
		waiter := inLine(t, m, 1)
		var leaves atomic.Int64
		hook.Before(func(cmd redis.Cmder) error {
			if scriptName(cmd) == wire.ReleaseScript.Name && leaves.Add(1) == 1 {
				return redistest.ReplyError("LOADING Redis is loading the dataset in memory")
			}
			return nil
		})
		waiter.cancel()
		if busy := wantBusy(t, waiter.failed(t)); !errors.Is(busy, context.Canceled) {
			t.Errorf("Lock: %v, want that its context has ended", busy)
		}
		redistest.Eventually(t, soon, func() bool { return leaves.Load() > 1 }, "another leave")
		waiting(t, m, 0)
		mustUnlock(t, held)
		free(t, m, soon)
	})
}

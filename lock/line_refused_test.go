package lock

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// A waiter whose holder's deadline has passed goes on asking at its pace while Redis
// refuses, and gets the lock when it no longer does. It used to ask again at once.
func TestLine_asksAtItsPaceWhileRedisRefuses(t *testing.T) {
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

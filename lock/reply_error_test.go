package lock

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// Redis runs the command that takes the lock and replies with an error, as a script does
// that fails after it has written. The caller holds nothing, and neither does Redis soon.
// (Not on a Cluster, where a full-duplex AutoPipeliner runs commands past the hook.)
func TestRule03_TakeThatRepliesWithAnErrorIsReleased(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		for command, prepare := range map[string]func(*Locker) *Locker{
			wire.AskScript.Name: asksAlways,
			"set":               func(l *Locker) *Locker { l.strings = true; return l },
		} {
			rdb := s.Client(t)
			hook := &redistest.FailHook{}
			rdb.AddHook(hook)
			m := prepare(newLocker(t, rdb)).Mutex(redistest.Name(t)+command, TTL(10*time.Minute))
			warm(t, m)
			var failed atomic.Int32
			hook.After(func(cmd redis.Cmder) error {
				if scriptName(cmd) != command || cmd.Err() != nil || !failed.CompareAndSwap(0, 1) {
					return nil
				}
				return redistest.ReplyError("ERR x")
			})
			le, err := m.TryLock(t.Context())
			if le != nil || !errors.Is(err, ErrBackend) || failed.Load() == 0 {
				t.Errorf("%s replies with an error after it ran: %v, %v; want ErrBackend", command, le, err)
			}
			free(t, m, soon)
		}
	})
}

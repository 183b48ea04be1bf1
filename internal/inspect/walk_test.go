package inspect

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// An error of Redis ends a walk, and is told once.
func TestWalk_refused(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]struct{ locks, errors int }{"time": {0, 1}, "scan": {0, 1}, "none": {1, 0}} {
		rdb := redistest.StartMini(t).Client(t)
		locker := lock.New(rdb, lock.Options{})
		t.Cleanup(func() { _ = locker.Close() })
		_, err := locker.Mutex("report").TryLock(t.Context())
		redistest.Must(t, err)
		hook := &redistest.FailHook{}
		hook.Before(func(cmd redis.Cmder) error {
			if cmd.Name() == command {
				return redistest.ReplyError("LOADING Redis is loading the dataset in memory")
			}
			return nil
		})
		rdb.AddHook(hook)
		locks, failed := 0, 0
		for batch, err := range Walk(t.Context(), locker, rdb) {
			locks += len(batch)
			if err != nil {
				failed++
				if !errors.Is(err, lock.ErrBackend) {
					t.Errorf("without %s: %v, want ErrBackend", command, err)
				}
			}
		}
		if locks != want.locks || failed != want.errors {
			t.Errorf("without %s: %d locks and %d errors, want %+v", command, locks, failed, want)
		}
	}
}

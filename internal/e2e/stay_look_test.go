package e2e

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// A task on its last attempt finds its first lock held, under Skip, and the gate of its second one closed. The
// gate is the stronger reason, so the task stays for it; but each look comes to the first lock before, where
// it does not wait. It looks about once a second, and not all the time.
func TestStay_looksOnceASecondBehindTwoLocks(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		hook := &redistest.FailHook{}
		r := start(t, s, setup{hook: hook, rules: []automutex.Rule{
			{Task: "work", Name: "first", Scope: "first", Busy: automutex.Skip}, {Task: "work", Name: "second", Scope: "second", Busy: automutex.Retry},
			{Task: "close", Scope: "second", Busy: automutex.Retry},
		}, handler: func(ctx context.Context, task *asynq.Task) error {
			if task.Type() == "close" {
				return automutex.CloseGate(ctx, time.Hour)
			}
			return nil
		}})
		r.await(r.enqueue("close", nil), asynq.TaskStateCompleted)
		lease := r.take("first")
		var asks atomic.Int64 // commands to the first lock
		key := r.lockOf("first").Key()
		hook.Before(func(cmd redis.Cmder) error {
			if slices.Contains(cmd.Args(), any(key)) {
				asks.Add(1)
			}
			return nil
		})
		id := r.enqueue("work", nil, asynq.MaxRetry(0))
		r.awaitEvent(automutex.EventBusy, id)
		asks.Store(0)
		const watched = 2500 * time.Millisecond
		<-time.After(watched)
		if n := asks.Load(); n == 0 || n > 12 {
			t.Errorf("%d commands to the first lock in %s, want about one a second", n, watched)
		}
		r.free(lease)
		if _, err := r.lockOf("second").BreakAll(context.Background()); err != nil { // opens the gate
			t.Fatal(err)
		}
		r.await(id, asynq.TaskStateCompleted)
		if n := len(r.seen.list(automutex.EventSkipped)); n != 0 {
			t.Errorf("it was skipped %d times for a lock that was not what kept it", n)
		}
	})
}

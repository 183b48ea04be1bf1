package unique

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// refusingDrops makes a guard whose Redis refuses to drop a claim, as often as
// refuse says, and tells of each.
func (r *rig) refusingDrops(refuse int64, refused chan<- struct{}) *automutex.Guard {
	r.t.Helper()
	hook := &redistest.FailHook{}
	var left atomic.Int64
	left.Store(refuse)
	hook.Before(func(cmd redis.Cmder) error {
		if args := cmd.Args(); strings.HasPrefix(cmd.Name(), "eval") && len(args) > 3 && strings.HasSuffix(args[3].(string), ":claim") && left.Add(-1) >= 0 {
			refused <- struct{}{}
			return redistest.ReplyError("READONLY no")
		}
		return nil
	})
	rdb := r.s.Client(r.t)
	rdb.AddHook(hook)
	guard, err := automutex.New(rdb, automutex.Config{
		Prefix: r.prefix, Logger: slog.New(slog.DiscardHandler), Rules: []automutex.Rule{{Task: "reindex", On: []string{"id"}}},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return guard
}

// Whatever changed before Enqueue is seen by a run that begins after it, also
// when Redis refuses the command that ends the claim. The task goes back with its
// attempt not spent, or tries again where it has none left.
func TestUntilStart_claimCannotBeDropped(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, maxRetry := range map[string]int{"handed back": 3, "last attempt": 0} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := start(t, s, Rule{Task: "reindex", On: []string{"id"}, Until: UntilStart, Duplicate: Join})
				refused := make(chan struct{}, 100)
				var data, read atomic.Int64
				spent := make(chan int, 10)
				r.serve(func(ctx context.Context, _ *asynq.Task) error {
					read.Store(data.Load())
					retried, _ := asynq.GetRetryCount(ctx)
					spent <- retried
					return nil
				}, r.refusingDrops(1, refused))
				data.Store(1)
				first := r.must(r.Enqueue(task("reindex", "7", "first"), asynq.MaxRetry(maxRetry)))
				<-refused
				data.Store(2)
				second := r.must(r.Enqueue(task("reindex", "7", "second"), asynq.MaxRetry(maxRetry)))
				if second.ID != first.ID {
					t.Errorf("the claim stands, and another task is enqueued: %s beside %s", second.ID, first.ID)
				}
				r.awaitGone(r.queue, first.ID)
				if read.Load() != 2 {
					t.Errorf("data is 2, and the last run read %d", read.Load())
				}
				if n := <-spent; n != 0 {
					t.Errorf("%d attempts are spent", n)
				}
			})
		}
	})
}

// On the last attempt the task tries until the margin before its deadline, and
// is archived then, unrun, with the reason.
func TestUntilStart_claimCannotBeDroppedInTime(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, Rule{Task: "reindex", On: []string{"id"}, Until: UntilStart})
		r.serve(func(context.Context, *asynq.Task) error {
			t.Error("it runs beside its claim")
			return nil
		}, r.refusingDrops(1<<40, make(chan struct{}, 1000)))
		info := r.must(r.Enqueue(task("reindex", "7", "first"), asynq.MaxRetry(0), asynq.Timeout(2*time.Second)))
		r.await(r.queue, info.ID, asynq.TaskStateArchived)
		if info, err := r.inspector.GetTaskInfo(r.queue, info.ID); err != nil || !strings.Contains(info.LastErr, "READONLY") {
			t.Errorf("the last error is %q (%v)", info.LastErr, err)
		}
	})
}

// A task whose claim has ended counts as started. If its context ends in that same round trip
// its handler does not run: the task goes back without a claim, the next one is accepted, and
// both run.
func TestUntilStart_endsAsItsClaimIsDropped(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, Rule{Task: "reindex", On: []string{"id"}, Until: UntilStart})
		rdb, hook := s.Client(t), &redistest.FailHook{}
		rdb.AddHook(hook)
		var id atomic.Pointer[string]
		var cancelled atomic.Bool
		hook.After(func(cmd redis.Cmder) error {
			args := cmd.Args()
			reply, isScript := cmd.(*redis.Cmd)
			if !isScript || reply.Val() != any(int64(1)) || !strings.HasSuffix(fmt.Sprint(args[3]), ":claim") || !cancelled.CompareAndSwap(false, true) {
				return nil // not a script that has dropped the claim: NOSCRIPT has no reply
			}
			for deadline := time.Now().Add(longest); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
				if id.Load() == nil {
					continue
				}
				_ = r.inspector.CancelProcessing(*id.Load()) // again until the server listens
				if info, err := r.inspector.GetTaskInfo(r.queue, *id.Load()); err == nil && info.State == asynq.TaskStateRetry {
					break
				}
			}
			return nil
		})
		guard, err := automutex.New(rdb, automutex.Config{
			Prefix: r.prefix, Logger: slog.New(slog.DiscardHandler), Rules: []automutex.Rule{{Task: "reindex", On: []string{"id"}}},
		})
		redistest.Must(t, err)
		ran := make(chan string, 10)
		r.serve(func(ctx context.Context, _ *asynq.Task) error {
			taskID, _ := asynq.GetTaskID(ctx)
			ran <- taskID
			return nil
		}, guard)
		first := r.must(r.Enqueue(task("reindex", "7", "first")))
		id.Store(&first.ID)
		r.await(r.queue, first.ID, asynq.TaskStateRetry)
		second := r.must(r.Enqueue(task("reindex", "7", "second")))
		if got := <-ran; got != second.ID || second.ID == first.ID {
			t.Errorf("%s ran, want the second task %s and not the first %s", got, second.ID, first.ID)
		}
		redistest.Must(t, r.inspector.RunTask(r.queue, first.ID))
		if got := <-ran; got != first.ID {
			t.Errorf("%s ran, want the first task %s", got, first.ID)
		}
		r.awaitGone(r.queue, first.ID)
		r.awaitGone(r.queue, second.ID)
	})
}

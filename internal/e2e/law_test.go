package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// These tests play what internal/decide decides against asynq and Redis, where several features meet.

var errUpstream = errors.New("429 Too Many Requests")

// ErrorHandler hears of each task that a RetryAfter archives, whether it has a rule or not.
func TestLaw_archivedByARetryAfter(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var told atomic.Int64
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: automutex.Retry}}, handler: func(context.Context, *asynq.Task) error { return automutex.RetryAfter(time.Hour, errUpstream) }, served: func(c *asynq.Config) {
			c.ErrorHandler = asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { told.Add(1) })
		}})
		for i, task := range []string{"work", "free"} {
			info := r.await(r.enqueue(task, nil, asynq.MaxRetry(0), asynq.Timeout(time.Minute)), asynq.TaskStateArchived)
			if n := told.Load(); n != int64(i)+1 || !strings.Contains(info.LastErr, errUpstream.Error()) {
				t.Errorf("%s: ErrorHandler was called %d times; last error %q", task, n, info.LastErr)
			}
		}
	})
}

// While the Guard closes it is not archived, but waits until asynq has it back, which costs no attempt.
func TestLaw_requeuedWithARetryAfter(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{served: quickly(2 * time.Second), rules: []automutex.Rule{{Task: "work", Busy: automutex.Retry}}})
		id := r.enqueue("work", nil, asynq.MaxRetry(0), asynq.Timeout(time.Minute))
		run := r.stage.next(t)
		closed := r.closing(t.Context())
		run.returns(automutex.RetryAfter(time.Hour, errUpstream))
		if err := awaitClosed(t, closed); err != nil {
			t.Error(err)
		}
		r.shutdown()
		if info := r.await(id, asynq.TaskStatePending); info.Retried != 0 {
			t.Errorf("%d attempts are spent", info.Retried)
		}
		r.stage.none(t)
	})
}

// A RetryAfter of AfterFailure's function, of Key and of LimitOf counts as one of a handler.
func TestLaw_retryAfterOfAFunction(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, answer := range map[string]func(error) error{
			"busy":  func(busy error) error { return automutex.RetryAfter(time.Hour, busy) },
			"other": func(error) error { return automutex.RetryAfter(time.Hour, errUpstream) },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := start(t, s, setup{rules: []automutex.Rule{
					{Task: "work", On: []string{"id"}, Busy: automutex.AfterFailure(func(_ context.Context, _ *asynq.Task, b *automutex.BusyError) error { return answer(b) })},
					{Task: "key", Key: func(context.Context, *asynq.Task) ([]string, error) { return nil, answer(errUpstream) }, Busy: automutex.Retry},
					{Task: "limit", LimitOf: func(context.Context, *asynq.Task) (int, error) { return 0, answer(errUpstream) }, Busy: automutex.Retry},
				}})
				r.take("work", "1")
				for _, task := range []string{"work", "key", "limit"} {
					id := r.enqueue(task, one)
					info := r.awaitRetried(id, 0)
					if in := time.Until(info.NextProcessAt); in < 59*time.Minute {
						t.Errorf("%s: comes back in %s", task, in)
					}
					if e := r.awaitEvent(automutex.EventRetried, id); e.Delay < 59*time.Minute {
						t.Errorf("%s: %+v", task, e)
					}
					info = r.await(r.enqueue(task, one, asynq.MaxRetry(0), asynq.Timeout(time.Minute)), asynq.TaskStateArchived)
					if !strings.Contains(info.LastErr, "to be run again after 1h0m0s") {
						t.Errorf("%s: archived, as the hour does not fit into its Timeout, with %q", task, info.LastErr)
					}
				}
			})
		}
		t.Run("last attempt", func(t *testing.T) {
			t.Parallel()
			r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error {
				return automutex.RetryAfter(0, errUpstream)
			})}}})
			lease := r.take("work", "1")
			id := r.enqueue("work", one, asynq.MaxRetry(0))
			r.awaitEvent(automutex.EventBusy, id)
			r.free(lease)
			r.stage.next(t).returns(nil)
			r.await(id, asynq.TaskStateCompleted)
		})
		t.Run("its own text", func(t *testing.T) {
			t.Parallel()
			r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.AfterFailure(func(_ context.Context, _ *asynq.Task, b *automutex.BusyError) error {
				return fmt.Errorf("tenant suspended: %w", b)
			})}}})
			r.take("work", "1")
			if info := r.awaitRetried(r.enqueue("work", one), 0); !strings.Contains(info.LastErr, "tenant suspended") {
				t.Errorf("the last error is %q", info.LastErr)
			}
		})
	})
}

// RetryAfter(0) on the last attempt does not spin.
func TestLaw_retryAfterZero(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var runs atomic.Int64
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: automutex.Retry}}, handler: func(context.Context, *asynq.Task) error { runs.Add(1); return automutex.RetryAfter(0, errUpstream) }})
		for _, task := range []string{"work", "free"} {
			runs.Store(0)
			r.await(r.enqueue(task, nil, asynq.MaxRetry(0), asynq.Timeout(3500*time.Millisecond)), asynq.TaskStateArchived)
			if n := runs.Load(); n < 2 || n > 4 {
				t.Errorf("%s: %d runs in 3.5 s, want one a second", task, n)
			}
		}
	})
}

// After Close every task that has a rule returns, also one without a key or a lock, and under Allow.
func TestLaw_afterClose(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		no := func(context.Context, *asynq.Task) ([]string, error) { return nil, automutex.NoLock }
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "never", On: []string{"id"}, Busy: automutex.Retry}, {Task: "none", Key: no, Busy: automutex.Retry}, {Task: "allow", On: []string{"id"}, Busy: automutex.Allow}, {Task: "work", Busy: automutex.Retry}}})
		redistest.Must(t, r.guard.Close(t.Context()))
		for _, task := range []string{"work", "never", "none", "allow"} {
			if info := r.awaitRetried(r.enqueue(task, map[string]int{"other": 1}), 0); !strings.Contains(info.LastErr, "closed") {
				t.Errorf("%s: %q", task, info.LastErr)
			}
		}
		r.stage.none(t)
	})
}

// Of several keys that cannot be made the strongest reason counts, and not the order of the rules.
func TestLaw_strongestReason(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Run("keys", func(t *testing.T) {
			t.Parallel()
			later := func(context.Context, *asynq.Task) ([]string, error) { return nil, errUpstream }
			r := start(t, s, setup{rules: []automutex.Rule{
				{Task: "work", Name: "a", Scope: "a", Key: later, Busy: automutex.Retry}, {Task: "work", Name: "b", Scope: "b", On: []string{"id"}, Busy: automutex.Retry},
				{Task: "krow", Name: "c", Scope: "a2", On: []string{"id"}, Busy: automutex.Retry}, {Task: "krow", Name: "d", Scope: "b2", Key: later, Busy: automutex.Retry},
			}})
			for _, task := range []string{"work", "krow"} {
				r.await(r.enqueue(task, map[string]int{"other": 1}), asynq.TaskStateArchived)
			}
		})
		t.Run("NoLock beside an error", func(t *testing.T) {
			t.Parallel()
			for _, c := range []struct {
				err   error
				state asynq.TaskState
			}{
				{&automutex.KeyError{Task: "work", Err: automutex.NoLock}, asynq.TaskStateArchived},
				{errors.Join(automutex.NoLock, errUpstream), asynq.TaskStateRetry},
				{fmt.Errorf("%w: %w", automutex.NoLock, asynq.SkipRetry), asynq.TaskStateArchived},
			} {
				r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Key: func(context.Context, *asynq.Task) ([]string, error) { return nil, c.err }, Busy: automutex.Retry}}})
				r.await(r.enqueue("work", nil), c.state)
				r.stage.none(t)
			}
		})
	})
}

// A task's arrival under Replace is forgotten however the task ends.
func TestLaw_arrivalsAreForgotten(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, end := range []automutex.Policy{automutex.Skip, automutex.Archive, automutex.Fail, automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error { return nil })} {
			r := start(t, s, setup{rules: []automutex.Rule{
				{Task: "work", Name: "b", Scope: "b", On: []string{"id"}, Busy: automutex.Replace}, {Task: "work", Name: "a", Scope: "c", On: []string{"id"}, Busy: end},
				{Task: "hangs", Scope: "b", On: []string{"id"}, Busy: automutex.Replace},
			}})
			arrivals := func() int64 { return r.rdb.Exists(context.Background(), r.lockOf("b", "1").Key()+":arrivals").Val() }
			lease := r.take("c", "1")
			id := r.enqueue("work", one, asynq.MaxRetry(0))
			redistest.Eventually(t, patience, func() bool {
				info, err := r.inspector.GetTaskInfo(r.queue, id)
				return err == nil && (info.State == asynq.TaskStateCompleted || info.State == asynq.TaskStateArchived)
			}, "%s ends it", end)
			redistest.Eventually(t, patience, func() bool { return arrivals() == 0 }, "%s: the arrival is forgotten", end)
			r.free(lease)

			// Archived by asynq, as its Timeout is over.
			id = r.enqueue("hangs", one, asynq.MaxRetry(0), asynq.Timeout(1500*time.Millisecond))
			run := r.stage.next(t)
			r.await(id, asynq.TaskStateArchived)
			run.returns(context.DeadlineExceeded)
			redistest.Eventually(t, patience, func() bool { return arrivals() == 0 }, "the arrival of a task that ran out of time is forgotten")
		}
	})
}

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

// On its last attempt a task is asked again: what it met first, a pause, decides nothing.
func TestLaw_lastAttemptIsAskedAgain(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var asked atomic.Int64
		after := automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error { asked.Add(1); return nil })
		for _, c := range []struct {
			policy automutex.Policy
			runs   int64
			state  asynq.TaskState
		}{{automutex.Allow, 1, asynq.TaskStateCompleted}, {automutex.Skip, 0, asynq.TaskStateCompleted}, {automutex.Fail, 0, asynq.TaskStateArchived}, {after, 0, asynq.TaskStateCompleted}} {
			t.Run(c.policy.String(), func(t *testing.T) {
				t.Parallel()
				var runs atomic.Int64
				r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: c.policy}}, handler: func(context.Context, *asynq.Task) error { runs.Add(1); return nil }})
				r.take("work", "1")
				r.pauseTarget("work", time.Time{})
				id := r.enqueue("work", one, asynq.MaxRetry(0))
				r.awaitEvent(automutex.EventWaiting, id)
				r.resumeTarget("work")
				r.await(id, c.state)
				if n := runs.Load(); n != c.runs {
					t.Errorf("%d runs, want %d", n, c.runs)
				}
				if c.policy == after && asked.Load() != 1 {
					t.Errorf("AfterFailure was asked %d times", asked.Load())
				}
			})
		}
	})
}

// A task whose own start keeps it out, or whose handler has asked to come back, is not ended for it: neither
// by the rate nor by another task that has the key meanwhile.
func TestLaw_ownWorkIsNotLost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, policy := range []automutex.Policy{automutex.Skip, automutex.Archive} {
			for name, err := range map[string]error{"failed": errUpstream, "asked": automutex.RetryAfter(time.Second, errUpstream)} {
				t.Run(fmt.Sprint("rate ", policy, " ", name), func(t *testing.T) {
					t.Parallel()
					r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Limit: 2, Busy: policy, Rate: automutex.Rate{Starts: 1, Per: time.Hour, Burst: 1}}}})
					id := r.enqueue("work", one)
					r.stage.next(t).returns(err)
					info := r.await(id, asynq.TaskStateRetry)
					r.rerun(id)
					r.awaitEvent(automutex.EventBusy, id)
					r.awaitRetried(id, info.Retried)
					// Another task is ended, as its rule says.
					other := r.enqueue("work", one)
					if policy == automutex.Skip {
						r.await(other, asynq.TaskStateCompleted)
					} else {
						r.await(other, asynq.TaskStateArchived)
					}
				})
			}
			for _, last := range []bool{false, true} {
				t.Run(fmt.Sprint("held ", policy, " last attempt ", last), func(t *testing.T) {
					t.Parallel()
					r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: policy}}})
					var options []asynq.Option
					if last {
						options = append(options, asynq.MaxRetry(0))
					}
					id := r.enqueue("work", one, options...)
					r.stage.next(t).returns(automutex.RetryAfter(time.Second, errUpstream))
					redistest.Eventually(t, patience, func() bool { return !r.locked("work", "1") }, "the key is free")
					lease := r.take("work", "1")
					if !last {
						r.awaitRetried(id, 0)
						for range 3 {
							r.seen.clear()
							r.rerun(id)
							r.awaitEvent(automutex.EventBusy, id)
							r.awaitRetried(id, 0)
						}
					} else {
						r.awaitEvent(automutex.EventBusy, id)
					}
					r.free(lease)
					if !last {
						r.rerun(id)
					}
					r.stage.next(t).returns(nil)
					r.await(id, asynq.TaskStateCompleted)
				})
			}
		}
	})
}

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

// Of several locks and of several keys the strongest reason counts, and not the order of the rules.
func TestLaw_strongestReason(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, second := range []automutex.Policy{automutex.Retry, automutex.Park, automutex.Skip} {
			t.Run("held, then paused under "+second.String(), func(t *testing.T) {
				t.Parallel()
				r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Name: "a", Scope: "a", On: []string{"id"}, Busy: automutex.Skip}, {Task: "work", Name: "b", Scope: "b", On: []string{"id"}, Busy: second}}})
				r.take("a", "1")
				r.pauseTarget("b", time.Time{})
				id := r.enqueue("work", one)
				r.awaitRetried(id, 0)
				if e := r.awaitEvent(automutex.EventBusy, id); e.Busy.Reason != automutex.ReasonPaused || e.Rule != "b" {
					t.Errorf("got %+v, %v", e, e.Busy)
				}
			})
		}
		t.Run("held, then closed", func(t *testing.T) {
			t.Parallel()
			r := start(t, s, setup{rules: []automutex.Rule{
				{Task: "work", Name: "a", Scope: "a", On: []string{"id"}, Busy: automutex.Skip}, {Task: "work", Name: "b", Scope: "b", On: []string{"id"}, Busy: automutex.Skip},
				{Task: "other", Name: "c", Scope: "b", On: []string{"id"}, Busy: automutex.Retry},
			}})
			id := r.enqueue("other", one)
			run := r.stage.next(t)
			redistest.Must(t, automutex.CloseGate(run.ctx, time.Hour))
			run.returns(nil)
			r.await(id, asynq.TaskStateCompleted)
			r.take("a", "1")
			id = r.enqueue("work", one)
			r.awaitRetried(id, 0)
			if e := r.awaitEvent(automutex.EventRetried, id); e.Rule != "b" || e.Delay < 59*time.Minute {
				t.Errorf("got %+v", e)
			}
		})
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

// MaxWaiting bounds waiting, and does not decide about a task.
func TestLaw_crowded(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Skip, Wait: time.Minute}, {Task: "other", Busy: automutex.Retry, Wait: time.Minute}}, guarded: func(c *automutex.Config) { c.MaxWaiting = 1 }})
		r.take("work", "1")
		lease := r.take("other")
		other := r.enqueue("other", nil)
		r.awaitLine(1, "other")
		id := r.enqueue("work", one)
		r.awaitRetried(id, 0)
		r.free(lease)
		r.finish(other)
	})
}

// A handler that closes its gate for less time than its RetryAfter runs again after the RetryAfter,
// and one that meant them to be equal runs first, but not before.
func TestLaw_retryAfterUnderPark(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for closes, back := range map[time.Duration]automutex.EventKind{time.Second: automutex.EventRetried, 2900 * time.Millisecond: automutex.EventParked} {
			t.Run(closes.String(), func(t *testing.T) {
				t.Parallel()
				const d = 2950 * time.Millisecond
				r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: automutex.Park}}, served: comingBack})
				id := r.enqueue("work", nil)
				run := r.stage.next(t)
				redistest.Must(t, automutex.CloseGate(run.ctx, closes))
				began := time.Now()
				run.returns(automutex.RetryAfter(d, errUpstream))
				run = r.stage.next(t)
				if took := time.Since(began); took < d {
					t.Errorf("it ran again after %s of %s", took, d)
				}
				run.returns(nil)
				r.await(id, asynq.TaskStateCompleted)
				if events := r.seen.list(automutex.EventRetried, automutex.EventParked); len(events) != 1 || events[0].Kind != back {
					t.Errorf("%d events of one return: %v", len(events), events)
				}
			})
		}
	})
}

// Of nested Guards the outer one has the task wait, so that it waits without the locks of both.
func TestLaw_nestedGuards(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		inner := newGuard(t, s, &redistest.Log{}, &events{}, automutex.Rule{Task: "work", Busy: automutex.Retry})
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Scope: "shared", Busy: automutex.Retry}},
			served: func(c *asynq.Config) { *c = inner.ServerConfig(*c) },
			wrap:   func(g *automutex.Guard, h asynq.Handler) asynq.Handler { return g.Middleware(inner.Middleware(h)) }})
		id := r.enqueue("work", nil, asynq.MaxRetry(0))
		r.stage.next(t).returns(automutex.RetryAfter(2*time.Second, errUpstream))
		redistest.Eventually(t, time.Second, func() bool { return !r.locked("shared") }, "the outer lock is free")
		r.stage.next(t).returns(nil)
		r.await(id, asynq.TaskStateCompleted)
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

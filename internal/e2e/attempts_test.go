package e2e

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// What asynq does with attempts, and what follows, as in docs/architecture.md.
//
// The reserved attempt, TestReserved_*: a task of a Client never waits in its worker for want of attempts, and its
// handler begins as often as the caller asked for.

func TestAttempt_maxRetryZero(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, policy := range []automutex.Policy{automutex.Retry, automutex.RetryIn(time.Minute), automutex.Park} {
			r, free := busyRig(t, s, automutex.Rule{Busy: policy}, setup{workers: 1}) // it keeps the last worker
			id := r.enqueueOne(asynq.MaxRetry(0))
			r.awaitLine(1, "work", "1")
			r.await(id, asynq.TaskStateActive)
			r.none()
			free()
			r.finish(id)
			r.wantKinds(id, automutex.EventWaiting, automutex.EventWaited, automutex.EventAcquired, automutex.EventReleased)
			if event := r.awaitEvent(automutex.EventAcquired, id); event.Waited <= 0 {
				t.Errorf("%s: it waited for nothing: %+v", policy, event)
			}
			r.stop()
		}
	})
}

// Waiting until the deadline would cost the attempt. The wait ends the margin before it, and no earlier.
func TestAttempt_waitEndsBeforeTheDeadline(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		var left sync.Map // of each task's time
		r, _ := busyRig(t, s, automutex.Rule{Wait: time.Minute, Busy: automutex.Retry},
			setup{guarded: func(c *automutex.Config) {
				c.Observe = automutex.JoinObservers(func(ctx context.Context, e automutex.Event) {
					if deadline, ok := ctx.Deadline(); ok && e.Kind == automutex.EventWaited {
						left.Store(e.TaskID, time.Until(deadline))
					}
				}, c.Observe)
			}})
		var id string
		for range 10 { // a busy machine may be late
			id = r.enqueueOne(asynq.Timeout(2 * time.Second))
			if info := r.await(id, asynq.TaskStateRetry); info.Retried == 0 && strings.Contains(info.LastErr, "waited") {
				break
			}
		}
		r.awaitRetried(id, 0)
		v, _ := left.Load(id)
		if left, _ := v.(time.Duration); left <= 0 || left > margin {
			t.Errorf("its wait is over %s before its deadline, margin %s", left, margin)
		}
		event := r.awaitEvent(automutex.EventBusy, id)
		if event.Waited <= 0 || event.Waited > 2*time.Second || event.Busy.Waited != event.Waited {
			t.Errorf("it waited %s of its 2 s", event.Waited)
		}
		if !errors.Is(event.Busy, automutex.ErrBusy) {
			t.Errorf("%v is no ErrBusy", event.Busy)
		}
		r.none()
	})
}

// asynq files the retry when the timeout ends, though the handler still runs.
func TestAttempt_ignoredTimeout(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		// They become Retry when an earlier attempt of the same task holds the lock. One task type for each.
		policies := []automutex.Policy{automutex.Retry, automutex.Skip, automutex.Archive, automutex.Fail}
		var rules []automutex.Rule
		for _, policy := range policies {
			rules = append(rules, automutex.Rule{Task: policy.String(), Busy: policy})
		}
		r := start(t, s, setup{rules: rules, served: atOnce}) // as natural as it can be: the retry is due at once
		var ids []string
		var runs []*run
		for _, policy := range policies {
			ids = append(ids, r.enqueue(policy.String(), nil, asynq.Timeout(5*time.Second)))
			runs = append(runs, r.next())
		}
		for i, id := range ids {
			spent, _ := asynq.GetRetryCount(runs[i].ctx)  // 0, unless its time was up before it had the lock
			busy := r.awaitEvent(automutex.EventBusy, id) // the retry, come back by itself
			if !busy.Busy.SameTask || !strings.Contains(busy.Busy.Error(), "an earlier attempt of this task") {
				t.Errorf("%s: %v", policies[i], busy.Busy)
			}
			r.awaitEvent(automutex.EventOverdue, id)
			r.awaitRetried(id, spent+1) // the timeout's own
			r.wantPolicy(id, automutex.Retry)
		}
		r.none()
		for i, run := range runs {
			run.returns(nil)
			<-run.left
			eventually(t, func() bool { return !r.locked(policies[i].String()) || len(r.stage.started) > 0 },
				"the key free, or taken by the retry")
			_ = r.inspector.RunTask(r.queue, ids[i]) // unless it has come back by itself
			r.ends(r.nextIs(ids[i]))
			r.wantAtOnce(policies[i].String(), 1) // its attempts never ran at once
		}
	})
}

// With a Limit above 1 a task does not run beside its own earlier attempt, whose handler ignored that its time was up,
// though slots are free: whatever the policy, on the last attempt, and in line while others release. It runs when that
// one is over.
func TestAttempt_neverBesideItself(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]automutex.Rule{
		"retry":              {Busy: automutex.Retry},
		"retry after wait":   {Busy: automutex.Retry, Wait: 30 * time.Second},
		"skip":               {Busy: automutex.Skip},
		"skip, last attempt": {Busy: automutex.Skip},
		"archive":            {Busy: automutex.Archive},
		"fail":               {Busy: automutex.Fail},
		"retry in":           {Busy: automutex.RetryIn(time.Minute)},
		"allow":              {Busy: automutex.Allow},
		"after failure": {Busy: automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error {
			t.Error("AfterFailure was asked about its own attempt")
			return nil
		})},
		"park":    {Busy: automutex.Park},
		"replace": {Busy: automutex.Replace, Wait: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, s *redistest.Server) {
				rule := rule
				rule.Task, rule.On, rule.Limit = "work", onID, 3
				attempts := 5
				if strings.HasSuffix(name, "last attempt") {
					attempts = 1
				}
				r := start(t, s, setup{rules: []automutex.Rule{rule}})
				id := r.enqueueOne(asynq.MaxRetry(attempts))
				first := r.next()
				first.cut()
				r.awaitRetried(id, 1)
				// Another holder leaves while the task asks or waits: a slot is granted to whoever may have it.
				outside := r.others.Semaphore("work", rule.Limit, lock.Parts("1"))
				other, err := outside.TryLock(t.Context())
				redistest.Must(t, err)
				r.rerun(id)
				eventually(t, func() bool {
					return slices.ContainsFunc(r.seen.list(automutex.EventBusy, automutex.EventWaiting), func(e automutex.Event) bool {
						return e.TaskID == id && (e.Busy == nil || e.Busy.SameTask)
					})
				}, "the task finds its own earlier attempt; %v", r.seen.kindsOf(id))
				r.free(other)
				other, err = outside.TryLock(t.Context()) // a newcomer finds a slot beside a task that waits for itself
				redistest.Must(t, err)
				r.free(other)
				r.none()
				first.returns(errors.New("late"))
				eventually(t, func() bool {
					r.nudge(id) // it may come before the first one has released
					return len(r.stage.started) > 0
				}, "the task runs")
				r.finishSpent(id, 1) // the one that was cut off
				r.wantAtOnce("work", 1)
			})
		})
	}
}

// A task whose time is up in its last attempt runs once more at most, one in order not at all.
func TestReserved_timeIsUpInTheLastAttempt(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"no order", "hold", "continue"} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, s *redistest.Server) {
				rule := automutex.Rule{Task: "work", On: onID, InOrder: name != "no order"}
				switch name {
				case "no order":
					rule.Busy = automutex.Retry
				case "continue":
					rule.OnArchive = automutex.Continue
				}
				r, c := orderRig(t, s, setup{rules: []automutex.Rule{rule}, served: func(c *asynq.Config) {
					atOnce(c)
					c.IsFailure = func(error) bool { return false } // it counts all the same: asynq ends a last attempt without asking
				}})
				id := r.enqueueInOrder(c, 1, asynq.MaxRetry(0))
				run, wants := r.next(), "its last run did not return"
				next := ""
				if rule.InOrder {
					next = r.enqueueInOrder(c, 1)
				}
				run.cut() // asynq files a retry at once
				run.returns(context.Canceled)
				if !rule.InOrder {
					wants = "once more"
					r.next().returns(errors.New(wants))
				}
				if info := r.awaitArchived(id); !strings.Contains(info.LastErr, wants) {
					t.Fatalf("%+v", info)
				}
				if name == "continue" {
					r.finish(next)
				}
				r.none()
				r.rerun(id)
				r.finishSpent(id, 1)
				if name == "hold" {
					r.finish(next)
				}
			})
		})
	}
}

// leavingRig is a rig whose first wait is cut, which asynq counts. The waiter leaves the line when leave is called.
func leavingRig(t *testing.T, s *redistest.Server, inOrder bool) (r *rig, c *automutex.Client, leaves, leave func()) {
	t.Helper()
	var step atomic.Int32 // 1: the wait is cut; 2: it leaves
	late, hook, locks := make(chan struct{}), &redistest.FailHook{}, s.Client(t)
	hook.Before(func(cmd redis.Cmder) error {
		if (runs(cmd, "release") || runs(cmd, "order_release")) && step.CompareAndSwap(1, 2) {
			<-late
		}
		return nil
	})
	locks.AddHook(hook)
	r, c = orderRig(t, s, setup{
		rules: []automutex.Rule{{On: onID, InOrder: inOrder}}, served: func(*asynq.Config) {},
		locks: locks,
		guarded: func(c *automutex.Config) {
			c.Observe = automutex.JoinObservers(c.Observe, func(ctx context.Context, e automutex.Event) {
				if e.Kind == automutex.EventWaiting && step.CompareAndSwap(0, 1) {
					ctx.Value(cutKey{}).(context.CancelFunc)()
				}
			})
		},
	})
	leaves = func() { eventually(t, func() bool { return step.Load() == 2 }, "a task that leaves") }
	return r, c, leaves, func() {
		close(late)
		eventually(t, func() bool { return !r.locked("work", "1") }, "who leaves gives back what it was granted")
	}
}

// A RetryAfter of the last attempt does not spend it, also when a wait is cut in between.
func TestReserved_cutAfterRetryAfter(t *testing.T) {
	t.Parallel()
	for _, inOrder := range []bool{false, true} {
		redistest.Each(t, func(t *testing.T, s *redistest.Server) {
			r, c, _, leave := leavingRig(t, s, inOrder)
			id := r.enqueueInOrder(c, 1, asynq.MaxRetry(0))
			r.nextIs(id).returns(automutex.RetryAfter(time.Hour, errors.New("429")))
			r.awaitRetried(id, 0)
			held := r.take("work", "1")
			r.rerun(id)
			eventually(t, func() bool {
				info, err := r.inspector.GetTaskInfo(r.queue, id)
				return err == nil && info.State == asynq.TaskStateRetry && info.Retried == 1
			}, "the wait is cut")
			r.free(held)
			leave()
			r.rerun(id)
			r.finishSpent(id, 1)
		})
	}
}

// Nor does a grant spend it that comes as the task leaves.
func TestReserved_grantedAsItLeaves(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, c, leaves, leave := leavingRig(t, s, true)
		first := r.enqueueInOrder(c, 1)
		run := r.nextIs(first)
		id := r.enqueueInOrder(c, 1, asynq.MaxRetry(0))
		r.awaitRetried(id, 1)
		leaves() // else the release of the first one would be held back for it
		r.ends(run)
		leave()
		r.rerun(id)
		r.finishSpent(id, 1)
	})
}

// What asynq.NewTask was given is kept, and what no rule matches is left alone.
func TestReserved_options(t *testing.T) {
	t.Parallel()
	r, c := orderRig(t, redistest.Mini(t), setup{rules: []automutex.Rule{{On: onID, Busy: automutex.Retry}}})
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	task := func(kind string, opts ...asynq.Option) *asynq.Task {
		return asynq.NewTaskWithHeaders(kind, []byte(`{"id":1}`), map[string]string{"mine": "kept"},
			append(opts, asynq.Queue(r.queue))...)
	}
	enqueued, err := c.Enqueue(task("work", asynq.TaskID("later"), asynq.MaxRetry(7), asynq.Timeout(time.Minute),
		asynq.Deadline(at.Add(time.Hour)), asynq.Retention(time.Hour), asynq.ProcessAt(at)))
	redistest.Must(t, err)
	info, err := r.inspector.GetTaskInfo(r.queue, "later")
	if err != nil || enqueued.ID != "later" || info.MaxRetry != 8 || info.Timeout != time.Minute ||
		!info.Deadline.Equal(at.Add(time.Hour)) ||
		info.Retention != time.Hour || info.State != asynq.TaskStateScheduled || !info.NextProcessAt.Equal(at) ||
		info.Headers["mine"] != "kept" {
		t.Errorf("%+v, %v", info, err)
	}
	if info, err := c.Enqueue(task("work", asynq.ProcessIn(time.Hour))); err != nil || info.MaxRetry != 26 ||
		info.Timeout != 30*time.Minute {
		t.Errorf("%+v, %v", info, err)
	}
	if info, err := c.Enqueue(task("work", asynq.Group("g"))); err != nil || info.State != asynq.TaskStateAggregating {
		t.Errorf("%+v, %v", info, err)
	}
	unique, later := asynq.Unique(time.Hour), asynq.ProcessIn(time.Hour)
	for where, opts := range map[string][2][]asynq.Option{"NewTask": {{unique, later}, nil},
		"Group": {{unique, asynq.Group("g")}, nil}, "Enqueue": {{later}, {unique}}} {
		one := asynq.NewTask("work", []byte(where), append(opts[0], asynq.Queue(r.queue))...)
		if _, err := c.Enqueue(one, opts[1]...); err != nil {
			t.Errorf("%s: %v", where, err)
		}
		if _, err := c.Enqueue(one, opts[1]...); !errors.Is(err, asynq.ErrDuplicateTask) {
			t.Errorf("%s: %v, want a duplicate", where, err)
		}
	}
	if info, err := c.Enqueue(task("no rule", asynq.ProcessIn(time.Hour))); err != nil || info.MaxRetry != 25 ||
		info.Headers["automutex"] != "" {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := c.Enqueue(nil); err == nil {
		t.Error("a nil task is enqueued")
	}
}

// A panic of the last attempt that the caller asked for archives the task, as a failure does.
func TestReserved_panicOfTheLastAttempt(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		last := make(chan bool, 6)
		r, c := orderRig(t, s, setup{rules: []automutex.Rule{{On: onID}},
			served: func(c *asynq.Config) {
				comingBack(c)
				c.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, _ *asynq.Task,
					_ error) {
					last <- automutex.LastAttempt(ctx)
				})
			}, handler: func(ctx context.Context, _ *asynq.Task) error {
				last <- automutex.LastAttempt(ctx)
				panic("no such account")
			}})
		id := r.enqueueInOrder(c, 1, asynq.MaxRetry(1))
		if r.awaitRetried(id, 1); <-last || <-last {
			t.Error("the first of two attempts is the last one")
		}
		r.rerun(id)
		info := r.awaitArchived(id)
		if !<-last || !<-last || info.Retried != 1 || !strings.Contains(info.LastErr, "no such account") {
			t.Errorf("%+v", info)
		}
		r.awaitArchived(r.enqueueOne(asynq.MaxRetry(0)))
		if !<-last || !<-last {
			t.Error("the only attempt of a plain task is not the last one")
		}
	})
}

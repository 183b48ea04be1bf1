package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/redisx"
)

// Replace: the newer one of two tasks of a key stops the older one. Faults are in examples/trust/simulate.

func replacing(rule automutex.Rule) automutex.Rule {
	rule.Task, rule.On, rule.Busy = "work", onID, automutex.Replace
	return rule
}

// awaitRevoked waits until asynq has the task no more, which is to have ended so.
func (r *rig) awaitRevoked(id string) automutex.Event {
	r.t.Helper()
	event := r.awaitEvent(automutex.EventReplaced, id)
	r.awaitDropped(id)
	return event
}

func (r *rig) awaitForgotten(scope string, parts ...string) {
	r.t.Helper()
	key := r.lockOf(scope, parts...).Key() + ":arrivals"
	eventually(r.t, func() bool {
		n, err := r.rdb.Exists(context.Background(), key).Result()
		return err == nil && n == 0
	}, "no arrivals at %s", key)
}

// untouched reports what reaches the server's own functions.
func untouched(t *testing.T) func(*asynq.Config) {
	return func(c *asynq.Config) {
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
			t.Errorf("the ErrorHandler was told: %v", err)
		})
		c.IsFailure = func(err error) bool {
			t.Errorf("IsFailure was asked: %v", err)
			return true
		}
	}
}

// A task within a task that comes back only with that is no newer one: the older one runs, once the gate is open.
func TestReplace_withinATask(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{}), {Task: "outer"}}, wrap: func(
			g *automutex.Guard, stage asynq.Handler) asynq.Handler {
			return g.Middleware(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				within := asynq.NewTask("work", []byte(`{"id":1}`))
				if task.Type() == "outer" && g.Middleware(stage).ProcessTask(ctx, within) == nil {
					t.Error("it has run, though its gate is closed")
				}
				return stage.ProcessTask(ctx, task)
			}))
		}})
		r.enqueueOne()
		closes := r.next()
		redistest.Must(t, automutex.CloseGate(closes.ctx, time.Hour))
		r.ends(closes)
		old := r.enqueueOne()
		r.awaitRetried(old, 0)
		r.enqueue("outer", nil)
		r.ends(r.next())
		_, err := r.lockOf("work", "1").BreakAll(t.Context())
		redistest.Must(t, err)
		r.rerun(old)
		r.finish(old)
	})
}

// The holder stops with an error, whatever it is: its task is over, neither
// failed nor archived nor retried, on its last attempt too.
func TestReplace_holderReturnsAnError(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{})}, served: untouched(t)})
		for i, answer := range []error{automutex.ErrReplaced, errors.New("cut short"), context.Canceled,
			fmt.Errorf("no: %w", asynq.SkipRetry)} {
			old := r.enqueueOne(asynq.MaxRetry(i % 2))
			running := r.next()
			young := r.enqueueOne()
			if cause := running.awaitEnd(t); !errors.Is(cause, automutex.ErrReplaced) ||
				!errors.Is(running.ctx.Err(), context.Canceled) {
				t.Errorf("the context ended with %v, cause %v", running.ctx.Err(), cause)
			}
			r.awaitLine(1, "work", "1")
			r.none() // it has not returned yet
			running.returns(answer)
			next := r.nextIs(young)
			event := r.awaitRevoked(old)
			if event.Rule != "work" || event.Key != r.lockOf("work", "1").Key() || event.Policy != automutex.Replace ||
				event.Held <= 0 || event.Waited != 0 {
				t.Errorf("got %+v", event)
			}
			r.ends(next)
			r.wantKinds(old, automutex.EventAcquired, automutex.EventReplaced, automutex.EventReleased)
			r.wantKinds(young, automutex.EventWaiting, automutex.EventWaited, automutex.EventAcquired, automutex.EventReleased)
		}
		r.awaitForgotten("work", "1")
		if text := r.log.Text(0); text != "" { // at Info and above
			t.Errorf("logged:\n%s", text)
		}
	})
}

// A newcomer that waits is replaced by a newer one, and never runs.
func TestReplace_waiting(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour})}, served: untouched(t)})
		old := r.enqueueOne()
		running := r.next()
		var waits string
		for i := range 3 {
			young := r.enqueueOne(asynq.MaxRetry(i)) // on its last attempt, too
			if waits != "" {
				if event := r.awaitRevoked(waits); event.Waited <= 0 || event.Held != 0 || event.Rule != "work" ||
					event.Policy != automutex.Replace {
					t.Errorf("got %+v", event)
				}
				r.wantKinds(waits, automutex.EventWaiting, automutex.EventWaited, automutex.EventBusy, automutex.EventReplaced)
			}
			waits = young
			r.awaitLine(1, "work", "1")
		}
		r.none()
		running.returns(running.awaitEnd(t))
		next := r.nextIs(waits)
		next.returns(nil)
		r.awaitRevoked(old)
		r.awaitDone(waits)
		r.wantRuns(2)
		r.awaitForgotten("work", "1")
	})
}

// watch is a client for a guard's locks, and a function that waits until tasks have asked n times more who is to stop.
func watch(t *testing.T, s *redistest.Server) (redis.UniversalClient, func(n int64)) {
	t.Helper()
	var calls atomic.Int64
	locks, hook := s.Client(t), &redistest.FailHook{}
	hook.After(func(cmd redis.Cmder) error {
		if cmd.Err() == nil && runs(cmd, "stop") {
			calls.Add(1)
		}
		return nil
	})
	locks.AddHook(hook)
	return locks, func(n int64) {
		t.Helper()
		n += calls.Load()
		eventually(t, func() bool { return calls.Load() >= n }, "%d calls", n)
	}
}

// runs tells whether a command runs the script with that name.
func runs(cmd redis.Cmder, name string) bool {
	args := cmd.Args()
	script := engine.Scripts[slices.IndexFunc(engine.Scripts, func(s *redisx.Script) bool { return s.Name == name })]
	return len(args) > 3 && (args[1] == script.SHA || args[1] == script.Source)
}

// A task that failed and comes back is as old as it was: it stops nobody newer, and is revoked, also when that one is
// done. One of its ID that is enqueued after that is new.
func TestReplace_retriedTaskIsOld(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour})}}, func(t *testing.T, r *rig) {
		for _, isDone := range []bool{false, true} {
			old := r.enqueueOne(asynq.TaskID("old"))
			r.next().returns(errors.New("once"))
			r.awaitRetried(old, 1)
			r.enqueueOne()
			running := r.next()
			ends := func() {
				r.ends(running)
			}
			if isDone {
				ends()
			}
			r.rerun(old)
			if r.awaitRevoked(old); !isDone {
				if running.ctx.Err() != nil {
					t.Errorf("a retried task stopped a newer one: %v", context.Cause(running.ctx))
				}
				ends()
			}
		}
		r.awaitForgotten("work", "1")
	})
}

// A waiter that hears nothing of a newer one behind it is granted the lock first, and hands it on.
func TestReplace_handedOn(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		var deaf atomic.Bool
		hook, locks := &redistest.FailHook{}, s.Client(t)
		hook.Before(func(cmd redis.Cmder) error {
			if deaf.Load() && runs(cmd, "stop") {
				return redistest.ReplyError("ERR not now")
			}
			return nil
		})
		locks.AddHook(hook)
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour})}, locks: locks})
		taken := r.take("work", "1")
		deaf.Store(true)
		waits := r.enqueueOne()
		r.awaitLine(1, "work", "1")
		newer := r.enqueueOne()
		r.awaitLine(2, "work", "1")
		deaf.Store(false)
		r.free(taken)
		r.finish(newer)
		if event := r.awaitRevoked(waits); event.Held != 0 {
			t.Errorf("got %+v", event)
		}
	})
}

// Of a semaphore's holders the oldest goes, and only that.
func TestReplace_limit(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		locks, await := watch(t, s)
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Limit: 2, Wait: time.Hour})}, locks: locks})
		var runs []*run
		for range 2 {
			r.enqueueOne()
			runs = append(runs, r.next())
		}
		for i := range 3 {
			r.enqueueOne()
			runs[i].awaitEnd(t)
			await(2) // each asks no other, however often
			if runs[i+1].ctx.Err() != nil {
				t.Errorf("the newer of two holders was stopped: %v", context.Cause(runs[i+1].ctx))
			}
			r.none()
			runs[i].returns(context.Cause(runs[i].ctx))
			r.awaitRevoked(runs[i].id)
			runs = append(runs, r.next())
		}
		for _, run := range runs[3:] {
			r.ends(run)
		}
		r.wantAtOnce("work", 2)
	})
}

var errUpstream = errors.New("429 Too Many Requests")

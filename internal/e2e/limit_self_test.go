package e2e

import (
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// With a Limit above 1 a task does not run beside its own earlier attempt, whose handler
// ignored that its time was up, though slots are free: whatever the policy, and also
// when it waits in line while others release slots. It runs when the earlier attempt
// is over.
func TestAttempt_neverBesideItselfWithALimit(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]automutex.Rule{
		"retry":            {Busy: automutex.Retry},
		"retry after wait": {Busy: automutex.Retry, Wait: 30 * time.Second},
		"skip":             {Busy: automutex.Skip},
		"archive":          {Busy: automutex.Archive},
		"fail":             {Busy: automutex.Fail},
		"park":             {Busy: automutex.Park},
		"replace":          {Busy: automutex.Replace, Wait: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				rule := rule
				rule.Task, rule.On, rule.Limit = "work", []string{"id"}, 3
				besideItself(t, s, rule)
			})
		})
	}
}

// The same on the last attempt, which waits in the worker.
func TestAttempt_neverBesideItselfOnTheLast(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		besideItself(t, s, automutex.Rule{Task: "work", On: []string{"id"}, Limit: 3, Busy: automutex.Skip}, asynq.MaxRetry(1))
	})
}

func besideItself(t *testing.T, s *redistest.Server, rule automutex.Rule, options ...asynq.Option) {
	t.Helper()
	r := start(t, s, setup{rules: []automutex.Rule{rule}})
	id := r.enqueue("work", one, options...)
	first := r.stage.next(t)
	first.cut()
	r.awaitRetried(id, 1)
	// Another holder leaves while the task asks or waits: a slot is granted to whoever may
	// have it.
	outside := r.others.Semaphore("work", rule.Limit, lock.Parts("1"))
	other, err := outside.TryLock(t.Context())
	redistest.Must(t, err)
	r.rerun(id)
	redistest.Eventually(t, patience, func() bool {
		for _, e := range r.seen.list(automutex.EventBusy, automutex.EventWaiting) {
			if e.TaskID == id && (e.Busy == nil || e.Busy.SameTask) {
				return true
			}
		}
		return false
	}, "the task finds its own earlier attempt; %v", r.seen.kindsOf(id))
	r.free(other)
	if other, err = outside.TryLock(t.Context()); err != nil {
		t.Fatalf("a newcomer finds no slot beside a task that waits for itself: %v", err)
	}
	r.free(other)
	r.stage.none(t)
	first.returns(errors.New("late"))
	redistest.Eventually(t, patience, func() bool {
		if info, err := r.inspector.GetTaskInfo(r.queue, id); err == nil && info.State == asynq.TaskStateRetry {
			_ = r.inspector.RunTask(r.queue, id) // it may come before the first one has released
		}
		return len(r.stage.started) > 0
	}, "the task runs")
	r.stage.next(t).returns(nil)
	if info := r.await(id, asynq.TaskStateCompleted); info.Retried != 1 {
		t.Errorf("%d attempts were spent, want the one that was cut off", info.Retried)
	}
	if n := r.stage.mostAtOnce("work"); n != 1 {
		t.Errorf("the task ran %d times at once", n)
	}
}

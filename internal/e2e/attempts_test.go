package e2e

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// The tests of the table "What asynq does, and what follows" in docs/architecture.md, row by row:
//
//	Retried >= MaxRetry before IsFailure   TestAttempt_maxRetryZero, TestAttempt_last, TestAttempt_lastUntilTheMargin
//	the task's context ends                TestAttempt_waitEndsBeforeTheDeadline
//	the retry while the handler runs       TestAttempt_ignoredTimeout, TestLifetime_cancelProcessing, TestLifetime_maxHold
//	earlier attempt of the same ID         TestAttempt_sameTask, TestAttempt_sameTaskOnTheLast, TestAttempt_sameIDInTwoQueues
//	Shutdown                               TestShutdown_* in shutdown_test.go
//	looked at every 5 s, default delays    TestPolicy_retry, TestBackend_delay
//	an empty queue is polled, RunTask      TestPark_* in park_test.go
//	ServeMux rebuilds the chain            TestMiddleware_unmatched, TestMiddleware_mux
//	ErrorHandler, RetryDelayFunc           TestServer_* in server_test.go, TestMiddleware_ownBusyError

func TestAttempt_maxRetryZero(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, policy := range []automutex.Policy{automutex.Retry, automutex.RetryIn(time.Minute)} {
			r, free := busyRig(t, s, automutex.Rule{Busy: policy}, setup{})
			id := r.enqueue("work", one, asynq.MaxRetry(0))
			r.awaitLine(1, "work", "1")
			r.await(id, asynq.TaskStateActive)
			r.stage.none(t)
			free()
			r.stage.next(t).returns(nil)
			r.await(id, asynq.TaskStateCompleted)
			if kinds := r.seen.kindsOf(id); !slices.Equal(kinds, []automutex.EventKind{automutex.EventWaiting, automutex.EventWaited, automutex.EventAcquired, automutex.EventReleased}) {
				t.Errorf("%s: events %v", policy, kinds)
			}
			if event := r.awaitEvent(automutex.EventAcquired, id); event.Waited <= 0 {
				t.Errorf("%s: it waited for nothing: %+v", policy, event)
			}
			r.stop()
		}
	})
}

func TestAttempt_lastUntilTheMargin(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Retry}}})
		holder := r.enqueue("work", one)
		run := r.stage.next(t)
		began := time.Now()
		id := r.enqueue("work", one, asynq.MaxRetry(0), asynq.Timeout(2*time.Second))
		info := r.await(id, asynq.TaskStateArchived)
		took := time.Since(began)
		r.stage.none(t)
		for _, text := range []string{r.lockOf("work", "1").Key(), "task " + r.queue + "/" + holder, "this-worker", "waited"} {
			if !strings.Contains(info.LastErr, text) {
				t.Errorf("the last error %q does not name %q", info.LastErr, text)
			}
		}
		if took < 900*time.Millisecond {
			t.Errorf("it gave up after %s of its 2 s, margin 1 s", took)
		}
		run.returns(nil)
		r.await(holder, asynq.TaskStateCompleted)
		if r.stage.count() != 1 {
			t.Errorf("%d runs", r.stage.count())
		}
	})
}

// Waiting until the deadline would cost the attempt. The wait ends the margin before it,
// and no earlier.
func TestAttempt_waitEndsBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		left := make(chan time.Duration, 1) // of the task's time, when its wait is over
		r, _ := busyRig(t, s, automutex.Rule{Wait: time.Minute, Busy: automutex.Retry}, setup{guarded: func(c *automutex.Config) {
			observe := c.Observe
			c.Observe = func(ctx context.Context, e automutex.Event) {
				if deadline, ok := ctx.Deadline(); ok && e.Kind == automutex.EventWaited {
					left <- time.Until(deadline)
				}
				observe(ctx, e)
			}
		}})
		id := r.enqueue("work", one, asynq.Timeout(2*time.Second))
		info := r.awaitRetried(id, 0)
		if !strings.Contains(info.LastErr, "waited") {
			t.Errorf("the last error is %q", info.LastErr)
		}
		if left := <-left; left <= 0 || left > margin {
			t.Errorf("its wait is over %s before its deadline, margin %s", left, margin)
		}
		event := r.awaitEvent(automutex.EventBusy, id)
		if event.Waited <= 0 || event.Waited > 2*time.Second || event.Busy.Waited != event.Waited {
			t.Errorf("it waited %s of its 2 s", event.Waited)
		}
		if !errors.Is(event.Busy, context.DeadlineExceeded) || !errors.Is(event.Busy, automutex.ErrBusy) {
			t.Errorf("%v is not what ended the wait", event.Busy)
		}
		r.stage.none(t)
	})
}

// samePolicies are policies that become Retry when an earlier attempt of the
// same task holds the lock, one task type for each.
var samePolicies = []automutex.Policy{automutex.Retry, automutex.Skip, automutex.Archive, automutex.Fail}

func sameRules() (rules []automutex.Rule) {
	for _, policy := range samePolicies {
		rules = append(rules, automutex.Rule{Task: policy.String(), Busy: policy})
	}
	return rules
}

// asynq files the retry when the timeout ends, though the handler still runs.
func TestAttempt_ignoredTimeout(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{
			rules: sameRules(),
			// As natural as it can be: the retry is due at once.
			served: atOnce,
		})
		var ids []string
		var runs []*run
		for _, policy := range samePolicies {
			ids = append(ids, r.enqueue(policy.String(), nil, asynq.Timeout(2*time.Second)))
			runs = append(runs, r.stage.next(t))
		}
		for i, id := range ids {
			spent, _ := asynq.GetRetryCount(runs[i].ctx)  // 0, unless its time was up before it had the lock
			busy := r.awaitEvent(automutex.EventBusy, id) // the retry, come back by itself
			if !busy.Busy.SameTask || !strings.Contains(busy.Busy.Error(), "an earlier attempt of this task") {
				t.Errorf("%s: %v", samePolicies[i], busy.Busy)
			}
			r.awaitEvent(automutex.EventOverdue, id)
			r.awaitRetried(id, spent+1) // the timeout's own
			r.wantPolicy(id, automutex.Retry)
		}
		r.stage.none(t)
		for i, run := range runs {
			run.returns(nil)
			<-run.left
			redistest.Eventually(t, patience, func() bool { return !r.locked(samePolicies[i].String()) || len(r.stage.started) > 0 }, "the key free, or taken by the retry")
			_ = r.inspector.RunTask(r.queue, ids[i]) // unless it has come back by itself
			r.runsAloneAgain(samePolicies[i].String(), ids[i])
		}
	})
}

// runsAloneAgain has the task's next attempt finish, and holds that its attempts never ran at once.
func (r *rig) runsAloneAgain(task, id string) {
	r.t.Helper()
	r.stage.nextIs(r.t, id).returns(nil)
	r.await(id, asynq.TaskStateCompleted)
	if most := r.stage.mostAtOnce(task); most != 1 {
		r.t.Errorf("%s: %d at once", task, most)
	}
}

// SameTask under the policies that have an answer of their own, and Allow.
func TestAttempt_sameTask(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{
			{Task: "allow", Busy: automutex.Allow},
			{Task: "retry in", Busy: automutex.RetryIn(90 * time.Second)},
			{Task: "after", Busy: automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error {
				t.Error("AfterFailure was asked about its own attempt")
				return nil
			})},
		}})
		again := func(taskType string) string {
			t.Helper()
			id := r.enqueue(taskType, nil)
			r.stage.next(t).cut()
			r.awaitRetried(id, 1)
			r.rerun(id)
			return id
		}
		allowed := again("allow")
		if event := r.awaitEvent(automutex.EventRetried, allowed); event.Policy != automutex.Retry {
			t.Errorf("got %+v", event)
		}
		waits := again("retry in")
		if event := r.awaitEvent(automutex.EventRetried, waits); event.Delay != 90*time.Second {
			t.Errorf("got %+v", event)
		}
		r.awaitRetried(waits, 1)
		after := again("after")
		if event := r.awaitEvent(automutex.EventBusy, after); !event.Busy.SameTask || event.Busy.HolderTask == "" || event.Policy != automutex.Retry {
			t.Errorf("got %+v", event)
		}
		r.awaitRetried(after, 1)
	})
}

// IDs are unique in their queue only: another queue's task of the same ID is
// another task.
func TestAttempt_sameIDInTwoQueues(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rules := []automutex.Rule{{Task: "work", Busy: automutex.Skip}}
		a := start(t, s, setup{rules: rules})
		b := start(t, s, setup{rules: rules, prefix: a.cfg.Prefix})
		id := a.enqueue("work", nil, asynq.TaskID("same"))
		run := a.stage.next(t)
		b.enqueue("work", nil, asynq.TaskID("same"))
		b.await(id, asynq.TaskStateCompleted)
		b.stage.none(t)
		busy := b.awaitEvent(automutex.EventBusy, id).Busy
		if busy.SameTask || busy.HolderTask != a.queue+"/same" {
			t.Errorf("got %+v", busy)
		}
		run.returns(nil)
		a.await(id, asynq.TaskStateCompleted)
	})
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// A handler that closes its key and asks to come back spends no attempt, and comes back
// when the gate opens.
func TestHold_andRetryAfter(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, policy := range []automutex.Policy{automutex.Retry, automutex.Park} {
			const d = 4 * time.Second // a busy machine may take seconds until the other task meets the hold
			var failures []error
			var mu sync.Mutex
			r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: policy}}, served: func(c *asynq.Config) {
				comingBack(c)
				c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
					mu.Lock()
					defer mu.Unlock()
					failures = append(failures, err)
				})
			}})
			id := r.enqueue("work", one)
			run := r.stage.next(t)
			began := time.Now()
			redistest.Must(t, automutex.CloseGate(run.ctx, d))
			other := r.enqueue("work", one)
			r.awaitEvent(automutex.EventBusy, other)
			left := time.Until(began.Add(d)) // a task that asks for much longer than its gate is closed does not park
			run.returns(automutex.RetryAfter(left, errors.New("429")))
			for range 2 {
				run = r.stage.next(t)
				if took := time.Since(began); took < d {
					t.Errorf("%s: one ran %s after a hold of %s", policy, took, d)
				}
				run.returns(nil)
			}
			for _, id := range []string{id, other} {
				if info := r.await(id, asynq.TaskStateCompleted); info.Retried != 0 {
					t.Errorf("%s: an attempt is spent: %+v", policy, info)
				}
			}
			back := automutex.EventRetried
			if e := r.awaitEvent(back, id); e.Delay < left || e.Delay > left+time.Second {
				t.Errorf("%s: got %+v", policy, e)
			}
			// A task that came while the other one ran has returned once more, with EventBusy before.
			returned, busy := len(r.seen.list(automutex.EventRetried, automutex.EventParked)), len(r.seen.list(automutex.EventBusy))
			if returned != busy+1 {
				t.Errorf("%s: tasks returned once of themselves and %d times since it was busy, and there are %d events of it", policy, busy, returned)
			}
			r.stop()
			if len(failures) > 0 {
				t.Errorf("%s: the ErrorHandler heard of %v", policy, failures)
			}
		}
	})
}

// RetryAfter needs no rule, works wrapped, and does not win against SkipRetry.
func TestRetryAfter_withoutRule(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: automutex.Retry}}})
		id := r.enqueue("other", nil)
		r.stage.next(t).returns(fmt.Errorf("upstream: %w", automutex.RetryAfter(20*time.Minute, errors.New("429 \xff"))))
		info := r.awaitRetried(id, 0)
		if left := time.Until(info.NextProcessAt); left < 19*time.Minute || left > 20*time.Minute+2*time.Second || !strings.Contains(info.LastErr, "429") {
			t.Errorf("it comes back in %s, last error %q", left, info.LastErr)
		}
		id = r.enqueue("other", nil)
		r.stage.next(t).returns(automutex.RetryAfter(math.MaxInt64, errors.New("never")))
		if left := time.Until(r.awaitRetried(id, 0).NextProcessAt); left < 365*24*time.Hour {
			t.Errorf("after the longest delay it comes back in %s", left)
		}
		for _, task := range []string{"other", "work"} {
			id = r.enqueue(task, nil)
			r.stage.next(t).returns(automutex.RetryAfter(time.Minute, fmt.Errorf("gone: %w", asynq.SkipRetry)))
			r.await(id, asynq.TaskStateArchived)
		}
	})
}

// On its last attempt the task waits in its worker, without its lock, and runs again.
func TestRetryAfter_lastAttempt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const pause = time.Second
		told := make(chan error, 10)
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: automutex.Retry}}, served: func(c *asynq.Config) {
			c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { told <- err })
		}})
		for _, task := range []string{"work", "other"} {
			id := r.enqueue(task, nil, asynq.MaxRetry(0))
			run := r.stage.next(t)
			began := time.Now()
			run.returns(automutex.RetryAfter(pause, nil))
			if task == "work" {
				redistest.Eventually(t, patience, func() bool { return !r.locked("work") }, "the lock is free while the task waits")
			}
			run = r.stage.next(t)
			if took := time.Since(began); took < pause || run.id != id {
				t.Errorf("%s: %s ran after %s", task, run.id, took)
			}
			run.returns(nil)
			r.await(id, asynq.TaskStateCompleted)

			// There is no time for that: asynq archives it with the handler's error, of which the ErrorHandler hears.
			id = r.enqueue(task, nil, asynq.MaxRetry(0), asynq.Timeout(time.Minute))
			r.stage.next(t).returns(automutex.RetryAfter(time.Hour, errors.New("429")))
			if info := r.await(id, asynq.TaskStateArchived); !strings.Contains(info.LastErr, "429") {
				t.Errorf("%s: the last error is %q", task, info.LastErr)
			}
			<-told
		}
		if len(told) > 0 {
			t.Errorf("the ErrorHandler was told %v as well", <-told)
		}
	})
}

func TestHold_outsideOfAHandler(t *testing.T) {
	t.Parallel()
	if err := automutex.CloseGate(t.Context(), time.Second); err == nil || !strings.Contains(err.Error(), "handler") {
		t.Errorf("got %v", err)
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: automutex.Retry}}})
		r.enqueue("work", nil)
		run := r.stage.next(t)
		for _, d := range []time.Duration{0, -1, 30} { // the last one is a bare number
			if err := automutex.CloseGate(run.ctx, d); err == nil || strings.Contains(err.Error(), "did you mean 30s?") != (d == 30) {
				t.Errorf("CloseGate for %s: %v", d, err)
			}
		}
		run.returns(nil)
	})
}

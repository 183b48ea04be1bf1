package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// What each policy does with a task that its rate, a hold or a cooldown keeps from
// starting. A hold drops no task.
func TestGate_policies(t *testing.T) {
	t.Parallel()
	rate := automutex.Rate{Starts: 1, Per: time.Hour, Burst: 1}
	for _, reason := range []string{automutex.ReasonRate, automutex.ReasonClosed, automutex.ReasonCooldown} {
		for _, policy := range []automutex.Policy{
			automutex.Retry, automutex.RetryIn(3 * time.Minute), automutex.Park, automutex.Replace, automutex.Skip, automutex.Archive, automutex.Fail,
			automutex.AfterFailure(func(_ context.Context, _ *asynq.Task, busy *automutex.BusyError) error {
				return fmt.Errorf("after: %s", busy.Reason)
			}),
		} {
			t.Run(reason+", "+policy.String(), func(t *testing.T) {
				t.Parallel()
				redistest.Each(t, func(t *testing.T, s *redistest.Server) { meetGate(t, s, reason, policy, rate) })
			})
		}
	}
}

func meetGate(t *testing.T, s *redistest.Server, reason string, policy automutex.Policy, rate automutex.Rate) {
	rule := automutex.Rule{Task: "work", On: []string{"id"}, Busy: policy, Wait: 100 * time.Millisecond}
	switch reason {
	case automutex.ReasonRate:
		rule.Rate, rule.Limit = rate, 1
	case automutex.ReasonCooldown:
		rule.Cooldown = time.Hour
	}
	r := start(t, s, setup{rules: []automutex.Rule{rule}})
	first := r.enqueue("work", one)
	run := r.stage.next(t)
	if reason == automutex.ReasonClosed {
		redistest.Must(t, automutex.CloseGate(run.ctx, time.Hour))
	}
	run.returns(nil)
	r.await(first, asynq.TaskStateCompleted)
	id := r.enqueue("work", one)
	event := r.awaitEvent(automutex.EventBusy, id)
	if event.Busy == nil || event.Busy.Reason != reason || event.Busy.ExpiresIn < 50*time.Minute || event.Busy.ExpiresIn > time.Hour || event.Busy.Holder != "" {
		t.Errorf("got %+v, %+v", event, event.Busy)
	}
	mayEnd := policy != automutex.Retry && policy != automutex.RetryIn(3*time.Minute) && policy != automutex.Replace && policy != automutex.Park
	back := !mayEnd && policy != automutex.Park || reason == automutex.ReasonClosed
	switch {
	case policy == automutex.Park:
		if info := r.awaitRetried(id, 0); !strings.Contains(info.LastErr, parkedOn(r.lockOf("work", "1").Key())) {
			t.Errorf("the last error is %q", info.LastErr)
		}
	case back:
		info := r.awaitRetried(id, 0)
		if left := time.Until(info.NextProcessAt); left < 50*time.Minute || left > time.Hour+time.Minute {
			t.Errorf("it comes back in %s, want when the gate opens", left)
		}
	case policy == automutex.Skip:
		r.await(id, asynq.TaskStateCompleted)
	case policy == automutex.Archive:
		r.await(id, asynq.TaskStateArchived)
	case policy == automutex.Fail:
		r.awaitRetried(id, 1)
	default:
		if info := r.awaitRetried(id, 1); info.LastErr != "after: "+reason {
			t.Errorf("the last error is %q", info.LastErr)
		}
	}
	if reason == automutex.ReasonClosed && mayEnd {
		r.wantPolicy(id, automutex.Retry)
	} else {
		r.wantPolicy(id, policy)
	}
	if n := r.stage.count(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// Under Wait a task waits for a gate that opens in time, and not for one that does not.
func TestGate_waitInTime(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{
			{Task: "soon", Wait: 5 * time.Minute, Busy: automutex.Skip, Rate: automutex.Rate{Starts: 1, Per: 300 * time.Millisecond, Burst: 1}, Limit: 1},
			{Task: "late", Wait: 5 * time.Minute, Busy: automutex.Skip, Rate: automutex.Rate{Starts: 1, Per: time.Hour, Burst: 1}, Limit: 1},
		}})
		r.finish(r.enqueue("late", nil))
		id := r.enqueue("late", nil)
		r.await(id, asynq.TaskStateCompleted) // at once, not after five minutes
		r.awaitEvent(automutex.EventSkipped, id)

		began := time.Now()
		r.finish(r.enqueue("soon", nil))
		id = r.enqueue("soon", nil)
		r.stage.next(t).returns(nil)
		if took := time.Since(began); took < 300*time.Millisecond {
			t.Errorf("the second ran %s after the first", took)
		}
		r.await(id, asynq.TaskStateCompleted)
	})
}

// A start counts when the key is taken, also if another rule then refuses the task.
func TestRate_severalRules(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rules := []automutex.Rule{
			{Task: "work", Name: "all", Scope: "all", Busy: automutex.Skip, Rate: automutex.Rate{Starts: 1, Per: time.Hour, Burst: 3}, Limit: 5},
			{Task: "work", Name: "tenant", Scope: "tenant", On: []string{"id"}, Busy: automutex.Skip, Rate: automutex.Rate{Starts: 1, Per: time.Hour, Burst: 1}, Limit: 5},
		}
		r := start(t, s, setup{rules: rules})
		r.finish(r.enqueue("work", one))
		for i, rule := range []string{"tenant", "tenant", "all"} {
			id := r.enqueue("work", one)
			r.await(id, asynq.TaskStateCompleted)
			if e := r.awaitEvent(automutex.EventBusy, id); e.Rule != rule || e.Busy.Reason != automutex.ReasonRate {
				t.Errorf("%d: held by %+v", i, e)
			}
		}
		if n := r.stage.count(); n != 1 {
			t.Errorf("%d runs, want 1", n)
		}
	})
}

// Under Park every task runs, none before its slot of the rate, with one worker too.
func TestRate_park(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, workers := range []int{1, 10} {
			const every, tasks = 50 * time.Millisecond, 12
			var runs atomic.Int32
			handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
				runs.Add(1)
				return nil
			})
			began := time.Now()
			r := start(t, s, setup{workers: workers, handler: handler, rules: []automutex.Rule{
				{Task: "work", Limit: 3, Busy: automutex.Park, Rate: automutex.Rate{Starts: 1, Per: every, Burst: 1}},
			}})
			var ids []string
			for range tasks {
				ids = append(ids, r.enqueue("work", nil))
			}
			for _, id := range ids {
				r.await(id, asynq.TaskStateCompleted)
			}
			if took := time.Since(began); took < (tasks-1)*every {
				t.Errorf("%d workers: %d tasks took %s, at %s for each but the first", workers, tasks, took, every)
			}
			r.stop()
			if n := runs.Load(); n != tasks {
				t.Errorf("%d workers: %d runs of %d tasks", workers, n, tasks)
			}
		}
	})
}

// Rates and limits go together, and a cooldown with a limit says when the next may begin. Unlimited is no limit.
func TestGate_withLimit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		starts := automutex.Rate{Starts: 3, Per: time.Hour, Burst: 3}
		r := start(t, s, setup{rules: []automutex.Rule{
			{Task: "rate", Limit: 2, Busy: automutex.Skip, Rate: starts},
			{Task: "cool", Limit: 2, Busy: automutex.Skip, Cooldown: time.Hour},
			{Task: "many", Limit: automutex.Unlimited, Busy: automutex.Skip, Rate: starts},
		}})
		meets := func(task, reason string) {
			t.Helper()
			if e := r.awaitEvent(automutex.EventBusy, r.enqueue(task, nil)); e.Busy.Reason != reason {
				t.Errorf("got %+v", e.Busy)
			}
		}
		atOnce := func(task string, n int) (ids []string, runs []*run) {
			for range n {
				ids = append(ids, r.enqueue(task, nil))
				runs = append(runs, r.stage.next(t))
			}
			return ids, runs
		}
		ids, runs := atOnce("rate", 2)
		meets("rate", automutex.ReasonHeld)
		for i, run := range runs {
			run.returns(nil)
			r.await(ids[i], asynq.TaskStateCompleted)
		}
		r.finish(r.enqueue("rate", nil)) // the third start
		meets("rate", automutex.ReasonRate)

		ids, runs = atOnce("cool", 2)
		runs[1].returns(nil)
		r.await(ids[1], asynq.TaskStateCompleted)
		meets("cool", automutex.ReasonCooldown)
		if runs[0].ctx.Err() != nil {
			t.Error("a cooldown ended the one beside")
		}
		runs[0].returns(nil)

		_, runs = atOnce("many", 3)
		meets("many", automutex.ReasonRate)
		for _, run := range runs {
			run.returns(nil)
		}
	})
}

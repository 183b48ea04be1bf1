package automutex

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/redistest"
)

// What each policy does with a task that its rate, a hold or a cooldown keeps from
// starting. A hold drops no task.
func TestGate_policies(t *testing.T) {
	t.Parallel()
	rate := Rate{Starts: 1, Per: time.Hour, Burst: 1}
	for _, reason := range []string{ReasonRate, ReasonHold, ReasonCooldown} {
		for _, policy := range []Policy{
			Retry, RetryIn(3 * time.Minute), Park, Replace, Skip, Archive, Fail,
			AfterFailure(func(_ context.Context, _ *asynq.Task, busy *BusyError) error {
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

func meetGate(t *testing.T, s *redistest.Server, reason string, policy Policy, rate Rate) {
	rule := Rule{Task: "work", On: []string{"id"}, Busy: policy, Wait: 100 * time.Millisecond}
	switch reason {
	case ReasonRate:
		rule.Rate = rate
	case ReasonCooldown:
		rule.Cooldown = time.Hour
	}
	r := start(t, s, setup{rules: []Rule{rule}})
	first := r.enqueue("work", one)
	run := r.stage.next(t)
	if reason == ReasonHold {
		if err := Hold(run.ctx, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	run.returns(nil)
	r.await(first, asynq.TaskStateCompleted)
	id := r.enqueue("work", one)
	event := r.awaitEvent(EventHeld, id)
	if event.Busy == nil || event.Busy.Reason != reason || event.Busy.ExpiresIn < 50*time.Minute || event.Busy.ExpiresIn > time.Hour || event.Busy.Holder != "" {
		t.Errorf("got %+v, %+v", event, event.Busy)
	}
	back := policy == Retry || policy == RetryIn(3*time.Minute) || policy == Replace || reason == ReasonHold
	switch {
	case policy == Park:
		if info := r.awaitRetried(id, 0); !strings.Contains(info.LastErr, parkedOnText(r.lockOf("work", "1").Key())) {
			t.Errorf("the last error is %q", info.LastErr)
		}
	case back:
		info := r.awaitRetried(id, 0)
		if left := time.Until(info.NextProcessAt); left < 50*time.Minute || left > time.Hour+time.Minute {
			t.Errorf("it comes back in %s, want when the gate opens", left)
		}
	case policy == Skip:
		r.await(id, asynq.TaskStateCompleted)
	case policy == Archive:
		r.await(id, asynq.TaskStateArchived)
	case policy == Fail:
		r.awaitRetried(id, 1)
	default:
		if info := r.awaitRetried(id, 1); info.LastErr != "after: "+reason {
			t.Errorf("the last error is %q", info.LastErr)
		}
	}
	if reason != ReasonHold || policy == Park {
		r.wantPolicy(id, policy)
	} else {
		r.wantPolicy(id, Retry)
	}
	if n := r.stage.count(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// Under Wait a task waits for a gate that opens in time, and not for one that does not.
func TestGate_waitInTime(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []Rule{
			{Task: "soon", Wait: 5 * time.Minute, Busy: Skip, Rate: Rate{Starts: 1, Per: 300 * time.Millisecond, Burst: 1}},
			{Task: "late", Wait: 5 * time.Minute, Busy: Skip, Rate: Rate{Starts: 1, Per: time.Hour, Burst: 1}},
		}})
		r.finish(r.enqueue("late", nil))
		id := r.enqueue("late", nil)
		r.await(id, asynq.TaskStateCompleted) // at once, not after five minutes
		r.awaitEvent(EventSkipped, id)

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

// None is charged for a start that another rule refused: the tenant's rate is used up,
// and the rate for all has its start yet.
func TestRate_severalRules(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rules := []Rule{
			{Task: "work", Name: "all", Scope: "all", Busy: Skip, Rate: Rate{Starts: 1, Per: time.Hour, Burst: 2}, Limit: 5},
			{Task: "work", Name: "tenant", Scope: "tenant", On: []string{"id"}, Busy: Skip, Rate: Rate{Starts: 1, Per: time.Hour, Burst: 1}, Limit: 5},
		}
		r := start(t, s, setup{rules: rules})
		r.finish(r.enqueue("work", one))
		for range 3 {
			id := r.enqueue("work", one)
			r.await(id, asynq.TaskStateCompleted)
			if e := r.awaitEvent(EventHeld, id); e.Rule != "tenant" || e.Busy.Reason != ReasonRate {
				t.Errorf("held by %+v", e)
			}
		}
		r.finish(r.enqueue("work", map[string]int{"id": 2}))
		id := r.enqueue("work", map[string]int{"id": 3})
		r.await(id, asynq.TaskStateCompleted)
		if e := r.awaitEvent(EventHeld, id); e.Rule != "all" {
			t.Errorf("held by %+v", e)
		}
		if n := r.stage.count(); n != 2 {
			t.Errorf("%d runs, want 2", n)
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
			r := start(t, s, setup{workers: workers, handler: handler, rules: []Rule{
				{Task: "work", Limit: 3, Busy: Park, Rate: Rate{Starts: 1, Per: every, Burst: 1}},
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

// Allow runs the task, counts it for nothing, and tells of it.
func TestRate_allow(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []Rule{{Task: "work", Busy: Allow, Rate: Rate{Starts: 1, Per: time.Hour}}}})
		r.finish(r.enqueue("work", nil))
		id := r.enqueue("work", nil)
		r.finish(id)
		if e := r.awaitEvent(EventHeld, id); e.Busy.Reason != ReasonRate {
			t.Errorf("got %+v", e.Busy)
		}
	})
}

// On its last attempt a task waits in its worker for its start.
func TestRate_lastAttempt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const every = 400 * time.Millisecond
		r := start(t, s, setup{rules: []Rule{{Task: "work", Rate: Rate{Starts: 1, Per: every}}}})
		began := time.Now()
		r.finish(r.enqueue("work", nil))
		r.finish(r.enqueue("work", nil, asynq.MaxRetry(0)))
		if took := time.Since(began); took < every {
			t.Errorf("the second ran %s after the first", took)
		}
	})
}

// Of a rate and a cooldown the one counts that ends later.
func TestGate_cooldownAndRate(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []Rule{
			{Task: "rate", Busy: Skip, Cooldown: time.Minute, Rate: Rate{Starts: 1, Per: time.Hour}},
			{Task: "cooldown", Busy: Skip, Cooldown: time.Hour, Rate: Rate{Starts: 1, Per: time.Minute}},
		}})
		for _, task := range []string{ReasonRate, ReasonCooldown} {
			r.finish(r.enqueue(task, nil))
			if e := r.awaitEvent(EventHeld, r.enqueue(task, nil)); e.Busy.Reason != task || e.Busy.ExpiresIn < 50*time.Minute {
				t.Errorf("%s: got %+v", task, e.Busy)
			}
		}
	})
}

// Rates and limits go together, and a cooldown with a limit says when the next may begin.
func TestGate_withLimit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []Rule{
			{Task: "rate", Limit: 2, Busy: Skip, Rate: Rate{Starts: 3, Per: time.Hour}},
			{Task: "cool", Limit: 2, Busy: Skip, Cooldown: time.Hour},
		}})
		a, b := r.enqueue("rate", nil), r.enqueue("rate", nil)
		first, second := r.stage.next(t), r.stage.next(t)
		full := r.enqueue("rate", nil)
		if e := r.awaitEvent(EventBusy, full); e.Busy.Reason != ReasonHeld {
			t.Errorf("got %+v", e.Busy)
		}
		first.returns(nil)
		second.returns(nil)
		r.await(a, asynq.TaskStateCompleted)
		r.await(b, asynq.TaskStateCompleted)
		r.finish(r.enqueue("rate", nil)) // the third start
		if e := r.awaitEvent(EventBusy, r.enqueue("rate", nil)); e.Busy.Reason != ReasonRate {
			t.Errorf("got %+v", e.Busy)
		}

		r.enqueue("cool", nil)
		run := r.stage.next(t)
		done := r.enqueue("cool", nil)
		other := r.stage.next(t) // whichever task it is
		other.returns(nil)
		id := r.enqueue("cool", nil)
		if e := r.awaitEvent(EventBusy, id); e.Busy.Reason == ReasonHeld {
			// It came before the first of the two had returned.
			r.await(done, asynq.TaskStateCompleted)
			e = r.awaitEvent(EventBusy, r.enqueue("cool", nil))
			if e.Busy.Reason != ReasonCooldown {
				t.Errorf("got %+v", e.Busy)
			}
		}
		if run.ctx.Err() != nil {
			t.Error("a cooldown ended the one beside")
		}
		run.returns(nil)
	})
}

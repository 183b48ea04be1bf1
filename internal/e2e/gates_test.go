package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Rates, CloseGate, RetryAfter, Cooldown, MaxHold and Wait, and how a lease lives through them.

// What each policy does with a task that its rate, CloseGate or a cooldown keeps from starting. CloseGate drops no
// task.
func TestGate_policies(t *testing.T) {
	t.Parallel()
	rate := automutex.Rate{Starts: 1, Per: time.Hour, Burst: 1}
	for _, reason := range []string{automutex.ReasonRate, automutex.ReasonClosed, automutex.ReasonCooldown} {
		for _, policy := range []automutex.Policy{
			automutex.Retry, automutex.RetryIn(3 * time.Minute), automutex.Park, automutex.Replace, automutex.Skip,
			automutex.Archive, automutex.Fail,
			automutex.AfterFailure(func(_ context.Context, _ *asynq.Task, busy *automutex.BusyError) error {
				return fmt.Errorf("after: %s", busy.Reason)
			}),
		} {
			t.Run(reason+", "+policy.String(), func(t *testing.T) {
				each(t, func(t *testing.T, s *redistest.Server) { meetGate(t, s, reason, policy, rate) })
			})
		}
	}
}

func meetGate(t *testing.T, s *redistest.Server, reason string, policy automutex.Policy, rate automutex.Rate) {
	rule := automutex.Rule{Task: "work", On: onID, Busy: policy, Wait: 100 * time.Millisecond}
	switch reason {
	case automutex.ReasonRate:
		rule.Rate, rule.Limit = rate, 1
	case automutex.ReasonCooldown:
		rule.Cooldown = time.Hour
	}
	r := start(t, s, setup{rules: []automutex.Rule{rule}})
	r.enqueueOne()
	run := r.next()
	if reason == automutex.ReasonClosed {
		redistest.Must(t, automutex.CloseGate(run.ctx, time.Hour))
	}
	r.ends(run)
	id := r.enqueueOne()
	event := r.awaitEvent(automutex.EventBusy, id)
	if event.Busy == nil || event.Busy.Reason != reason || event.Busy.ExpiresIn < 50*time.Minute ||
		event.Busy.ExpiresIn > time.Hour || event.Busy.Holder != "" {
		t.Errorf("got %+v, %+v", event, event.Busy)
	}
	mayEnd := policy != automutex.Retry && policy != automutex.RetryIn(3*time.Minute) && policy != automutex.Replace &&
		policy != automutex.Park
	back := !mayEnd && policy != automutex.Park || reason == automutex.ReasonClosed
	switch {
	case policy == automutex.Park:
		says(t, r.awaitRetried(id, 0).LastErr, "parked on "+r.lockOf("work", "1").Key()+",")
	case back:
		info := r.awaitRetried(id, 0)
		if left := time.Until(info.NextProcessAt); left < 50*time.Minute || left > time.Hour+time.Minute {
			t.Errorf("it comes back in %s, want when the gate opens", left)
		}
	case policy == automutex.Skip:
		r.awaitDone(id)
	case policy == automutex.Archive:
		r.awaitArchived(id)
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
	r.wantRuns(1)
}

// Under Wait a task waits for a gate that opens in time, and not for one that does not.
func TestGate_waitInTime(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{
		{Task: "soon", Wait: 5 * time.Minute, Busy: automutex.Skip,
			Rate: automutex.Rate{Starts: 1, Per: 300 * time.Millisecond, Burst: 1}, Limit: 1},
		{Task: "late", Wait: 5 * time.Minute, Busy: automutex.Skip,
			Rate: automutex.Rate{Starts: 1, Per: time.Hour, Burst: 1}, Limit: 1},
	}}, func(t *testing.T, r *rig) {
		r.finish(r.enqueue("late", nil))
		id := r.enqueue("late", nil)
		r.awaitDone(id) // at once, not after five minutes
		r.awaitEvent(automutex.EventSkipped, id)

		began := time.Now()
		r.finish(r.enqueue("soon", nil))
		id = r.enqueue("soon", nil)
		r.next().returns(nil)
		if took := time.Since(began); took < 300*time.Millisecond {
			t.Errorf("the second ran %s after the first", took)
		}
		r.awaitDone(id)
	})
}

// An operator's rate bounds what the starts on three servers cost together, and so does each change of it.
func TestRate_orderedWithCost(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		var mu sync.Mutex
		var starts [][2]int64 // when, by Redis' clock (us), as fences are, and the cost
		cost := func(_ context.Context, t *asynq.Task) (int, error) { return strconv.Atoi(string(t.Payload())) }
		o := setup{queue: redistest.Name(t), prefix: redistest.Name(t), rules: []automutex.Rule{{Limit: 1,
			Rate: automutex.Rate{Starts: 50, Per: time.Second}, Fence: true, Cost: cost}}}
		o.handler = func(ctx context.Context, t *asynq.Task) error {
			n, _ := cost(ctx, t)
			at, err := automutex.Fence(ctx)
			mu.Lock()
			defer mu.Unlock()
			starts = append(starts, [2]int64{at, int64(n)})
			return err
		}
		r := start(t, s, o)
		start(t, s, o)
		start(t, s, o)
		for i := range 300 {
			r.enqueue("work", strconv.Itoa(1+i%3))
		}
		for _, rate := range []lock.ControlRate{{Starts: 10, Per: time.Second}, {Starts: 2, Per: time.Second, Burst: 2},
			{Starts: 10, Per: time.Second, Burst: 3}} {
			c := r.guard.Controls()
			redistest.Must(t, c.SetRate(t.Context(), "work", rate.Starts, rate.Per, rate.Burst, ""))
			list, err := c.List(t.Context())
			redistest.Must(t, err)
			// Waiters, who ask once a second, bring the rate by which a release grants.
			inForce := list[0].Since.Add(lock.ControlDelay + time.Second).UnixMicro()
			var all [][2]int64
			eventually(t, func() bool {
				mu.Lock()
				defer mu.Unlock()
				all = slices.DeleteFunc(slices.Clone(starts), func(one [2]int64) bool { return one[0] < inForce })
				return len(all) > 4
			}, "starts at %s", rate)
			slices.SortFunc(all, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
			for i, from := range all { // a fence is no earlier than its start, and no later than the next one
				sum := int64(0)
				for _, to := range all[i+1:] {
					most := int64(max(1, rate.Burst)+2) + (to[0]-from[0])*int64(rate.Starts)/rate.Per.Microseconds()
					if sum += to[1]; sum > most {
						t.Errorf("%s: costs of %d within %d us, want %d at most", rate, sum, to[0]-from[0], most)
					}
				}
			}
		}
	})
}

// A task that the rate of a later rule refuses takes no start of an earlier one.
func TestRate_severalRules(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rules := []automutex.Rule{
			{Task: "work", Name: "all", Scope: "all", Busy: automutex.Skip,
				Rate: automutex.Rate{Starts: 1, Per: time.Hour, Burst: 3}, Limit: 5},
			{Task: "work", Name: "tenant", Scope: "tenant", On: onID, Busy: automutex.Skip,
				Rate: automutex.Rate{Starts: 1, Per: time.Hour, Burst: 1}, Limit: 5},
		}
		r := start(t, s, setup{rules: rules})
		r.finish(r.enqueueOne())
		for i := range 4 {
			id := r.enqueueOne()
			r.awaitDone(id)
			if e := r.awaitEvent(automutex.EventBusy, id); e.Rule != "tenant" || e.Busy.Reason != automutex.ReasonRate {
				t.Errorf("%d: held by %+v", i, e)
			}
		}
		for tenant := range 2 {
			r.finish(r.enqueue("work", map[string]int{"id": 2 + tenant}))
		}
		if e := r.awaitEvent(automutex.EventBusy, r.enqueue("work", map[string]int{"id": 9})); e.Rule != "all" {
			t.Errorf("three starts of all: held by %+v", e)
		}
	})
}

// Under Park every task runs, none before its slot of the rate, with one worker too.
func TestRate_park(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, workers := range []int{1, 10} {
			const every, tasks = 50 * time.Millisecond, 12
			var runs atomic.Int32
			handler := func(context.Context, *asynq.Task) error { runs.Add(1); return nil }
			began := time.Now()
			r := start(t, s, setup{workers: workers, handler: handler, rules: []automutex.Rule{
				{Limit: 3, Busy: automutex.Park, Rate: automutex.Rate{Starts: 1, Per: every, Burst: 1}},
			}})
			var ids []string
			for range tasks {
				ids = append(ids, r.enqueue("work", nil))
			}
			for _, id := range ids {
				r.awaitDone(id)
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
	each(t, func(t *testing.T, s *redistest.Server) {
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
		atOnce := func(task string, n int) (runs []*run) {
			for range n {
				r.enqueue(task, nil)
				runs = append(runs, r.next())
			}
			return runs
		}
		runs := atOnce("rate", 2)
		meets("rate", automutex.ReasonHeld)
		for _, run := range runs {
			r.ends(run)
		}
		r.finish(r.enqueue("rate", nil)) // the third start
		meets("rate", automutex.ReasonRate)

		runs = atOnce("cool", 2)
		r.ends(runs[1])
		meets("cool", automutex.ReasonCooldown)
		if runs[0].ctx.Err() != nil {
			t.Error("a cooldown ended the one beside")
		}
		runs[0].returns(nil)

		runs = atOnce("many", 3)
		meets("many", automutex.ReasonRate)
		for _, run := range runs {
			run.returns(nil)
		}
	})
}

// A handler that closes its key and asks to come back spends no attempt, and comes back when the gate opens.
func TestHold_andRetryAfter(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, policy := range []automutex.Policy{automutex.Retry, automutex.Park} {
			t.Run(policy.String(), func(t *testing.T) {
				t.Parallel()
				const d = 4 * time.Second // a busy machine may take seconds until the other task meets the hold
				var failures []error
				var mu sync.Mutex
				r := start(t, s, setup{rules: []automutex.Rule{{On: onID, Busy: policy}},
					served: func(c *asynq.Config) {
						comingBack(c)
						c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
							mu.Lock()
							defer mu.Unlock()
							failures = append(failures, err)
						})
					}})
				id := r.enqueueOne()
				run := r.next()
				began := time.Now()
				redistest.Must(t, automutex.CloseGate(run.ctx, d))
				other := r.enqueueOne()
				r.awaitEvent(automutex.EventBusy, other)
				left := time.Until(began.Add(d)) // a task that asks for much longer than its gate is closed does not park
				run.returns(automutex.RetryAfter(left, errors.New("429")))
				for range 2 {
					run = r.next()
					if took := time.Since(began); took < d {
						t.Errorf("%s: one ran %s after a hold of %s", policy, took, d)
					}
					run.returns(nil)
				}
				for _, id := range []string{id, other} {
					r.awaitSpent(id, asynq.TaskStateCompleted, 0)
				}
				if e := r.awaitEvent(automutex.EventRetried, id); e.Delay < left || e.Delay > left+time.Second {
					t.Errorf("%s: got %+v", policy, e)
				}
				// A task that came while the other one ran has returned once more, with EventBusy before.
				returned, busy := len(r.seen.list(automutex.EventRetried, automutex.EventParked)),
					len(r.seen.list(automutex.EventBusy))
				if returned != busy+1 {
					t.Errorf("%s: tasks returned once and %d times since it was busy: %d events", policy, busy, returned)
				}
				r.stop()
				if len(failures) > 0 {
					t.Errorf("%s: the ErrorHandler heard of %v", policy, failures)
				}
			})
		}
	})
}

// After a RetryAfter in its worker a task has all of its rules' Wait again, of which a gate has taken some before.
func TestRetryAfter_anew(t *testing.T) {
	const wait = 6 * time.Second
	rules := []automutex.Rule{{Name: "a", Task: "work", Scope: "a", On: onID, Busy: automutex.Retry},
		{Name: "b", Task: "work", Scope: "b", On: onID, Busy: automutex.Skip, Wait: wait}}
	eachRig(t, setup{rules: rules}, func(t *testing.T, r *rig) {
		r.enqueueOne()
		closes := r.next()
		redistest.Must(t, automutex.CloseGate(closes.ctx, wait/6))
		r.ends(closes)
		began := time.Now()
		id := r.enqueueOne(asynq.MaxRetry(0))
		run := r.nextIs(id)
		var held *lock.Lease
		var wg sync.WaitGroup
		redistest.Go(&wg, func() { held, _ = r.lockOf("b", "1").Lock(t.Context()) })
		r.awaitLine(1, "b", "1")
		eventually(t, func() bool { return time.Since(began) > wait+time.Second }, "the Wait is over")
		run.returns(automutex.RetryAfter(time.Millisecond, errors.New("429")))
		wg.Wait()
		r.awaitLine(1, "b", "1")
		r.free(held)
		r.finish(id)
	})
}

// RetryAfter needs no rule, works wrapped, and does not win against SkipRetry.
func TestRetryAfter_withoutRule(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{{Busy: automutex.Retry}}}, func(t *testing.T, r *rig) {
		id := r.enqueue("other", nil)
		r.next().returns(fmt.Errorf("upstream: %w", automutex.RetryAfter(20*time.Minute, errors.New("429 \xff"))))
		info := r.awaitRetried(id, 0)
		if left := time.Until(info.NextProcessAt); left < 19*time.Minute || left > 20*time.Minute+2*time.Second ||
			!strings.Contains(info.LastErr, "429") {
			t.Errorf("it comes back in %s, last error %q", left, info.LastErr)
		}
		id = r.enqueue("other", nil)
		r.next().returns(automutex.RetryAfter(math.MaxInt64, errors.New("never")))
		if left := time.Until(r.awaitRetried(id, 0).NextProcessAt); left < 365*24*time.Hour {
			t.Errorf("after the longest delay it comes back in %s", left)
		}
		for _, task := range []string{"other", "work"} {
			id = r.enqueue(task, nil)
			r.next().returns(automutex.RetryAfter(time.Minute, fmt.Errorf("gone: %w", asynq.SkipRetry)))
			r.awaitArchived(id)
		}
	})
}

// On its last attempt the task waits in its worker, without its lock, and runs again.
func TestRetryAfter_lastAttempt(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		const pause = 3 * time.Second
		told, served := telling()
		r := start(t, s, setup{rules: []automutex.Rule{{Busy: automutex.Retry}}, served: served})
		for _, task := range []string{"work", "other"} {
			id := r.enqueue(task, nil, asynq.MaxRetry(0))
			run := r.next()
			began := time.Now()
			run.returns(automutex.RetryAfter(pause, nil))
			if task == "work" {
				eventually(t, func() bool { return !r.locked("work") }, "the lock is free meanwhile")
			}
			run = r.next()
			if took := time.Since(began); took < pause || run.id != id {
				t.Errorf("%s: %s ran after %s", task, run.id, took)
			}
			r.ends(run)

			// There is no time for that: asynq archives it with the handler's error, of which the ErrorHandler hears.
			id = r.enqueue(task, nil, asynq.MaxRetry(0), asynq.Timeout(time.Minute))
			r.next().returns(automutex.RetryAfter(time.Hour, errors.New("429")))
			says(t, r.awaitArchived(id).LastErr, "429")
			<-told
		}
		if len(told) > 0 {
			t.Errorf("the ErrorHandler was told %v as well", <-told)
		}
	})
}

func TestHold_outsideOfAHandler(t *testing.T) {
	t.Parallel()
	says(t, fmt.Sprint(automutex.CloseGate(t.Context(), time.Second)), "handler")
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Busy: automutex.Retry}}})
		r.enqueue("work", nil)
		run := r.next()
		for _, d := range []time.Duration{0, -1, 30} { // the last one is a bare number
			if err := automutex.CloseGate(run.ctx, d); err == nil || strings.Contains(err.Error(),
				"did you mean 30s?") != (d == 30) {
				t.Errorf("CloseGate for %s: %v", d, err)
			}
		}
		run.returns(nil)
	})
}

// At most one success for each key and period; a failure does not count.
func TestLifetime_cooldown(t *testing.T) {
	rules := []automutex.Rule{{On: onID, Cooldown: time.Hour, Busy: automutex.Skip}}
	eachRig(t, setup{rules: rules}, func(t *testing.T, r *rig) {
		failed := r.enqueueOne()
		r.next().returns(errors.New("own"))
		r.awaitRetried(failed, 1)
		r.finish(r.enqueueOne())
		r.wantLocked(true, "work", "1")
		skipped := r.enqueueOne()
		r.awaitDone(skipped)
		busy := r.awaitEvent(automutex.EventBusy, skipped).Busy
		if busy.Holder != "" || busy.HolderTask != "" || busy.SameTask || busy.ExpiresIn < 59*time.Minute ||
			busy.ExpiresIn > time.Hour {
			t.Errorf("got %+v", busy)
		}
		// The failed one's retry is the same task as none: it was not the cooldown's.
		r.rerun(failed)
		r.awaitDone(failed)
		r.awaitEvent(automutex.EventSkipped, failed)
		// The done one again, as a re-queued task would come: skipped as well.
		r.finish(r.enqueue("work", map[string]int{"id": 2}))
		r.wantRuns(3)
	})
}

// The cooldown counts from when the run began.
func TestLifetime_cooldownEnds(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		const cooldown, took = 300 * time.Millisecond, 100 * time.Millisecond
		r := start(t, s, setup{rules: []automutex.Rule{
			{Task: "long", Cooldown: time.Minute, Busy: automutex.Retry},
			{Cooldown: cooldown, Wait: time.Minute, Busy: automutex.Retry},
		}})
		before := time.Now()
		r.enqueue("long", nil)
		run := r.next()
		<-time.After(took)
		r.ends(run)
		gate, rest := r.stored("long").Gate, time.Minute-time.Since(before)
		if gate.Reason != automutex.ReasonCooldown || gate.OpensIn > time.Minute-took ||
			gate.OpensIn < rest-10*time.Millisecond {
			t.Errorf("got %+v; want a cooldown for %s", gate, rest)
		}
		before = time.Now()
		r.enqueue("work", nil)
		run = r.next()
		second := r.enqueue("work", nil)
		run.returns(nil)
		r.finish(second)
		if after := time.Since(before); after < cooldown {
			t.Errorf("the second began and ended %s after the first began", after)
		}
	})
}

// MaxHold: the handler is told, and the key is not given back under it.
func TestLifetime_maxHold(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{
		{Task: "long", MaxHold: soon, Busy: automutex.Retry},
		{Task: "short", MaxHold: soon, TTL: 3 * soon, Wait: time.Minute, Busy: automutex.Retry},
	}}, func(t *testing.T, r *rig) {
		id := r.enqueue("long", nil)
		run := r.next()
		if cause := run.awaitEnd(t); !errors.Is(cause, lock.ErrLost) || !strings.Contains(cause.Error(), "MaxHold") {
			t.Errorf("the context ended with %v", cause)
		}
		if event := r.awaitEvent(automutex.EventLost, id); event.Held < soon/2 || !errors.Is(event.Err, lock.ErrLost) {
			t.Errorf("got %+v", event)
		}
		r.wantLocked(true, "long")
		r.ends(run)
		eventually(t, func() bool { return !r.locked("long") }, "the key is free when the handler has returned")

		// The deadline passes, and the next in line has the key.
		began := time.Now()
		r.enqueue("short", nil)
		stuck := r.next()
		r.enqueue("short", nil)
		second := r.next()
		if after := time.Since(began); after < soon {
			t.Errorf("the next has the key after %s, TTL %s", after, 3*soon)
		}
		stuck.returns(nil) // late, and harmless
		<-stuck.left
		r.wantLocked(true, "short")
		r.ends(second)
	})
}

// Inspector.CancelProcessing: the handler is told, asynq files the retry, and
// the key stays taken until the handler returns.
func TestLifetime_cancelProcessing(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{{Busy: automutex.Retry}}}, func(t *testing.T, r *rig) {
		id := r.enqueue("work", nil)
		run := r.next()
		eventually(t, func() bool {
			// The message goes to whom listens at that moment.
			err := r.inspector.CancelProcessing(id)
			return err == nil && run.ctx.Err() != nil
		}, "the handler is told")
		if cause := context.Cause(run.ctx); !errors.Is(cause, context.Canceled) || errors.Is(cause, lock.ErrLost) {
			t.Errorf("the context ended with %v", cause)
		}
		if event := r.awaitEvent(automutex.EventOverdue, id); event.Held <= 0 || event.Rule != "work" ||
			event.Key != r.lockOf("work").Key() {
			t.Errorf("got %+v", event)
		}
		if !strings.Contains(r.log.Text(0), "although its task's context has ended") {
			t.Error("nothing is logged")
		}
		r.awaitRetried(id, 1)
		r.wantLocked(true, "work")
		run.returns(nil)
		<-run.left
		eventually(t, func() bool { return !r.locked("work") }, "the key is free")
		r.noEvents(automutex.EventLost)
	})
}

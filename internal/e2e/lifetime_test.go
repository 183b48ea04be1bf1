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
	"github.com/automutex/automutex/lock"
)

// Cooldown, MaxHold, Wait, and how a lease lives through them.

// At most one success for each key and period; a failure does not count.
func TestLifetime_cooldown(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Cooldown: time.Hour, Busy: automutex.Skip}}})
		failed := r.enqueue("work", one)
		r.stage.next(t).returns(errors.New("own"))
		r.awaitRetried(failed, 1)
		done := r.enqueue("work", one)
		r.stage.next(t).returns(nil)
		r.await(done, asynq.TaskStateCompleted)
		if !r.locked("work", "1") {
			t.Error("the key does not cool down")
		}
		skipped := r.enqueue("work", one)
		r.await(skipped, asynq.TaskStateCompleted)
		busy := r.awaitEvent(automutex.EventBusy, skipped).Busy
		if busy.Holder != "" || busy.HolderTask != "" || busy.SameTask || busy.ExpiresIn < 59*time.Minute || busy.ExpiresIn > time.Hour {
			t.Errorf("got %+v", busy)
		}
		// The failed one's retry is the same task as none: it was not the
		// cooldown's.
		r.rerun(failed)
		r.await(failed, asynq.TaskStateCompleted)
		r.awaitEvent(automutex.EventSkipped, failed)
		// The done one again, as a re-queued task would come: skipped as well.
		other := r.enqueue("work", map[string]int{"id": 2})
		r.stage.next(t).returns(nil)
		r.await(other, asynq.TaskStateCompleted)
		if r.stage.count() != 3 {
			t.Errorf("%d runs", r.stage.count())
		}
	})
}

// The cooldown counts from when the run began.
func TestLifetime_cooldownEnds(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const cooldown, took = 300 * time.Millisecond, 100 * time.Millisecond
		r := start(t, s, setup{rules: []automutex.Rule{
			{Task: "long", Cooldown: time.Minute, Busy: automutex.Retry},
			{Task: "work", Cooldown: cooldown, Wait: time.Minute, Busy: automutex.Retry},
		}})
		before := time.Now()
		long := r.enqueue("long", nil)
		run := r.stage.next(t)
		<-time.After(took)
		run.returns(nil)
		r.await(long, asynq.TaskStateCompleted)
		gate, rest := r.stored("long").Gate, time.Minute-time.Since(before)
		if gate.Reason != automutex.ReasonCooldown || gate.OpensIn > time.Minute-took || gate.OpensIn < rest-10*time.Millisecond {
			t.Errorf("got %+v; want a cooldown for %s", gate, rest)
		}
		before = time.Now()
		r.enqueue("work", nil)
		run = r.stage.next(t)
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
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{
			{Task: "long", MaxHold: soon, Busy: automutex.Retry},
			{Task: "short", MaxHold: soon, TTL: 3 * soon, Wait: time.Minute, Busy: automutex.Retry},
		}})
		id := r.enqueue("long", nil)
		run := r.stage.next(t)
		if cause := run.awaitEnd(t); !errors.Is(cause, lock.ErrLost) || !strings.Contains(cause.Error(), "MaxHold") {
			t.Errorf("the context ended with %v", cause)
		}
		if event := r.awaitEvent(automutex.EventLost, id); event.Held < soon-10*time.Millisecond || !errors.Is(event.Err, lock.ErrLost) {
			t.Errorf("got %+v", event)
		}
		if !r.locked("long") {
			t.Error("the key was given back while the handler runs")
		}
		run.returns(nil)
		r.await(id, asynq.TaskStateCompleted)
		redistest.Eventually(t, patience, func() bool { return !r.locked("long") }, "the key is free when the handler has returned")

		// The deadline passes, and the next in line has the key.
		r.enqueue("short", nil)
		stuck := r.stage.next(t)
		taken := time.Now()
		next := r.enqueue("short", nil)
		second := r.stage.next(t)
		if after := time.Since(taken); after < soon {
			t.Errorf("the next has the key after %s, TTL %s", after, 2*soon)
		}
		stuck.returns(nil) // late, and harmless
		<-stuck.left
		if !r.locked("short") {
			t.Error("the late one gave back its successor's key")
		}
		second.returns(nil)
		r.await(next, asynq.TaskStateCompleted)
	})
}

// Wait stands in line in the worker, first come, first served.
func TestLifetime_waitInOrder(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, free := busyRig(t, s, automutex.Rule{Wait: time.Minute, Fence: true, Busy: automutex.Retry}, setup{})
		var ids, ran []string
		for i := range 5 {
			ids = append(ids, r.enqueue("work", one))
			r.awaitLine(i+1, "work", "1")
		}
		r.stage.none(t)
		free()
		for range ids {
			run := r.stage.next(t)
			r.stage.none(t)
			ran = append(ran, run.id)
			run.returns(nil)
		}
		if !slices.Equal(ran, ids) {
			t.Errorf("they ran as %v, and came as %v", ran, ids)
		}
		r.await(ids[4], asynq.TaskStateCompleted)
		if event := r.awaitEvent(automutex.EventAcquired, ids[4]); event.Waited <= 0 {
			t.Errorf("got %+v", event)
		}
		if events := r.seen.list(automutex.EventBusy); len(events) > 0 {
			t.Errorf("events %v", events)
		}
		if len(r.stage.fences) == 0 || !slices.IsSorted(r.stage.fences) {
			t.Errorf("fences %v", r.stage.fences)
		}
	})
}

// Inspector.CancelProcessing: the handler is told, asynq files the retry, and
// the key stays taken until the handler returns.
func TestLifetime_cancelProcessing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: automutex.Retry}}})
		id := r.enqueue("work", nil)
		run := r.stage.next(t)
		redistest.Eventually(t, patience, func() bool {
			// The message goes to whom listens at that moment.
			err := r.inspector.CancelProcessing(id)
			return err == nil && run.ctx.Err() != nil
		}, "the handler is told")
		if cause := context.Cause(run.ctx); !errors.Is(cause, context.Canceled) || errors.Is(cause, lock.ErrLost) {
			t.Errorf("the context ended with %v", cause)
		}
		if event := r.awaitEvent(automutex.EventOverdue, id); event.Held <= 0 || event.Rule != "work" || event.Key != r.lockOf("work").Key() {
			t.Errorf("got %+v", event)
		}
		if !strings.Contains(r.log.Text(0), "although its task's context has ended") {
			t.Error("nothing is logged")
		}
		r.awaitRetried(id, 1)
		if !r.locked("work") {
			t.Error("the key is free while the handler runs")
		}
		run.returns(nil)
		<-run.left
		redistest.Eventually(t, patience, func() bool { return !r.locked("work") }, "the key is free")
		if events := r.seen.list(automutex.EventLost); len(events) > 0 {
			t.Errorf("events %v", events)
		}
	})
}

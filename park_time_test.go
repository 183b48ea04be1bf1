package automutex

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/redistest"
)

// What a wait in the worker leaves of the task's own time.

// A task that waits in its worker parks when half of its Timeout is over, and
// comes back with all of it.
func TestPark_waitsForHalfOfTheTimeoutAtMost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const timeout = 8 * time.Second
		r, free := heldRig(t, s, setup{})
		id := r.enqueue("work", one, asynq.Timeout(timeout))
		r.awaitEvent(EventWaiting, id)
		busy := r.awaitEvent(EventParked, id).Busy
		if busy.Waited < timeout/2-time.Second || busy.Waited > timeout-2*margin {
			t.Errorf("it waited for %s of its %s", busy.Waited, timeout)
		}
		r.awaitParked(id)
		free()
		run := r.stage.next(t)
		if deadline, _ := run.ctx.Deadline(); time.Until(deadline) < timeout/2 {
			t.Errorf("its handler begins with %s of its %s", time.Until(deadline), timeout)
		}
		run.returns(nil)
		r.await(id, asynq.TaskStateCompleted)
	})
}

func TestPark_parkBy(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		came, deadline, want time.Duration // from now
	}{
		{0, 10 * time.Second, 5 * time.Second},
		// For its second lock it counts from when it came, not from now.
		{-6 * time.Second, 4 * time.Second, -time.Second},
		// The answer has to be there before the deadline.
		{0, time.Second, 0},
		{0, 1500 * time.Millisecond, 500 * time.Millisecond},
	} {
		ctx, cancel := context.WithDeadline(context.Background(), now.Add(c.deadline))
		d := &delivery{ctx: ctx, arrivedAt: now.Add(c.came)}
		if by, ok := d.parkDeadline(); !ok || !by.Equal(now.Add(c.want)) {
			t.Errorf("came %s, deadline %s: parks at %s, %t; want %s", c.came, c.deadline, by.Sub(now), ok, c.want)
		}
		cancel()
	}
	if _, ok := (&delivery{ctx: context.Background(), arrivedAt: now}).parkDeadline(); ok {
		t.Error("a task without a deadline parks for it")
	}
}

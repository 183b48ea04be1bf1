package e2e

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
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
		r.awaitEvent(automutex.EventWaiting, id)
		busy := r.awaitEvent(automutex.EventParked, id).Busy
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

package e2e

import (
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Past MaxWaiting it parks at once, though workers are free.
func TestPark_maxWaiting(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{guarded: func(c *automutex.Config) { c.MaxWaiting = 1 }})
		waits := r.enqueue("work", one)
		r.awaitStored(1, 0, "work", "1")
		parks := r.enqueue("work", one)
		r.awaitParked(parks)
		r.awaitStored(1, 1, "work", "1")
		free()
		r.finish(waits)
		r.finish(parks)
	})
}

// In a program that wraps single handlers, the workers of the others count too: Park does not
// hold the last worker.
func TestPark_someHandlersWrapped(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{workers: 3, rules: []automutex.Rule{{Task: "work", Busy: automutex.Park}}, wrap: func(g *automutex.Guard, h asynq.Handler) asynq.Handler {
			mux := asynq.NewServeMux()
			mux.Handle("work", g.Middleware(h))
			mux.Handle("other", h)
			return mux
		}})
		first := r.enqueue("work", nil)
		holder := r.stage.next(t)
		long := r.enqueue("other", nil)
		busy := r.stage.next(t)
		second := r.enqueue("work", nil) // waits in the last worker, or parks
		r.awaitParked(second)
		quick := r.enqueue("other", nil)
		r.finish(quick)
		holder.returns(nil)
		r.await(first, asynq.TaskStateCompleted)
		r.finish(second)
		busy.returns(nil)
		r.await(long, asynq.TaskStateCompleted)
	})
}

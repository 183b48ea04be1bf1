package demo

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// Note is the first thing that a handler does: it notes that the task runs. end is the last
// thing, and takes what the handler returns.
func (d *Demo) Note(ctx context.Context, t *asynq.Task) (end func(error)) {
	id, _ := asynq.GetTaskID(ctx)
	entity, _ := d.entity(t.Type(), t.Payload())
	return d.rec.begin(entity, id, t.Type())
}

// errOnce is why a task of -in-order fails once.
var errOnce = errors.New("the receiver answers 503")

// failsOnce reports whether the task fails in this attempt: one in ten does, in its first one.
func (d *Demo) failsOnce(ctx context.Context) bool {
	id, _ := asynq.GetTaskID(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	return d.InOrder && retried == 0 && strings.HasSuffix(id, "5")
}

// Work takes as long as -work says, give or take half, unless ctx ends before. With -in-order it may fail.
func (d *Demo) Work(ctx context.Context) error {
	if d.failsOnce(ctx) {
		return errOnce
	}
	if d.work <= 0 {
		return nil
	}
	timer := time.NewTimer(d.work/2 + rand.N(d.work))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Observe notes what no handler sees: tasks that were skipped, replaced or parked.
func (d *Demo) Observe(_ context.Context, e automutex.Event) {
	switch e.Kind {
	case automutex.EventSkipped:
		d.rec.skip(e.TaskID)
	case automutex.EventReplaced:
		d.rec.replace(e.TaskID)
	case automutex.EventParked:
		d.rec.park(e.TaskID)
	case automutex.EventAcquired, automutex.EventBusy, automutex.EventRetried:
		d.rec.back(e.TaskID, e.Waited)
	}
}

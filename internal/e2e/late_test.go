package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/unique"
)

// TestLate in examples/trust/simulate has what becomes of late tasks.
func TestStartBy(t *testing.T) {
	redistest.EachInParallel(t, func(t *testing.T, s *redistest.Server) {
		past, future := automutex.StartBy(time.Now().Add(-time.Hour)), automutex.StartBy(time.Now().Add(time.Hour))
		asked := make(chan *automutex.BusyError, 9)
		rules := []automutex.Rule{{Task: "work", On: onID}, {Task: "ask", StartWithin: time.Hour,
			Late: automutex.AfterFailure(func(_ context.Context, _ *asynq.Task, busy *automutex.BusyError) error {
				asked <- busy
				return busy
			})}}
		r, c := orderRig(t, s, setup{rules: rules})
		enqueue := func(c automutex.Enqueuer, task *asynq.Task, more ...asynq.Option) string {
			info, err := c.EnqueueContext(t.Context(), task, r.options(more)...)
			redistest.Must(t, err)
			return info.ID
		}
		work, ask := asynq.NewTask("work", []byte(`{"id":1}`)), asynq.NewTask("ask", nil)
		late := enqueue(c, work, past)
		info := r.awaitArchived(late)
		if e := r.awaitEvent(automutex.EventLate, late); e.Policy != automutex.Archive || e.Busy.LateBy < time.Hour ||
			!errors.Is(e.Busy, automutex.ErrBusy) || !strings.Contains(info.LastErr, "late by 1h") {
			t.Errorf("%+v, %q", e, info.LastErr)
		}
		r.awaitArchived(enqueue(c, ask, past))
		if busy := <-asked; busy.Reason != automutex.ReasonLate || busy.Rule != "ask" || busy.Holder != "" {
			t.Errorf("the function got %+v", busy)
		}
		r.none()
		redistest.Must(t, r.inspector.RunTask(r.queue, late)) // an operator may start it
		runs := func(id string) { r.ends(r.nextIs(id)) }
		runs(late)
		runs(enqueue(c, work, past, future)) // the last one counts
		for range 2 {                        // these have none
			runs(enqueue(r.client, work, past))
			runs(enqueue(c, asynq.NewTask("work", []byte(`{"id":1}`), past)))
			runs(enqueue(r.client, ask))
		}
		if strings.Count(r.log.Text(slog.LevelWarn), "may start at any time") != 1 {
			t.Error("it is not logged once that a task has no time")
		}
		once, err := unique.New(c, r.inspector, r.rdb, unique.Config{Prefix: r.cfg.Prefix,
			Rules: []unique.Rule{{Task: "work", On: onID, Until: unique.UntilStart, Queue: r.queue}}})
		redistest.Must(t, err)
		r.awaitArchived(enqueue(once, work, past))
		for range 2 { // an ID that is used again
			id := enqueue(c, ask, past, asynq.TaskID("again"))
			r.awaitArchived(id)
			redistest.Must(t, r.inspector.DeleteTask(r.queue, id))
			id = enqueue(c, work, past, asynq.TaskID("as ever"))
			r.awaitArchived(id)
			redistest.Must(t, r.inspector.DeleteTask(r.queue, id))
		}
		for task, more := range map[*asynq.Task][]asynq.Option{
			asynq.NewTask("other", nil): {past}, asynq.NewTask("work", nil): {past, asynq.Group("g")},
			asynq.NewTask("ask", nil):                           {asynq.Group("g")},
			asynq.NewTask("work", nil, asynq.Unique(time.Hour)): {past},
		} {
			_, err := c.Enqueue(task, more...)
			says(t, fmt.Sprint(err), "is not enqueued")
		}
	})
}

// A task that comes late is no newer one, also while its function is asked: under Replace an older one runs. One that
// came in time before is forgotten.
func TestLate_replacesNobody(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		asked, answer := make(chan string), make(chan error)
		rule := replacing(automutex.Rule{Wait: time.Hour, Late: automutex.AfterFailure(
			func(ctx context.Context, _ *asynq.Task, _ *automutex.BusyError) error {
				id, _ := asynq.GetTaskID(ctx)
				asked <- id
				return <-answer
			})})
		r, c := orderRig(t, s, setup{rules: []automutex.Rule{rule}})
		held := r.take("work", "1")
		old := r.enqueueOne()
		r.awaitLine(1, "work", "1")
		info, err := c.Enqueue(asynq.NewTask("work", []byte(`{"id":1}`)),
			r.options([]asynq.Option{automutex.StartBy(time.Now().Add(-time.Second))})...)
		redistest.Must(t, err)
		if id := <-asked; id != info.ID {
			t.Fatalf("the function was asked of %s", id)
		}
		r.free(held)
		r.nextIs(old).returns(nil)
		answer <- nil
		r.awaitDone(info.ID)
		r.awaitDone(old)
		r.awaitForgotten("work", "1")
	})
}

// What cannot be a Late is refused.
func TestLate_refused(t *testing.T) {
	t.Parallel()
	for _, late := range []automutex.Policy{automutex.Retry, automutex.RetryIn(time.Second), automutex.Fail,
		automutex.Replace, automutex.Allow, automutex.AfterFailure(nil)} {
		_, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{{Task: "work", Late: late}}})
		if mistake := new(automutex.FieldError); !errors.As(err, &mistake) || mistake.Field != "Late" {
			t.Errorf("%s: %v", late, err)
		}
	}
}

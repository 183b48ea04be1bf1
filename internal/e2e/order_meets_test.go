package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// What tasks in order meet: other features, a shutdown, errors that are no failures.

// A task without the field of an Optional rule has no place in order, and runs beside those that have one.
func TestInOrder_optional(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Optional: true, InOrder: true}}})
		first, second := r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1)
		run := r.stage.nextIs(t, first)
		for _, payload := range []string{`{}`, `{"id":null}`} {
			info, err := c.Enqueue(asynq.NewTask("work", []byte(payload)), asynq.Queue(r.queue), asynq.MaxRetry(5), asynq.Retention(time.Hour))
			redistest.Must(t, err)
			r.finish(info.ID)
		}
		run.returns(nil)
		r.finish(second)
	})
}

// A server shuts down while the head runs and others wait: the head ends, and the next server goes on in order, no attempt
// spent.
func TestInOrder_shutdown(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		old, c := orderRig(t, s, setup{workers: 2}) // one task waits in its worker, or parks; the other has none
		first, second, third := old.enqueueInOrder(c, 1), old.enqueueInOrder(c, 1), old.enqueueInOrder(c, 1)
		run := old.stage.nextIs(t, first)
		old.closeUnder(t, run)
		old.await(first, asynq.TaskStateCompleted)
		old.stage.none(t)
		r, _ := orderRig(t, s, setup{workers: 2, queue: old.queue, prefix: old.cfg.Prefix})
		r.finish(second)
		r.finish(third)
	})
}

// A head that outlasts its server's shutdown goes back to its queue, and runs first on the next server.
func TestInOrder_shutdownUnderTheHead(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		old, c := orderRig(t, s, setup{workers: 2, served: func(c *asynq.Config) {
			comingBack(c)
			quickly(200 * time.Millisecond)(c)
		}})
		first, second := old.enqueueInOrder(c, 1), old.enqueueInOrder(c, 1)
		run := old.stage.next(t)
		closed := old.closing(t.Context())
		old.shutdown()
		old.await(first, asynq.TaskStatePending)
		r, _ := orderRig(t, s, setup{workers: 2, queue: old.queue, prefix: old.cfg.Prefix})
		r.stage.none(t)
		run.returns(context.Canceled)
		if err := awaitClosed(t, closed); err != nil {
			t.Error(err)
		}
		r.finish(first)
		r.finish(second)
	})
}

// An error that IsFailure does not count archives a task in order on the caller's last attempt, as asynq does without a
// Client: a head that fails softly does not keep its key for ever. A RetryAfter does not, until the handler returns something else.
func TestInOrder_softErrors(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		notYet := errors.New("not yet")
		r, c := orderRig(t, s, setup{
			rules: []automutex.Rule{{Task: "work", On: []string{"id"}, InOrder: true, OnArchive: automutex.Continue}},
			served: func(c *asynq.Config) {
				comingBack(c)
				c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
				c.IsFailure = func(err error) bool { return !errors.Is(err, notYet) }
			},
		})
		first, second := r.enqueueInOrder(c, 1, asynq.MaxRetry(1)), r.enqueueInOrder(c, 1)
		for _, err := range []error{notYet, errors.New("broken"), automutex.RetryAfter(0, notYet), automutex.RetryAfter(0, nil), notYet} {
			run := r.stage.nextIs(t, first)
			run.returns(err)
		}
		if info := r.await(first, asynq.TaskStateArchived); info.LastErr != "not yet" || info.Retried != 1 {
			t.Errorf("%+v", info)
		}
		r.finish(second)
	})
}

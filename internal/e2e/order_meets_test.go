package e2e

import (
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

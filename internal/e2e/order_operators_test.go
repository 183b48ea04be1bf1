package e2e

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Locks on another Redis than asynq's, and nobody has said so: the Inspector sees no task, and takes none for gone. The
// order stands, in workers and producers, and the log says why.
func TestInOrder_inspectorElsewhere(t *testing.T) {
	t.Parallel()
	s, other := redistest.Mini(t), redistest.StartMini(t)
	rules := []automutex.Rule{{Task: "work", On: []string{"id"}, InOrder: true, MaxQueued: 2}}
	r, _ := orderRig(t, s, setup{rules: rules, workers: 3, locks: other.Client(t), served: func(c *asynq.Config) {
		c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Hour }
	}})
	log := &redistest.Log{}
	c, err := automutex.NewClient(other.Client(t), r.client, automutex.Config{Rules: rules, Prefix: r.cfg.Prefix, Logger: log.Logger()})
	redistest.Must(t, err)
	first := r.enqueueInOrder(c, 1)
	r.stage.nextIs(t, first).returns(errors.New("not now"))
	r.await(first, asynq.TaskStateRetry)
	r.awaitParked(r.enqueueInOrder(c, 1))
	redistest.Eventually(t, patience, func() bool { // from the first look on, 5 s later
		_, err := c.Enqueue(asynq.NewTask("work", []byte(`{"id":1}`)), asynq.Queue(r.queue))
		if !errors.Is(err, automutex.ErrFull) {
			t.Fatalf("%v, want ErrFull: the first two are not done", err)
		}
		return strings.Contains(log.String(), "does not see the queue") && strings.Contains(r.log.Text(slog.LevelDebug), "could not be looked at")
	}, "producer and worker have looked")
	r.stage.none(t)
	if n := strings.Count(r.log.Text(slog.LevelWarn), "a key in order stands"); n != 1 {
		t.Errorf("%d warnings", n)
	}
}

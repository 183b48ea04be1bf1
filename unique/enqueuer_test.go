package unique

import (
	"context"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// counting is an Enqueuer of a user: it counts what goes through it.
type counting struct {
	automutex.Enqueuer
	calls []string
}

func (c *counting) EnqueueContext(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	c.calls = append(c.calls, task.Type())
	return c.Enqueuer.EnqueueContext(ctx, task, opts...)
}

// All tasks go through the Enqueuer that New was given, those with a rule and those without.
func TestNew_takesAnEnqueuer(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rule := Rule{Task: "once", On: []string{"id"}}
		r := start(t, s, rule)
		through := &counting{Enqueuer: r.plain}
		rule.Queue = r.queue
		c, err := New(through, r.inspector, r.rdb, Config{Prefix: r.prefix, Rules: []Rule{rule}})
		if err != nil {
			t.Fatal(err)
		}
		r.must(c.Enqueue(task("once", "7", "")))
		r.must(c.Enqueue(task("plain", "7", ""), asynq.Queue(r.queue)))
		if got := strings.Join(through.calls, " "); got != "once plain" {
			t.Errorf("through the Enqueuer went %q", got)
		}
	})
}

// A nil client is refused also as a nil *asynq.Client in the interface.
func TestNew_nilClient(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	for _, none := range []automutex.Enqueuer{nil, (*asynq.Client)(nil)} {
		if _, err := New(none, asynq.NewInspectorFromRedisClient(rdb), rdb, Config{}); err == nil || !strings.Contains(err.Error(), "the client is nil") {
			t.Errorf("%T: %v", none, err)
		}
	}
}

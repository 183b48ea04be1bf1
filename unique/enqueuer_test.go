package unique

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/stamp"
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
		redistest.Must(t, err)
		r.must(c.Enqueue(task("once", "7", "")))
		r.must(c.Enqueue(task("plain", "7", ""), asynq.Queue(r.queue)))
		if got := strings.Join(through.calls, " "); got != "once plain" {
			t.Errorf("through the Enqueuer went %q", got)
		}
	})
}

// Over a Client of the root package, tasks of an ordered rule are enqueued once, and run in order.
func TestNew_overAnOrderedClient(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		once := Rule{Task: "once", On: []string{"id", "text"}}
		r := start(t, s, once)
		ordered := automutex.Rule{Task: "once", On: []string{"id"}, InOrder: true, OnArchive: automutex.Continue}
		c := r.orderedProducer(r.rdb, once)
		enqueued := []string{"a", "b", "c", "d"}
		for _, text := range enqueued {
			info := r.must(c.Enqueue(task("once", "7", text)))
			if !stamp.Ordered(info.Headers) {
				t.Errorf("%s has no place in order", text)
			}
			dup, err := c.Enqueue(task("once", "7", text))
			r.mustBeDuplicate(dup, err, info.ID, asynq.TaskStatePending)
		}
		var mu sync.Mutex
		var ran []string
		begins, arrived := make(chan struct{}), make(chan struct{})
		r.serve(func(_ context.Context, t *asynq.Task) error {
			mu.Lock()
			ran = append(ran, texts([]*asynq.TaskInfo{{Payload: t.Payload()}})...)
			first := len(ran) == 1
			mu.Unlock()
			if first {
				close(begins)
				<-arrived
			}
			return nil
		}, r.guard(ordered))
		<-begins
		redistest.Eventually(t, longest, func() bool { return len(r.tasks(r.queue, "once", asynq.TaskStatePending)) == 0 }, "all tasks have come to a worker")
		close(arrived)
		redistest.Eventually(t, longest, func() bool { return len(r.tasks(r.queue, "once")) == 0 }, "all tasks are done")
		if !slices.Equal(ran, enqueued) {
			t.Errorf("ran %q, enqueued %q", ran, enqueued)
		}
		r.must(c.Enqueue(task("once", "7", "a"))) // its claim has ended with it
	})
}

// A duplicate that takes the place of another task starts later, which no task in order can: New says so.
func TestNew_overAnOrderedClientRefusesToSupersede(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t))
	rules := []automutex.Rule{{Task: "once", On: []string{"id"}, InOrder: true}, {Task: "other", On: []string{"id"}}}
	through, err := automutex.NewClient(r.rdb, r.plain, automutex.Config{Prefix: r.prefix, Rules: rules})
	redistest.Must(t, err)
	for _, duplicate := range []Duplicate{Reject, Join, Replace, Postpone(time.Minute)} {
		for _, name := range []string{"once", "other", "neither"} {
			_, err := New(through, r.inspector, r.rdb, Config{Rules: []Rule{{Task: name, On: []string{"id"}, Duplicate: duplicate, KeepArchived: true}}})
			var mistake *automutex.FieldError
			if refused := errors.As(err, &mistake) && mistake.Field == "Duplicate" && strings.Contains(err.Error(), "InOrder"); refused != (duplicate.supersedes() && name == "once") {
				t.Errorf("%s, %s: %v", name, duplicate, err)
			}
		}
	}
}

// An archived task that holds its key is not deleted by the next Enqueue: New wants it kept, or the key not held.
func TestNew_overAClientThatHoldsKeys(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t))
	for _, does := range []automutex.OnArchive{automutex.HoldKey, automutex.Continue} {
		through, err := automutex.NewClient(r.rdb, r.plain, automutex.Config{Prefix: r.prefix, Rules: []automutex.Rule{{Task: "once", On: []string{"id"}, InOrder: true, OnArchive: does}, {Task: "other", On: []string{"id"}}}})
		redistest.Must(t, err)
		for _, rule := range []Rule{{Task: "once"}, {Task: "other"}, {Task: "once", KeepArchived: true}, {Task: "once", Until: UntilStart}, {Task: "once", Until: For(time.Minute)}} {
			rule.On = []string{"id"}
			_, err := New(through, r.inspector, r.rdb, Config{Rules: []Rule{rule}})
			deletes := does == automutex.HoldKey && rule.Task == "once" && !rule.KeepArchived && rule.Until == UntilDone
			var mistake *automutex.FieldError
			if refused := errors.As(err, &mistake) && mistake.Field == "KeepArchived" && strings.Contains(err.Error(), "set KeepArchived, or OnArchive to Continue"); refused != deletes || !deletes && err != nil {
				t.Errorf("%s, %+v: %v", does, rule, err)
			}
		}
	}
}

// A nil client is refused also as a nil pointer in the interface.
func TestNew_nilClient(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	for _, none := range []automutex.Enqueuer{nil, (*asynq.Client)(nil), (*automutex.Client)(nil)} {
		if _, err := New(none, asynq.NewInspectorFromRedisClient(rdb), rdb, Config{}); err == nil || !strings.Contains(err.Error(), "the client is nil") {
			t.Errorf("%T: %v", none, err)
		}
	}
}

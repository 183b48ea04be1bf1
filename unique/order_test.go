package unique

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
)

// ordering is a Client of the root package with those rules.
func (r *rig) ordering(rdb redis.UniversalClient, rules ...automutex.Rule) *automutex.Client {
	r.t.Helper()
	c, err := automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb),
		automutex.Config{Prefix: r.prefix, Rules: rules, Private: true})
	redistest.Must(r.t, err)
	return c
}

func inOrder(name string) automutex.Rule {
	return automutex.Rule{Task: name, On: onID, InOrder: true, OnArchive: automutex.Continue}
}

// wrapped is an Enqueuer of the user's own. It counts what goes through it.
type wrapped struct {
	automutex.Enqueuer
	through *[]string
}

func (w wrapped) EnqueueContext(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	*w.through = append(*w.through, task.Type())
	return w.Enqueuer.EnqueueContext(ctx, task, opts...)
}

// ticketOf is the task's place in order; 0: none.
func ticketOf(info *asynq.TaskInfo) int64 {
	s, _ := stamp.Of(info.Headers, tasknote.Of(info.Queue, info.ID))
	return s.Ticket
}

// Over a Client of the root package, tasks of an ordered rule are enqueued once, and run in order. All tasks go through
// the Enqueuer that New was given.
func TestNew_overAnOrderedClient(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s)
		var through []string
		c, err := r.over(r.rdb, wrapped{r.ordering(r.rdb, inOrder("once")), &through}, Rule{Task: "once", On: []string{"id",
			"text"}})
		redistest.Must(t, err)
		enqueued := []string{"a", "b", "c", "d", "e", "f"}
		var all []*asynq.Task
		for _, text := range enqueued {
			all = append(all, task("once", "7", text))
		}
		for i, result := range c.EnqueueAll(t.Context(), all) { // in this order
			info := r.must(result.Info, result.Err)
			if ticketOf(info) == 0 {
				t.Errorf("%s has no place in order", enqueued[i])
			}
			dup, err := c.Enqueue(task("once", "7", enqueued[i]))
			r.mustBeDuplicate(dup, err, info.ID, asynq.TaskStatePending)
		}
		r.must(c.Enqueue(task("plain", "7", ""), asynq.Queue(r.queue)))
		if got := strings.Join(through, " "); got != strings.Repeat("once ", 2*len(all))+"plain" {
			t.Errorf("through the Enqueuer went %q", got)
		}
		var ran record
		begins, arrived := make(chan struct{}), make(chan struct{})
		r.serve(func(_ context.Context, task *asynq.Task) error {
			if task.Type() == "once" && ran.add(task) == 1 {
				close(begins)
				<-arrived
			}
			return nil
		}, r.guard(inOrder("once")))
		<-begins
		eventually(t, func() bool { return len(r.tasks(r.queue, "once", asynq.TaskStatePending)) == 0 },
			"all tasks have come to a worker")
		close(arrived)
		eventually(t, func() bool { return len(r.tasks(r.queue, "once")) == 0 }, "all tasks are done")
		if !slices.Equal(ran.all(), enqueued) {
			t.Errorf("ran %q, enqueued %q", ran.all(), enqueued)
		}
	})
}

// The handler of an ordered task panics on its last attempt: the next task for its key is accepted.
func TestNew_orderedTaskPanics(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s)
		r.serve(func(context.Context, *asynq.Task) error { panic("a defect") }, r.guard(inOrder("work")))
		for _, until := range []Until{UntilDone, UntilStart} {
			c, err := r.over(r.rdb, r.ordering(r.rdb, inOrder("work")),
				Rule{Task: "work", On: []string{"id", "text"}, Until: until})
			redistest.Must(t, err)
			for range 2 {
				info := r.must(c.Enqueue(task("work", "7", until.String()), asynq.MaxRetry(0)))
				r.await(r.queue, info.ID, asynq.TaskStateArchived)
			}
		}
	})
}

// What does not fit a task in order is refused: what supersedes, and what deletes an archived task that holds its key.
func TestNew_findsTheOrder(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t))
	var through []string
	ordering := r.ordering(r.rdb, automutex.Rule{Task: "push:", InOrder: true},
		automutex.Rule{Task: "push:free", On: onID},
		automutex.Rule{Task: "mail:daily", InOrder: true}, automutex.Rule{Task: "go:", InOrder: true,
			OnArchive: automutex.Continue})
	for i, c := range []struct {
		rules   []string
		runs    string // a type
		refused []Rule // of the ones below
	}{
		{[]string{"mail"}, "mail:daily", []Rule{{}, {Duplicate: Replace}}},
		{[]string{"mail", "push:free"}, "mail:daily:x", []Rule{{}, {Duplicate: Replace}}},
		{[]string{"push:x"}, "push:x", []Rule{{}, {Duplicate: Replace}}},
		{[]string{"pu"}, "push:1", []Rule{{}, {Duplicate: Replace}}},
		{[]string{"go:x"}, "go:x", []Rule{{Duplicate: Replace}}},
		{[]string{"push:free"}, "push:free", nil},
		{[]string{"mail:weekly"}, "mail:weekly", nil},
	} {
		for _, rule := range []Rule{{}, {Duplicate: Replace}, {KeepArchived: true}, {Until: UntilStart},
			{Duplicate: Join, Until: For(1e9)}} {
			fits := !slices.ContainsFunc(c.refused, func(r Rule) bool {
				return r.Duplicate == rule.Duplicate && r.Until == rule.Until && r.KeepArchived == rule.KeepArchived
			})
			var rules []Rule
			for _, rule.Task = range c.rules {
				rule.On = onID
				rules = append(rules, rule)
			}
			_, err := r.over(r.rdb, ordering, rules...)
			inside, fails := r.over(r.rdb, wrapped{ordering, &through}, rules...)
			redistest.Must(t, fails)
			_, fails = inside.Enqueue(task(c.runs, fmt.Sprint(i, rule), ""))
			for _, err := range []error{err, fails} {
				mistake := new(automutex.FieldError)
				if (err == nil) != fits || err != nil && (!errors.As(err, &mistake) || !strings.Contains(err.Error(), "InOrder") &&
					!strings.Contains(err.Error(), "set KeepArchived, or OnArchive to Continue")) {
					t.Errorf("%q, %+v: %v", c.rules, rule, err)
				}
			}
		}
	}
}

// Join and Reject see the task that is queued already, although its ordered key has no room for another one.
func TestEnqueue_duplicateOnAFullKey(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t))
	through := r.ordering(r.rdb, automutex.Rule{Task: "work", InOrder: true, OnArchive: automutex.Continue, MaxQueued: 1})
	joining, err := r.over(r.rdb, through, Rule{Task: "work", On: onID, Duplicate: Join})
	redistest.Must(t, err)
	rejecting, err := r.over(r.rdb, through, Rule{Task: "work", On: onID})
	redistest.Must(t, err)
	queued := r.must(joining.Enqueue(task("work", "7", "")))
	if joined := r.must(joining.Enqueue(task("work", "7", ""))); joined.ID != queued.ID {
		t.Errorf("joined to %s, not %s", joined.ID, queued.ID)
	}
	info, err := rejecting.Enqueue(task("work", "7", ""))
	r.mustBeDuplicate(info, err, queued.ID, asynq.TaskStatePending)
	ended := r.must(r.plain.Enqueue(task("work", "8", ""), asynq.Queue(r.queue),
		asynq.TaskID(claims.TaskID(keys.Key(r.prefix, "work", "8")))))
	redistest.Must(t, r.inspector.ArchiveTask(r.queue, ended.ID))
	if _, err := joining.Enqueue(task("work", "8", "")); !errors.Is(err, automutex.ErrFull) {
		t.Errorf("another task: %v", err)
	}
	r.await(r.queue, ended.ID, asynq.TaskStateArchived) // it is only deleted for one that takes its place
}

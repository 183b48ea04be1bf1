package unique

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
)

// kinds are rules under which a key has one task that waits.
func kinds() (rules []Rule) {
	for _, until := range []Until{UntilDone, UntilStart, For(time.Hour)} {
		for _, duplicate := range []Duplicate{Reject, Join, Replace, Postpone(time.Minute)} {
			rules = append(rules, Rule{Task: until.String() + "/" + duplicate.String(), On: []string{"id"}, Until: until, Duplicate: duplicate})
		}
	}
	return rules
}

// A queue was deleted while it was empty, or Redis has lost its keys: asynq's client does not list the queue again, and still a key
// has one task. The claim of a task that ended before blocks nothing.
func TestLook_queueNotListed(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"deleted", "flushed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := start(t, redistest.StartMini(t), kinds()...)
			for _, rule := range kinds() {
				r.must(r.Enqueue(task(rule.Task, "before", "")))
			}
			if how == "deleted" {
				redistest.Must(t, r.inspector.DeleteQueue(r.queue, true))
			} else {
				redistest.Must(t, r.rdb.FlushDB(t.Context()).Err())
			}
			for _, rule := range kinds() {
				_, err := r.Enqueue(task(rule.Task, "before", ""))
				if err != nil && (rule.Until == UntilDone || rule.Until == UntilStart || how == "flushed") {
					t.Errorf("%s: a task that is gone blocks its key: %v", rule.Task, err)
				}
				for i := range 3 {
					if _, err := r.Enqueue(task(rule.Task, "7", fmt.Sprint(i))); err != nil && (i == 0 || !errors.Is(err, asynq.ErrDuplicateTask)) {
						t.Errorf("%s: %v", rule.Task, err)
					}
				}
				if n := r.tasks(r.queue, rule.Task); len(n) > 2 {
					t.Errorf("%s: %d tasks for two keys", rule.Task, len(n))
				}
			}
		})
	}
}

// An Inspector on another database, or on another Redis than asynq, does not make duplicates of tasks: the second call says what is wrong.
func TestLook_inspectorElsewhere(t *testing.T) {
	t.Parallel()
	for _, locksElsewhere := range []bool{false, true} {
		for _, listed := range []bool{false, true} {
			r := start(t, redistest.StartMini(t), kinds()...)
			other := r.s.Client(t, func(o *redis.UniversalOptions) { o.DB = 5 })
			if listed {
				redistest.Must(t, other.SAdd(t.Context(), "asynq:queues", r.queue).Err())
			}
			rdb := r.rdb
			if locksElsewhere {
				rdb = other
			}
			rules := kinds()
			for i := range rules {
				rules[i].Queue = r.queue
			}
			c, err := New(r.plain, asynq.NewInspectorFromRedisClient(other), rdb, Config{Rules: rules, Prefix: r.prefix, Wait: NoWait})
			redistest.Must(t, err)
			for _, rule := range rules {
				if locksElsewhere && listed && rule.hasClaimOf() {
					continue // nothing that the Client can see tells this from a task that has ended
				}
				r.must(c.Enqueue(task(rule.Task, "7", "")))
				_, err := c.Enqueue(task(rule.Task, "7", ""))
				if err == nil || errors.Is(err, asynq.ErrDuplicateTask) || !strings.Contains(err.Error(), "database") {
					t.Errorf("locks elsewhere %v, listed %v, %s: %v", locksElsewhere, listed, rule.Task, err)
				}
				if n := r.tasks(r.queue, rule.Task); len(n) != 1 {
					t.Errorf("locks elsewhere %v, listed %v, %s: %d tasks", locksElsewhere, listed, rule.Task, len(n))
				}
			}
		}
	}
}

func (r Rule) hasClaimOf() bool { return (&rule{Rule: r}).hasClaim() }

// Somebody has removed the list of a task by hand. Where the key has a claim the next task takes it over; where the task has the key's ID the
// call says how to delete it.
func TestLook_lostTask(t *testing.T) {
	t.Parallel()
	rules := kinds()
	for i := range rules {
		rules[i].KeepArchived = i%2 == 0
	}
	r := start(t, redistest.StartMini(t), rules...)
	for _, rule := range rules {
		old := r.must(r.Enqueue(task(rule.Task, "7", "old"), asynq.ProcessIn(time.Hour)))
		redistest.Must(t, r.rdb.Del(t.Context(), "asynq:{"+r.queue+"}:scheduled").Err())
		info, err := r.Enqueue(task(rule.Task, "7", "new"))
		switch {
		case !rule.hasClaimOf():
			if remedy := "DEL 'asynq:{" + r.queue + "}:t:" + old.ID + "'"; err == nil || errors.Is(err, asynq.ErrDuplicateTask) || !strings.Contains(err.Error(), remedy) {
				t.Errorf("%s: %v, %v", rule.Task, info, err)
			}
			redistest.Must(t, r.rdb.Del(t.Context(), "asynq:{"+r.queue+"}:t:"+old.ID).Err())
			r.must(r.Enqueue(task(rule.Task, "7", "new")))
		case rule.Until.kind == For(1).kind:
			if !errors.Is(err, asynq.ErrDuplicateTask) { // its time is not over
				t.Errorf("%s: %v, %v", rule.Task, info, err)
			}
		default:
			if r.must(info, err); info.ID == old.ID {
				t.Errorf("%s: joined to a task that never runs", rule.Task)
			}
		}
	}
	// An archived one, and a pending one that is to be replaced.
	for _, rule := range []Rule{{Task: "a", On: []string{"id"}}, {Task: "p", On: []string{"id"}, Duplicate: Replace}} {
		c := r.producer(r.rdb, rule)
		old := r.must(c.Enqueue(task(rule.Task, "7", "old")))
		if rule.Task == "a" {
			redistest.Must(t, r.inspector.ArchiveTask(r.queue, old.ID))
		}
		redistest.Must(t, r.rdb.Del(t.Context(), "asynq:{"+r.queue+"}:archived", "asynq:{"+r.queue+"}:pending").Err())
		info, err := c.Enqueue(task(rule.Task, "7", "new"))
		if rule.Task == "a" && (err == nil || !strings.Contains(err.Error(), "lost task")) || rule.Task == "p" && err != nil {
			t.Errorf("%s: %v, %v", rule.Task, info, err)
		}
		if rule.Task == "p" {
			r.must(c.Enqueue(task(rule.Task, "7", "newest")))
		}
	}
}

// A task that was put off up to its bound runs although calls go on and the queue is long: it keeps its place, and counts as begun.
func TestPostpone_keepsItsPlacePastTheBound(t *testing.T) {
	t.Parallel()
	for _, until := range []Until{UntilDone, UntilStart} {
		r := start(t, redistest.Mini(t), Rule{Task: "draft", On: []string{"id"}, Until: until, Duplicate: Postpone(time.Minute), MaxPostpone: 2 * time.Minute})
		due := r.must(r.Enqueue(task("draft", "7", "due")))
		r.age("draft", "7", time.Minute)
		redistest.Must(t, r.inspector.RunTask(r.queue, due.ID))
		r.age("draft", "7", 3*time.Minute)
		info, err := r.Enqueue(task("draft", "7", "newest"))
		if until == UntilDone {
			r.mustBeDuplicate(info, err, due.ID, asynq.TaskStatePending)
			continue
		}
		if r.must(info, err); info.State != asynq.TaskStateScheduled {
			t.Errorf("the newest is %s", info.State)
		}
		r.must(r.Enqueue(task("draft", "7", "newer still"))) // in the place of the second one
		if got := texts(r.tasks(r.queue, "draft")); !slices.Equal(got, []string{"due", "newer still"}) {
			t.Errorf("there are %q", got)
		}
		if info, err := r.inspector.GetTaskInfo(r.queue, due.ID); err != nil || info.State != asynq.TaskStatePending {
			t.Errorf("the due task: %v, %v", info, err)
		}
	}
}

// wrapped is an Enqueuer of the user's own.
type wrapped struct{ automutex.Enqueuer }

// EnqueueAll keeps the slice's order where tasks run in order.
func TestEnqueueAll_inOrder(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.StartMini(t))
	through, err := automutex.NewClient(r.rdb, r.plain, automutex.Config{Prefix: r.prefix, Rules: []automutex.Rule{{Task: "order", On: []string{"id"}, InOrder: true, OnArchive: automutex.Continue}}})
	redistest.Must(t, err)
	for _, client := range []automutex.Enqueuer{through, wrapped{through}} {
		for _, rule := range []Rule{{Task: "order", On: []string{"text"}, Queue: r.queue}, {Task: "another"}} {
			c, err := New(client, r.inspector, r.rdb, Config{Prefix: r.prefix, Rules: []Rule{rule}})
			redistest.Must(t, err)
			tasks, key := make([]*asynq.Task, 40), fmt.Sprintf("%T %s", client, rule.Task)
			for i := range tasks {
				tasks[i] = task("order", key, key+fmt.Sprint(i))
			}
			last := int64(0)
			for i, result := range c.EnqueueAll(t.Context(), tasks, asynq.Queue(r.queue)) {
				redistest.Must(t, result.Err)
				if place := ticketOf(result.Info); place <= last {
					t.Fatalf("%s: the %dth task has the place %d, the one before %d", key, i, place, last)
				}
				last = ticketOf(result.Info)
			}
		}
	}
}

// Join and Reject see the task that is queued already, although its ordered key has no room for another one.
func TestEnqueue_duplicateOnAFullKey(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t))
	through, err := automutex.NewClient(r.rdb, r.plain, automutex.Config{Prefix: r.prefix, Rules: []automutex.Rule{{Task: "work", InOrder: true, OnArchive: automutex.Continue, MaxQueued: 1}}})
	redistest.Must(t, err)
	rule := Rule{Task: "work", On: []string{"id"}, Queue: r.queue}
	queued := ""
	for _, rule.Duplicate = range []Duplicate{Join, Reject} {
		c, err := New(through, r.inspector, r.rdb, Config{Prefix: r.prefix, Rules: []Rule{rule}})
		redistest.Must(t, err)
		info, err := c.Enqueue(task("work", "7", ""))
		switch rule.Duplicate {
		case Reject:
			r.mustBeDuplicate(info, err, queued, asynq.TaskStatePending)
		default:
			queued = r.must(info, err).ID
			if joined := r.must(c.Enqueue(task("work", "7", ""))); joined.ID != queued {
				t.Errorf("joined to %s, not %s", joined.ID, queued)
			}
		}
		if _, err := c.Enqueue(task("work", "8", "")); !errors.Is(err, automutex.ErrFull) {
			t.Errorf("another task: %v", err)
		}
	}
}

// What does not fit a task in order is refused also where the ordered rule is for a longer type, or a shorter one, and in a wrapper.
func TestNew_findsTheOrder(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t))
	through, err := automutex.NewClient(r.rdb, r.plain, automutex.Config{Prefix: r.prefix, Rules: []automutex.Rule{
		{Task: "push:", InOrder: true}, {Task: "push:free", On: []string{"id"}}, {Task: "mail:daily", InOrder: true}}})
	redistest.Must(t, err)
	for _, c := range []struct {
		rules []string
		runs  string // a type
		fits  bool
	}{
		{[]string{"mail"}, "mail:daily", false}, {[]string{"mail", "push:free"}, "mail:daily:x", false}, {[]string{"push:x"}, "push:x", false}, {[]string{"pu"}, "push:1", false},
		{[]string{"push:free"}, "push:free", true}, {[]string{"mail:weekly"}, "mail:weekly", true},
	} {
		for _, bad := range []Rule{{Duplicate: Replace}, {}} {
			var rules []Rule
			for _, name := range c.rules {
				rules = append(rules, Rule{Task: name, On: []string{"id"}, Duplicate: bad.Duplicate, Queue: r.queue})
			}
			if _, err := New(through, r.inspector, r.rdb, Config{Prefix: r.prefix, Rules: rules}); (err == nil) != c.fits {
				t.Errorf("%q: %v", c.rules, err)
			}
			inside, err := New(wrapped{through}, r.inspector, r.rdb, Config{Prefix: r.prefix, Rules: rules})
			redistest.Must(t, err)
			_, err = inside.Enqueue(task(c.runs, bad.Duplicate.String(), ""))
			if mistake := new(automutex.FieldError); (err == nil) != c.fits || err != nil && !errors.As(err, &mistake) {
				t.Errorf("%q, in a wrapper: %v", c.rules, err)
			}
		}
	}
}

// A Client makes the ordered key only: what another rule of the task cannot do is the worker's business.
func TestClient_needsTheOrderedKeyOnly(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t))
	through, err := automutex.NewClient(r.rdb, r.plain, automutex.Config{Prefix: r.prefix, Rules: []automutex.Rule{
		{Task: "work", Scope: "order", On: []string{"id"}, InOrder: true, OnArchive: automutex.Continue},
		{Task: "work", Scope: "allowed", On: []string{"absent"}, Busy: automutex.Allow},
		{Task: "work", Scope: "limited", LimitOf: func(context.Context, *asynq.Task) (int, error) { return 0, errors.New("no limit today") }},
	}})
	redistest.Must(t, err)
	info := r.must(through.Enqueue(task("work", "7", ""), asynq.Queue(r.queue)))
	if ticketOf(info) == 0 {
		t.Error("it has no place")
	}
	if _, err := through.Enqueue(asynq.NewTask("work", nil), asynq.Queue(r.queue)); !errors.As(err, new(*automutex.KeyError)) {
		t.Errorf("without the ordered key: %v", err)
	}
}

// ticketOf is the task's place in order.
func ticketOf(info *asynq.TaskInfo) int64 {
	s, _ := stamp.Of(info.Headers, tasknote.Of(info.Queue, info.ID))
	return s.Ticket
}

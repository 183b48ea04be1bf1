package unique

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// kinds are rules under which a key has one task that waits.
func kinds() (rules []Rule) {
	for _, until := range []Until{UntilDone, UntilStart, For(time.Hour)} {
		for _, duplicate := range []Duplicate{Reject, Join, Replace, Postpone(time.Minute)} {
			rules = append(rules, Rule{Task: until.String() + "/" + duplicate.String(), On: onID, Until: until,
				Duplicate: duplicate})
		}
	}
	return rules
}

// A queue was deleted while it was empty, or Redis has lost its keys: asynq's client does not list the queue again, and
// still a key has one task. The claim of a task that ended before blocks nothing.
func TestLook_queueNotListed(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"deleted", "flushed"} {
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
				if _, err := r.Enqueue(task(rule.Task, "7", fmt.Sprint(i))); err != nil &&
					(i == 0 || !errors.Is(err, asynq.ErrDuplicateTask)) {
					t.Errorf("%s: %v", rule.Task, err)
				}
			}
			if n := r.tasks(r.queue, rule.Task); len(n) > 2 {
				t.Errorf("%s: %d tasks for two keys", rule.Task, len(n))
			}
		}
	}
}

// An Inspector on another database, or on another Redis than asynq, does not make duplicates of tasks: the second call
// says what is wrong.
func TestLook_inspectorElsewhere(t *testing.T) {
	t.Parallel()
	for _, locksElsewhere := range []bool{false, true} {
		for _, listed := range []bool{false, true} {
			r := start(t, redistest.StartMini(t))
			other := r.s.Client(t, func(o *redis.UniversalOptions) { o.DB = 5 })
			if listed {
				redistest.Must(t, other.SAdd(t.Context(), "asynq:queues", r.queue).Err())
			}
			rdb := map[bool]redis.UniversalClient{false: r.rdb, true: other}[locksElsewhere]
			rules := kinds()
			for i := range rules {
				rules[i].Queue = r.queue
			}
			c, err := New(r.plain, asynq.NewInspectorFromRedisClient(other), rdb,
				Config{Rules: rules, Prefix: r.prefix, Wait: NoWait})
			redistest.Must(t, err)
			for _, declared := range rules {
				if locksElsewhere && listed && (&rule{Rule: declared}).hasClaim() {
					continue // nothing that the Client can see tells this from a task that has ended
				}
				r.must(c.Enqueue(task(declared.Task, "7", "")))
				_, err := c.Enqueue(task(declared.Task, "7", ""))
				if n := r.tasks(r.queue, declared.Task); len(n) != 1 || err == nil || errors.Is(err, asynq.ErrDuplicateTask) ||
					!strings.Contains(err.Error(), "database") {
					t.Errorf("locks elsewhere %v, listed %v, %s: %d tasks, %v", locksElsewhere, listed, declared.Task, len(n), err)
				}
			}
		}
	}
}

// Somebody has removed the list of a task by hand.
func TestLook_lostTask(t *testing.T) {
	t.Parallel()
	for _, state := range []asynq.TaskState{asynq.TaskStateScheduled, asynq.TaskStateArchived, asynq.TaskStatePending} {
		r := start(t, redistest.StartMini(t), kinds()...)
		for _, declared := range kinds() {
			byID := !(&rule{Rule: declared}).hasClaim()
			old := r.enqueue(declared.Task, "old", asynq.ProcessIn(time.Hour))
			switch state {
			case asynq.TaskStateArchived:
				redistest.Must(t, r.inspector.ArchiveTask(r.queue, old.ID))
			case asynq.TaskStatePending:
				redistest.Must(t, r.inspector.RunTask(r.queue, old.ID))
			default:
			}
			redistest.Must(t, r.rdb.Del(t.Context(), "asynq:{"+r.queue+"}:"+state.String()).Err())
			info, err := r.Enqueue(task(declared.Task, "7", "new"))
			itsKey := "asynq:{" + r.queue + "}:t:" + old.ID
			switch {
			case byID && state != asynq.TaskStatePending: // of a pending one asynq's Inspector does not tell that it is lost
				if err == nil || errors.Is(err, asynq.ErrDuplicateTask) || !strings.Contains(err.Error(), "DEL '"+itsKey+"'") {
					t.Errorf("%s, %s: %v, %v", state, declared.Task, info, err)
				}
				redistest.Must(t, r.rdb.Del(t.Context(), itsKey).Err())
				r.enqueue(declared.Task, "new")
			case declared.Until == For(time.Hour) && state != asynq.TaskStatePending:
				if !errors.Is(err, asynq.ErrDuplicateTask) { // its time is not over
					t.Errorf("%s, %s: %v, %v", state, declared.Task, info, err)
				}
			case state != asynq.TaskStatePending || declared.Duplicate.supersedes():
				if r.must(info, err); info.ID == old.ID {
					t.Errorf("%s, %s: joined to a task that never runs", state, declared.Task)
				}
			case declared.Until != For(time.Hour): // it blocks the key until somebody deletes it
				redistest.Must(t, r.rdb.Del(t.Context(), itsKey).Err())
				r.enqueue(declared.Task, "new")
			}
		}
	}
}

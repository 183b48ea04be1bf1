package unique

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// dead is the fault of a producer that is killed: no command after that arrives.
var dead = redistest.CommandFault{Name: "dead", Err: errors.New("the producer is dead")}

// Whatever single command of an Enqueue fails, and however: what Enqueue reported as
// accepted is there, no task for the key is lost, and after the next call for the key,
// by a producer without faults, there is one task that has not started. So it is if the producer is killed there.
func TestEnqueue_survivesTheFailureOfAnyOneCommand(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = own(t, s)
		faults := append(slices.Clone(redistest.CommandFaults), dead)
		for _, rule := range kinds() {
			if s.Kind() != redistest.KindMini { // the same commands, whatever they are sent to
				faults = []redistest.CommandFault{dead}
				if rule.Until != UntilStart {
					continue
				}
			}
			for _, ordered := range []bool{false, true} {
				if ordered && (rule.Duplicate.supersedes() || s.Kind() != redistest.KindMini) {
					continue // New refuses it
				}
				for _, before := range []string{"", "pending", "scheduled"} { // the task in the way
					if before == "scheduled" && !rule.Duplicate.supersedes() {
						continue
					}
					for _, kind := range faults {
						t.Run(fmt.Sprintf("%s, ordered %t, before: %s, %s", rule.Task, ordered, before, kind.Name), func(t *testing.T) {
							t.Parallel()
							for n := 1; oneFailure(t, s, rule, ordered, before, n, kind); n++ {
								if n > 40 {
									t.Fatal("there is no end of commands")
								}
							}
						})
					}
				}
			}
		}
	})
}

// oneFailure has the n-th command fail; false: there is no such command. ordered: the tasks go through a Client of
// the root package, and have their place.
func oneFailure(t *testing.T, s *redistest.Server, rule Rule, ordered bool, before string, n int, kind redistest.CommandFault) bool {
	t.Helper()
	r := start(t, s)
	rule.Task = "work"
	produce := func(rdb redis.UniversalClient) *Client {
		if ordered {
			c, err := r.over(rdb, r.ordering(rdb, inOrder("work")), rule)
			redistest.Must(t, err)
			return c
		}
		return r.producer(rdb, rule)
	}
	if before != "" {
		old := r.must(produce(r.rdb).Enqueue(task("work", "7", "old")))
		if before == "pending" && old.State != asynq.TaskStatePending {
			redistest.Must(t, r.inspector.RunTask(r.queue, old.ID))
		}
	}
	hook := redistest.NewNthFault(n, kind, func(cmd redis.Cmder) bool { return !redistest.SetsUp(cmd) })
	rdb := r.hooked(func(cmd redis.Cmder) error {
		if kind == dead && hook.Failed() != "" && !redistest.SetsUp(cmd) {
			return dead.Err
		}
		return nil
	})
	rdb.AddHook(hook)
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	info, err := produce(rdb).EnqueueContext(ctx, task("work", "7", "new"))
	failed := hook.Failed()
	say := func(format string, args ...any) {
		t.Helper()
		t.Errorf("command %d (%s): Enqueue gave %v, %v: %s", n, failed, info, err, fmt.Sprintf(format, args...))
	}
	after := texts(r.tasks(r.queue, "work", live...))
	switch {
	case before != "" && len(after) == 0:
		say("the task that was there is lost")
	case err == nil && !rule.Duplicate.supersedes() && before != "" && !slices.Equal(after, []string{"old"}),
		err == nil && (rule.Duplicate.supersedes() || before == "") && !slices.Contains(after, "new"):
		say("there are %q", after)
	case len(after) > 2 || len(after) > 1 && (!rule.Duplicate.supersedes() || err == nil):
		say("there are %q", after)
	}
	if err == nil {
		if _, seen := r.inspector.GetTaskInfo(info.Queue, info.ID); seen != nil {
			say("the task that it gave is not there: %v", seen)
		}
	}
	// The claim of a producer that may still be enqueuing is waited out; here it is not
	// to be waited for.
	heal := produce(r.rdb)
	heal.grace, heal.patience = 0, 0
	if _, err := heal.Enqueue(task("work", "7", "next")); err != nil && !errors.Is(err, asynq.ErrDuplicateTask) {
		say("the next call fails: %v", err)
	}
	healed := texts(r.tasks(r.queue, "work", live...))
	if len(healed) != 1 || rule.Duplicate.supersedes() && healed[0] != "next" {
		say("after the next call there are %q, before it %q", healed, after)
	}
	return failed != ""
}

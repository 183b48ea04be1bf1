package unique

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// Whatever single command of an Enqueue fails, and however: what Enqueue reported as
// accepted is there, no task for the key is lost, and after the next call for the key,
// by a producer without faults, there is one task that has not started.
func TestEnqueue_survivesTheFailureOfAnyOneCommand(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	for _, until := range []Until{UntilDone, UntilStart, For(time.Hour)} {
		for _, duplicate := range []Duplicate{Reject, Join, Replace, Postpone(time.Hour)} {
			for _, ordered := range []bool{false, true} {
				if ordered && duplicate.supersedes() {
					continue // New refuses it
				}
				for _, before := range []int{0, 1} { // tasks in the way
					for _, kind := range redistest.CommandFaults {
						name := fmt.Sprintf("%s, %s, ordered %t, %d before, %s", until, duplicate, ordered, before, kind.Name)
						t.Run(name, func(t *testing.T) {
							t.Parallel()
							rule := Rule{Task: "work", On: []string{"id"}, Until: until, Duplicate: duplicate}
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
	}
}

// oneFailure has the n-th command fail; false: there is no such command. ordered: the tasks go through a Client of
// the root package, and have their place.
func oneFailure(t *testing.T, s *redistest.Server, rule Rule, ordered bool, before, n int, kind redistest.CommandFault) bool {
	t.Helper()
	r := start(t, s)
	produce := func(rdb redis.UniversalClient) *Client {
		if ordered {
			return r.orderedProducer(rdb, rule)
		}
		return r.producer(rdb, rule)
	}
	if before > 0 {
		r.must(produce(r.rdb).Enqueue(task("work", "7", "old")))
	}
	hook := redistest.NewNthFault(n, kind, func(cmd redis.Cmder) bool { return !redistest.SetsUp(cmd) })
	rdb := s.Client(t)
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
	case before > 0 && len(after) == 0:
		say("the task that was there is lost")
	case err == nil && !rule.Duplicate.supersedes() && before > 0 && !slices.Equal(after, []string{"old"}),
		err == nil && (rule.Duplicate.supersedes() || before == 0) && !slices.Contains(after, "new"):
		say("there are %q", after)
	case len(after) > 2 || len(after) > 1 && !rule.Duplicate.supersedes():
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

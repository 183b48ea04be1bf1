package unique

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// fault is what becomes of a command: it fails with err, before it is sent or, with sent, after.
type fault struct {
	name string
	err  error
	sent bool
}

// dead is the fault of a producer that is killed: no command after that arrives.
var dead = fault{"dead", errors.New("the producer is dead"), false}

var replyLost = fault{"reply lost", errors.New("EOF"), true}

// setsUp reports whether a command sets up a connection: no work of a caller depends on it.
func setsUp(cmd redis.Cmder) bool {
	return slices.Contains([]string{"hello", "client", "select", "cluster", "command", "readonly", "ping"}, cmd.Name())
}

// failNth makes a hook that fails the n-th command, counted from one; failed is its name, or empty.
func failNth(n int, kind fault) (hook *redistest.FailHook, failed func() string) {
	hook = &redistest.FailHook{}
	var mu sync.Mutex // guards n and it
	var it redis.Cmder
	hook.Before(func(cmd redis.Cmder) error {
		mu.Lock()
		defer mu.Unlock()
		if setsUp(cmd) {
			return nil
		}
		if n--; n == 0 {
			it = cmd
		}
		if n == 0 && !kind.sent || n < 0 && kind == dead {
			return kind.err
		}
		return nil
	})
	hook.After(func(cmd redis.Cmder) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case !kind.sent || cmd != it:
			return nil
		case redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT"):
			n, it = 1, nil
			return nil
		}
		return kind.err
	})
	return hook, func() string {
		mu.Lock()
		defer mu.Unlock()
		if it == nil {
			return ""
		}
		return it.Name()
	}
}

// Whatever single command of an Enqueue fails: what Enqueue reported as accepted is there, no task for the key is lost,
// and after the next call for the key, by a producer without faults, there is one task that has not started. Here on
// each server, and in order; the simulation has each kind of rule with each kind of fault.
func TestEnqueue_survivesTheFailureOfAnyOneCommand(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		s = own(t, s)
		try := func(rule Rule, ordered bool, before string, kind fault) {
			t.Run(fmt.Sprintf("%s, ordered %t, before: %s, %s", rule.Task, ordered, before, kind.name), func(t *testing.T) {
				t.Parallel()
				for n := 1; oneFailure(t, s, rule, ordered, before, n, kind); n++ {
					if n > 40 {
						t.Fatal("there is no end of commands")
					}
				}
			})
		}
		for _, rule := range kinds() {
			if rule.Until == UntilStart {
				try(rule, false, "pending", dead)
			}
			if s.Kind() == redistest.KindMini && !rule.Duplicate.supersedes() { // which New refuses in order
				try(rule, true, "pending", replyLost)
				try(rule, true, "", dead)
			}
		}
	})
}

// oneFailure has the n-th command fail; false: there is no such command. ordered: the tasks go through a Client of
// the root package, and have their place.
func oneFailure(t *testing.T, s *redistest.Server, rule Rule, ordered bool, before string, n int, kind fault) bool {
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
	hook, failedOne := failNth(n, kind)
	rdb := s.Client(t)
	rdb.AddHook(hook)
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	info, err := produce(rdb).EnqueueContext(ctx, task("work", "7", "new"))
	failed := failedOne()
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
	// The claim of a producer that may still be enqueuing is waited out; here it is not to be waited for.
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

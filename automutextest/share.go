package automutextest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// ShareKey checks that any two of the tasks need a common lock, and so take turns. A task
// that no rule matches, or from which no key can be made, fails the test too.
func ShareKey(tb testing.TB, g *Guard, tasks ...*asynq.Task) {
	tb.Helper()
	eachPair(tb, "ShareKey", g, tasks, func(a, b needs) {
		tb.Helper()
		if common(a, b) == nil {
			tb.Errorf("automutextest: ShareKey: these tasks share no key, so they may run at once:\n  %s\n  %s", a, b)
		}
	})
}

// ShareNoKey checks that no two of the tasks need a common lock, so that none waits for
// another. A task that no rule matches, or from which no key can be made, fails the test
// too.
func ShareNoKey(tb testing.TB, g *Guard, tasks ...*asynq.Task) {
	tb.Helper()
	eachPair(tb, "ShareNoKey", g, tasks, func(a, b needs) {
		tb.Helper()
		if lock := common(a, b); lock != nil {
			tb.Errorf("automutextest: ShareNoKey: these tasks share the key %s of rule %q, so they take turns:\n  %s\n  %s", lock.Key, lock.Rule, a, b)
		}
	})
}

// needs are a task's locks.
type needs struct {
	task  *asynq.Task
	locks []automutex.Explanation
}

func (n needs) String() string {
	keys := make([]string, len(n.locks))
	for i, lock := range n.locks {
		keys[i] = fmt.Sprintf("%s of rule %q", lock.Key, lock.Rule)
	}
	return fmt.Sprintf("%s %s: %s", n.task.Type(), brief(n.task.Payload()), strings.Join(keys, ", "))
}

// brief is a payload as a failure shows it.
func brief(payload []byte) string {
	const most = 200
	if len(payload) > most {
		return fmt.Sprintf("%q... (%d bytes)", payload[:most], len(payload))
	}
	return fmt.Sprintf("%q", payload)
}

func eachPair(tb testing.TB, what string, g *Guard, tasks []*asynq.Task, f func(a, b needs)) {
	tb.Helper()
	if len(tasks) < 2 {
		tb.Fatalf("automutextest: %s: %d tasks; give two or more to compare", what, len(tasks))
	}
	all := make([]needs, len(tasks))
	for i, task := range tasks {
		all[i] = needs{task, g.explain(tb, what, task)}
		for _, other := range all[:i] {
			f(other, all[i])
		}
	}
}

// common is the first lock of a that b needs too; nil when there is none.
func common(a, b needs) *automutex.Explanation {
	for i := range a.locks {
		for _, lock := range b.locks {
			if a.locks[i].Key == lock.Key {
				return &a.locks[i]
			}
		}
	}
	return nil
}

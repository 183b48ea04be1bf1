package unique

import (
	"fmt"
	"strings"

	"github.com/hibiken/asynq"
)

// DuplicateError says that a task was not enqueued, and which other task blocks its key. It Is
// asynq.ErrDuplicateTask. The call has enqueued and changed nothing, unless Alike is true. A
// DuplicateError is immutable.
type DuplicateError struct {
	// Rule is the Task of the rule.
	Rule string
	// Key is the key, as automutex.Guard.Keys returns it.
	Key string
	// ID and Queue name the task that blocks the key, for asynq's Inspector.
	ID, Queue string
	// State is the state of that task. It is asynq.TaskStateCompleted if that task does not
	// exist any more but still blocks the key under [For].
	State asynq.TaskState
	// Alike is true if the rule is [UntilDone], and that task has the same type, payload and
	// headers as the task of this call. Another call may have enqueued it, or this call
	// itself: if Redis' reply to an enqueue is lost, go-redis sends the command again, and
	// Redis replies that the ID exists. Nothing in asynq tells these two cases apart. Either
	// way the key has a task with the same content.
	Alike bool
}

// Error names the rule, the key, and the task that blocks the key.
func (e *DuplicateError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "unique: rule %q: key %q: task %q in queue %q is in the way: it is %s", e.Rule, e.Key, e.ID, e.Queue, e.State)
	if e.State == asynq.TaskStateArchived || e.State == asynq.TaskStateCompleted {
		b.WriteString("; it is in the way until asynq drops it, or until the window of For has passed")
	}
	if e.Alike {
		b.WriteString("; it says the same, and is this call's own if the reply to its enqueue was lost")
	}
	return b.String()
}

// Unwrap returns asynq.ErrDuplicateTask.
func (e *DuplicateError) Unwrap() error { return asynq.ErrDuplicateTask }

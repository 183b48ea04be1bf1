package unique

import (
	"fmt"
	"strings"

	"github.com/hibiken/asynq"
)

// DuplicateError says that a task was not enqueued because another one for its
// key stands in the way, and which one. It is asynq.ErrDuplicateTask for
// errors.Is. The call has enqueued and changed nothing, with the one exception that
// Alike tells. A DuplicateError is immutable.
type DuplicateError struct {
	// Rule is the Task of the rule.
	Rule string
	// Key is the key, as automutex.Guard.Keys gives it.
	Key string
	// ID and Queue name the task in the way, for asynq's Inspector.
	ID, Queue string
	// State is the state it was found in. One that has ended and left nothing, in the
	// window of [For], counts as completed.
	State asynq.TaskState
	// Alike: the rule is [UntilDone], and the task in the way has the type, payload and
	// headers of the one that was to be enqueued. Another call has enqueued the same,
	// or this one has: when Redis' reply to an enqueue is lost, go-redis sends it again,
	// and Redis answers that the ID is taken. asynq keeps nothing that tells the two
	// apart. Either way the key has a task that says the same.
	Alike bool
}

// Error names the rule, the key, and the task in the way.
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

// Unwrap gives asynq.ErrDuplicateTask.
func (e *DuplicateError) Unwrap() error { return asynq.ErrDuplicateTask }

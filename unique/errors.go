package unique

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/mark"
)

// ErrEnqueueUnderWay is what a call fails with if other producers were enqueuing the task that blocks
// the key, or replacing it, for all of [Config].Wait. Nothing was enqueued, and it is not known yet whether there will
// be a duplicate, so it is not asynq.ErrDuplicateTask. Try again.
var ErrEnqueueUnderWay = errors.New("another producer's enqueue for this key is under way")

// underWayError says that a claim stands and its task does not exist.
type underWayError struct {
	claim mark.Standing
	grace time.Duration // how long the claim blocks the key without a task
}

func (e *underWayError) Error() string {
	return fmt.Sprintf("%v: it took the key %s ago, and its task %s is not in Redis yet; try again, the key is free in %s at the latest",
		ErrEnqueueUnderWay, e.claim.Age.Round(time.Millisecond), e.claim.Holder, (e.grace - e.claim.Age).Round(time.Millisecond))
}

func (e *underWayError) Unwrap() error { return ErrEnqueueUnderWay }

// lostError says that asynq has a task that is in none of its lists: somebody has removed those by hand.
func lostError(queue, id string) error {
	return fmt.Errorf("asynq has lost task %q of queue %q from its lists, so the task never runs, and blocks the key: delete it with redis-cli DEL 'asynq:{%s}:t:%s'", id, queue, queue, id)
}

// DuplicateError says that a task was not enqueued, and which other task blocks its key. It Is
// asynq.ErrDuplicateTask. The call has enqueued and changed nothing. A DuplicateError is immutable.
type DuplicateError struct {
	// Rule is the Task of the rule.
	Rule string
	// Key is the key, as automutex.Guard.Keys returns it.
	Key string
	// ID and Queue name the task that blocks the key, for asynq's Inspector.
	ID, Queue string
	// State is the state of that task. It is asynq.TaskStateCompleted if Gone is true.
	State asynq.TaskState
	// Gone is true if asynq does not have that task any more, and it blocks the key all the same:
	// the time of [For] is not over.
	Gone bool
}

// Error names the rule, the key, and the task that blocks the key.
func (e *DuplicateError) Error() string {
	var b strings.Builder
	state := "gone from asynq"
	if !e.Gone {
		state = e.State.String()
	}
	fmt.Fprintf(&b, "unique: rule %q: key %q: task %q in queue %q is in the way: it is %s", e.Rule, e.Key, e.ID, e.Queue, state)
	if e.State == asynq.TaskStateArchived || e.State == asynq.TaskStateCompleted {
		b.WriteString("; it is in the way until asynq drops it, or until the window of For has passed")
	}
	return b.String()
}

// Unwrap returns asynq.ErrDuplicateTask.
func (e *DuplicateError) Unwrap() error { return asynq.ErrDuplicateTask }

package unique

import (
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/inside"
)

// Until says how long a task blocks its key for the next one. The zero value is
// [UntilDone]. Values can be compared with ==.
type Until struct {
	kind   decide.Until
	window time.Duration
}

// The values of Until that take no argument. Do not assign to them.
var (
	// UntilDone: from enqueue until the task is done, archived or deleted. So a key has at
	// most one live task. A handler that enqueues its own successor needs UntilStart: under
	// UntilDone the running task blocks its successor. UntilDone is the zero value.
	UntilDone = Until{kind: decide.UntilDone}

	// UntilStart: from enqueue until the task's handler first begins. So one task may run
	// while at most one waits, and what changed before Enqueue is seen by a run that begins
	// after it. The worker's automutex.Guard ends the block. It needs a rule with an equal Task,
	// Scope and On, so that the task holds the lock then; without that rule it warns. Do not give
	// that rule the policy automutex.Skip: a skipped task is one that other producers rely on.
	UntilStart = Until{kind: decide.UntilStart}
)

// For returns an Until of the fixed time d from the enqueue. In that time a key has at most
// one task, even if that task ends. After d the next task is accepted, even if the first still
// waits. d is at least a millisecond and at most ten years; [New] refuses others.
func For(d time.Duration) Until { return Until{kind: decide.ForTime, window: d} }

// String returns "until done", "until start" or "for 10m0s".
func (u Until) String() string {
	switch u.kind {
	case decide.UntilDone:
		return "until done"
	case decide.UntilStart:
		return "until start"
	case decide.ForTime:
		return "for " + u.window.String()
	}
	return fmt.Sprintf("until %d", u.kind)
}

func (u Until) check() error {
	if u.kind == decide.ForTime && (u.window < time.Millisecond || u.window > inside.MaxTTL) {
		return fmt.Errorf("For(%s) is no window; give it at least 1ms and at most %s; Go counts a bare number in nanoseconds", u.window, inside.MaxTTL)
	}
	return nil
}

// Duplicate says what happens to a task whose key another task blocks. The zero value is
// [Reject]. Values can be compared with ==.
type Duplicate struct {
	kind  decide.Duplicate
	delay time.Duration
}

// The values of Duplicate that take no argument. Do not assign to them.
var (
	// Reject returns a [*DuplicateError], which Is asynq.ErrDuplicateTask. It is the
	// zero value.
	Reject = Duplicate{kind: decide.Reject}

	// Join returns the asynq.TaskInfo of the existing task, as if it had just been
	// enqueued. A task that has ended and still blocks the key ([For], KeepArchived) is
	// rejected.
	Join = Duplicate{kind: decide.Join}

	// Replace lets the newest payload win while the handler of the existing task has not begun. The task
	// keeps the time at which it is due. Once that handler has begun, Replace is Reject, except under [UntilStart],
	// where the new task is enqueued.
	//
	// The existing task is deleted, and a new task with options of its own takes its place. One that waits in a worker
	// for its lock is dropped there. The place of a pending task in its queue is lost: the new one goes to the end of
	// the queue. So a task that is replaced faster than the queue is worked off does not run; Postpone has a bound. The workers need the Middleware of a Guard, which notes that a
	// handler begins.
	Replace = Duplicate{kind: decide.Replace}
)

// Postpone returns a Duplicate that debounces: the task runs d after the last call, with the
// payload of the last call. However many calls there are, the task runs after
// [Rule].MaxPostpone at the latest. The first call is put off by d too. The options
// asynq.ProcessIn and asynq.ProcessAt have no effect. The task never runs before d is over;
// since asynq keeps whole seconds, it is due up to a second later. If the existing task has
// begun, or is due and past MaxPostpone, Postpone is Reject under [UntilDone] and [For], and begins a new wait under [UntilStart]. d
// is at least a millisecond; [New] refuses others.
func Postpone(d time.Duration) Duplicate {
	return Duplicate{kind: decide.Postpone, delay: d}
}

// String returns "reject", "join", "replace" or "postpone by 5s".
func (d Duplicate) String() string {
	switch d.kind {
	case decide.Reject:
		return "reject"
	case decide.Join:
		return "join"
	case decide.Replace:
		return "replace"
	case decide.Postpone:
		return "postpone by " + d.delay.String()
	}
	return fmt.Sprintf("duplicate %d", d.kind)
}

func (d Duplicate) check() error {
	if d.kind == decide.Postpone && (d.delay < time.Millisecond || d.delay > inside.MaxTTL) {
		return fmt.Errorf("Postpone(%s) is no delay; give it at least 1ms and at most %s; Go counts a bare number in nanoseconds", d.delay, inside.MaxTTL)
	}
	return nil
}

// supersedes tells whether a new task may take the place of one that waits.
func (d Duplicate) supersedes() bool {
	return d.kind == decide.Replace || d.kind == decide.Postpone
}

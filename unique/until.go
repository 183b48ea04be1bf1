package unique

import (
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/inside"
)

// Until says how long a task that was enqueued stands in the way of the next one
// for its key. The zero value is [UntilDone]. Values can be compared with ==.
type Until struct {
	kind   untilKind
	window time.Duration
}

type untilKind uint8

const (
	untilDone untilKind = iota // the zero value of Until
	untilStart
	untilWindow
)

// The values of Until that take no argument. They are not to be assigned to.
var (
	// UntilDone: from enqueue until the task is done, archived or deleted, so
	// that there is one live task for a key at most. A handler that enqueues its
	// own successor needs UntilStart: here its own task is the duplicate. It is
	// the zero value.
	UntilDone = Until{kind: untilDone}

	// UntilStart: from enqueue until the task's handler first begins, so that one
	// may run while at most one waits: whatever changed before Enqueue is seen by
	// a run that begins after it. It needs a rule of the automutex.Guard with an
	// equal Task, Scope and On in the worker, since that one ends the claim when
	// it holds the lock; without it UntilStart lasts until the task has ended.
	UntilStart = Until{kind: untilStart}
)

// For is a fixed window that begins with the enqueue: at most one task for a key
// in that time, whatever becomes of it. It is over after d even if the task
// still waits. d is at least a millisecond and at most ten years; [New] refuses
// others.
func For(d time.Duration) Until { return Until{kind: untilWindow, window: d} }

// String names it: "until done", "until start" or "for 10m0s".
func (u Until) String() string {
	switch u.kind {
	case untilDone:
		return "until done"
	case untilStart:
		return "until start"
	case untilWindow:
		return "for " + u.window.String()
	}
	return fmt.Sprintf("until %d", u.kind)
}

func (u Until) check() error {
	if u.kind == untilWindow && (u.window < time.Millisecond || u.window > inside.MaxTTL) {
		return fmt.Errorf("For(%s) is no window; give it at least 1ms and at most %s; Go counts a bare number in nanoseconds", u.window, inside.MaxTTL)
	}
	return nil
}

// Duplicate says what becomes of a task that finds another one for its key. The
// zero value is [Reject]. Values can be compared with ==.
type Duplicate struct {
	kind  duplicateKind
	delay time.Duration
}

type duplicateKind uint8

const (
	duplicateReject duplicateKind = iota // the zero value of Duplicate
	duplicateJoin
	duplicateReplace
	duplicatePostpone
)

// The values of Duplicate that take no argument. They are not to be assigned to.
var (
	// Reject answers with a [*DuplicateError], which is asynq.ErrDuplicateTask.
	// It is the zero value.
	Reject = Duplicate{kind: duplicateReject}

	// Join answers with the asynq.TaskInfo of the task that is there, as if it
	// had just been enqueued.
	Join = Duplicate{kind: duplicateJoin}

	// Replace lets the newest payload win while the task that is there has not
	// started, and keeps that one's time (a second or two later where that time is less
	// than a second away); once it has started, Replace is Reject.
	// A scheduled task only gets the new payload, and keeps the options it was
	// enqueued with; in another state a new task takes its place. A task that is
	// in a worker is out of reach, even if it only waits there for its lock: where
	// Replace matters give the worker's rule no Wait.
	Replace = Duplicate{kind: duplicateReplace}
)

// Postpone is debounce: a task runs d after the last call, with the payload of
// the last call, and however many calls there are at the latest after
// [Rule].MaxPostpone. The time of the first call is put off by d as well, and the
// options asynq.ProcessIn and asynq.ProcessAt have no effect. asynq counts whole
// seconds and looks for due tasks every few, so d is what passes at least; the time in
// asynq is up to 2 seconds later, also for a d below a second. When
// the task that is there has started, Postpone is Reject under [UntilDone]; with
// [UntilStart] the call begins a new wait. d is at least a millisecond; [New] refuses
// others.
func Postpone(d time.Duration) Duplicate {
	return Duplicate{kind: duplicatePostpone, delay: d}
}

// String names it: "reject", "join", "replace" or "postpone by 5s".
func (d Duplicate) String() string {
	switch d.kind {
	case duplicateReject:
		return "reject"
	case duplicateJoin:
		return "join"
	case duplicateReplace:
		return "replace"
	case duplicatePostpone:
		return "postpone by " + d.delay.String()
	}
	return fmt.Sprintf("duplicate %d", d.kind)
}

func (d Duplicate) check() error {
	if d.kind == duplicatePostpone && (d.delay < time.Millisecond || d.delay > inside.MaxTTL) {
		return fmt.Errorf("Postpone(%s) is no delay; give it at least 1ms and at most %s; Go counts a bare number in nanoseconds", d.delay, inside.MaxTTL)
	}
	return nil
}

// supersedes tells whether a new task may take the place of one that waits.
func (d Duplicate) supersedes() bool {
	return d.kind == duplicateReplace || d.kind == duplicatePostpone
}

package automutex

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// ErrBusy is the sentinel under every [*BusyError]; it is [lock.ErrBusy], so
// that one errors.Is serves tasks and plain locks alike.
var ErrBusy = lock.ErrBusy

// ErrClosed is the cause under what a task is answered after [Guard.Close].
var ErrClosed = lock.ErrClosed

// ErrReplaced is the cause with which the context of a handler ends when a newer
// task wants its lock (policy [Replace]). A task that ends for it ends revoked:
// asynq keeps it neither as failed nor as done.
var ErrReplaced = errors.New("automutex: replaced by a newer task")

// BusyError says that a task did not get a lock because others hold it. It is
// handed to [AfterFailure], carried by [Event], and is what asynq stores as the
// task's last error, so its text is written for an operator.
//
// It unwraps to [ErrBusy], and also to the context error that ended the wait
// where there was one. A BusyError is immutable and may be shared.
type BusyError struct {
	// Rule is the name of the rule whose lock was taken.
	Rule string
	// Key is the lock's key, as [Guard.Keys] gives it.
	Key string
	// Holder is the owner label (host:pid unless Config.Owner says otherwise)
	// of one holder. Empty when the key is only cooling down, or when the line
	// is served first and nobody holds yet.
	Holder string
	// HolderTask is "queue/task-id" of that holder's task; empty when the
	// holder is no task.
	HolderTask string
	// SameTask is true when the holder is an earlier attempt of this very task
	// (same queue, same ID) that is still running.
	SameTask bool
	// ExpiresIn is the time until the first holder's deadline, unless it is
	// renewed or released before: a hint for a delay, not a promise.
	ExpiresIn time.Duration
	// Waited is how long this task stood in line before it gave up; 0 when it
	// did not wait.
	Waited time.Duration
	// Place is the task's place in line when it gave up: 0 is the head. It is
	// also 0 when the task did not stand in line.
	Place int

	parked   bool          // its place in line is kept
	takenFor time.Duration // parked: how long ago the key was last taken
	inLine   time.Duration // parked: how long it has kept its place
	cooldown bool          // nobody holds the key: it is cooling down for ExpiresIn
	cause    error
}

// Error names the rule, the key, the holder and how long the task waited.
func (e *BusyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "automutex: rule %q: ", e.Rule)
	if e.parked {
		fmt.Fprintf(&b, "%s place %d in line", parkedOn(e.Key), e.Place+1)
	} else {
		fmt.Fprintf(&b, "key %q is busy", e.Key)
	}
	switch {
	case e.SameTask:
		fmt.Fprintf(&b, ": an earlier attempt of this task (%s) still runs on %s", printable.Short(e.HolderTask), printable.Short(e.Holder))
	case e.HolderTask != "":
		fmt.Fprintf(&b, ": held by task %s on %s", printable.Short(e.HolderTask), printable.Short(e.Holder))
	case e.Holder != "":
		fmt.Fprintf(&b, ": held by %s", printable.Short(e.Holder))
	}
	switch {
	case e.cooldown:
		fmt.Fprintf(&b, ": cooling down for %s", e.ExpiresIn.Round(time.Millisecond))
	case e.ExpiresIn > 0:
		fmt.Fprintf(&b, " until its deadline in %s unless renewed", e.ExpiresIn.Round(time.Millisecond))
	}
	if e.Waited > 0 {
		fmt.Fprintf(&b, "; waited %s", e.Waited.Round(time.Millisecond))
	}
	// A holder outside asynq has whatever note it likes, and asynq files no error
	// that is not UTF-8: the task would stay active until its lease is over.
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// Unwrap gives ErrBusy and what ended the wait.
func (e *BusyError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrBusy}
	}
	return []error{ErrBusy, e.cause}
}

// Is makes every BusyError match ErrBusy without allocating.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

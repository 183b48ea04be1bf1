package automutex

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/claim"
)

// outcome is the result of one step on the path. The zero value means that the task
// goes on to the next step.
type outcome struct {
	step step
	err  error // with finished: what Middleware returns to asynq; nil means done
}

type step uint8

const (
	proceed     step = iota // go on to the next step
	takeAgain               // all locks are released again: take them from the first one on
	finished                // the task ends here, with outcome.err
	guardClosed             // the task ends here: the Guard is closed; see afterClose
)

func finish(err error) outcome { return outcome{step: finished, err: err} }

// finishEnded ends a task whose context has ended. asynq has already moved the task to its
// retry or archived set, and may run it again: the handler must not start any more.
func (d *delivery) finishEnded() outcome { return finish(context.Cause(d.ctx)) }

// The errors that Middleware returns to asynq for a task that does not run, besides a plain
// error: returnedTask, archive and revoked.

// returnedTask is the error of Middleware for a task that returns to asynq, its attempt not
// spent. returnTask makes it and observes EventRetried; park and parkFirst make their own,
// and observe EventParked. ServerConfig's functions recognize it by its guard. They leave
// any other error to asynq: it is the handler's, even if it is a BusyError of a lock that
// the handler took itself.
type returnedTask struct {
	guard *Guard
	err   error
	delay time.Duration
}

// Error is valid UTF-8, since asynq stores no other text. Package unique recognizes a
// returned task by how the text begins.
func (r *returnedTask) Error() string {
	return strings.ToValidUTF8(claim.ReturnText(r.err.Error()), "\uFFFD")
}

func (r *returnedTask) Unwrap() error { return r.err }

// archive is the error of Middleware for a task that asynq must archive. Its text is the
// reason, as valid UTF-8 whatever a KeyFunc's error quotes. asynq cannot store other text:
// the task would stay active until asynq's own lease on it ends.
type archive struct{ err error }

func (e archive) Error() string { return strings.ToValidUTF8(e.err.Error(), "\uFFFD") }

func (e archive) Unwrap() []error { return []error{e.err, asynq.SkipRetry} }

// revoked is the error of Middleware for a task that was replaced: asynq drops the task,
// and counts it neither as done nor as failed. ServerConfig's functions recognize it by its
// guard.
type revoked struct {
	guard     *Guard
	rule, key string
	err       error // the handler's; nil when the handler has not run
}

func (r *revoked) Error() string {
	text := fmt.Sprintf("automutex: rule %q: key %q: replaced by a newer task", r.rule, r.key)
	if r.err != nil && !errors.Is(r.err, ErrReplaced) {
		text += ": " + r.err.Error()
	}
	return text
}

func (r *revoked) Unwrap() []error {
	if r.err == nil {
		return []error{ErrReplaced, asynq.RevokeTask}
	}
	return []error{ErrReplaced, asynq.RevokeTask, r.err}
}

// findReturned returns the returnedTask of this Guard in err, or nil.
func (g *Guard) findReturned(err error) *returnedTask {
	var r *returnedTask
	for errors.As(err, &r) {
		if r.guard == g {
			return r
		}
		err = r.err
	}
	return nil
}

// isRevoked reports whether err wraps a revoked of this Guard.
func (g *Guard) isRevoked(err error) bool {
	var r *revoked
	for errors.As(err, &r) {
		if r.guard == g {
			return true
		}
		err = r.err
	}
	return false
}

// returnTask observes EventRetried and returns the task to asynq, its attempt not spent. It
// must not be called on the last attempt: asynq would archive the task. reason is a
// *BusyError if the key of t was busy.
func (d *delivery) returnTask(t target, reason error, delay time.Duration) outcome {
	policy := t.rule.Busy
	var busy *BusyError
	if errors.As(reason, &busy) {
		policy = t.policyFor(busy)
	}
	d.observe(Event{Kind: EventRetried, Rule: t.rule.Name, Key: t.key, Policy: policy, Delay: delay})
	return finish(&returnedTask{guard: d.guard, err: reason, delay: delay})
}

// stoppedWaiting ends a task that stopped waiting on its last attempt. err says what the
// task waited for.
func (d *delivery) stoppedWaiting(err error) outcome {
	switch {
	case d.ctx.Err() != nil:
		return d.finishEnded()
	case d.isReplaced():
		return finish(d.revoke(nil))
	case errors.Is(err, ErrClosed), d.guard.closing.Err() != nil:
		return outcome{step: guardClosed}
	}
	return finish(err) // the task's time is up: asynq archives it with this error
}

// afterClose returns a task to asynq when the Guard is closed. On the last attempt asynq
// would archive the task for any error. So afterClose blocks until asynq requeues the task
// at the end of its ShutdownTimeout, and ends the task's context.
func (d *delivery) afterClose() error {
	if d.lastAttempt {
		<-d.ctx.Done()
		return context.Cause(d.ctx)
	}
	if d.guard.closeDone.Load() {
		d.guard.warnOnce("closed", "the Guard is closed, but tasks still arrive; tasks with a rule return to asynq and do not run; "+
			"if the server is not shutting down, Close was called too early, for example by a defer in a function that returns before the server stops", "type", d.task.Type(), "task", d.note)
	}
	delay := retryDelay()
	d.observe(Event{Kind: EventRetried, Delay: delay, Err: errTaskAfterClose})
	return &returnedTask{guard: d.guard, err: errTaskAfterClose, delay: delay}
}

package automutex

import (
	"context"
	"errors"
	"time"
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
	finished                // the task ends here, with outcome.err
	guardClosed             // the task ends here: the Guard is closed; see afterClose
)

func finish(err error) outcome { return outcome{step: finished, err: err} }

// returnTask observes EventRetried and returns the task to asynq, its attempt not spent. It
// must not be called on the last attempt: asynq would archive the task.
func (a *attempt) returnTask(t target, reason error, delay time.Duration) outcome {
	a.observe(Event{Kind: EventRetried, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Delay: delay})
	return finish(&returnedTask{guard: a.guard, err: reason, delay: delay})
}

// stoppedWaiting ends a task that stopped waiting on its last attempt. err says what the
// task waited for.
func (a *attempt) stoppedWaiting(err error) outcome {
	switch {
	case a.ctx.Err() != nil:
		return finish(context.Cause(a.ctx))
	case a.isReplaced():
		return finish(a.revoke(nil))
	case errors.Is(err, ErrClosed), a.guard.closing.Err() != nil:
		return outcome{step: guardClosed}
	}
	return finish(err) // the task's time is up: asynq archives it with this error
}

// afterClose returns a task to asynq when the Guard is closed. On the last attempt asynq
// would archive the task for any error. So afterClose blocks until asynq requeues the task
// at the end of its ShutdownTimeout, and ends the task's context.
func (a *attempt) afterClose() error {
	if a.lastAttempt {
		<-a.ctx.Done()
		return context.Cause(a.ctx)
	}
	if a.guard.closeDone.Load() {
		a.guard.warnOnce("closed", "the Guard is closed, but tasks still arrive; tasks with a rule return to asynq and do not run; "+
			"if the server is not shutting down, Close was called too early, for example by a defer in a function that returns before the server stops", "type", a.task.Type(), "task", a.note)
	}
	delay := retryDelay()
	a.observe(Event{Kind: EventRetried, Delay: delay, Err: errTaskAfterClose})
	return &returnedTask{guard: a.guard, err: errTaskAfterClose, delay: delay}
}

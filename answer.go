package automutex

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/claim"
)

// handBack is the answer of a task that goes back to asynq with its attempt not
// spent. ServerConfig's functions know it by guard: whatever else a handler
// returns, a BusyError of a lock of its own included, is the handler's.
type handBack struct {
	guard *Guard
	err   error
	delay time.Duration
}

// Error is UTF-8, or asynq could not file it. Package unique goes by how it begins.
func (h *handBack) Error() string {
	return strings.ToValidUTF8(claim.HandBackText(h.err.Error()), "\uFFFD")
}

func (h *handBack) Unwrap() error { return h.err }

// archive is the answer of a task that asynq shall archive: its text is the
// reason alone, in UTF-8, whatever a KeyFunc's error quotes. asynq files no other:
// the task would stay active until its lease is over, and come back.
type archive struct{ err error }

func (e archive) Error() string   { return strings.ToValidUTF8(e.err.Error(), "\uFFFD") }
func (e archive) Unwrap() []error { return []error{e.err, asynq.SkipRetry} }

// judge says what becomes of a task that did not get a lock; nil when its
// handler is to run all the same (policy Allow, or the lock was got after all).
func (a *attempt) judge(t target, err error) *verdict {
	var busy *BusyError
	switch {
	case a.ctx.Err() != nil:
		// asynq has filed the task already, and listens no more.
		return &verdict{answer: context.Cause(a.ctx)}
	case a.stopped():
		return a.outrun(t, err)
	case errors.Is(err, ErrClosed):
		return &verdict{closed: true}
	case !errors.As(err, &busy):
		a.backendError(t, err)
		return a.retry(t, err, a.guard.outage.delay())
	}
	a.guard.outage.over(a.guard.log)
	a.observe(Event{Kind: EventBusy, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Waited: busy.Waited, Busy: busy})
	return a.apply(t, busy)
}

// apply is the policy. An earlier attempt of the same task is still this task:
// to skip, archive or fail it for that would lose its work.
func (a *attempt) apply(t target, busy *BusyError) *verdict {
	policy := t.rule.Busy
	if busy.SameTask && policy.kind != policyAllow && policy.kind != policyAfterFailure && policy.kind != policyRetryIn {
		policy = Retry
	}
	switch policy.kind {
	case policySkip:
		a.guard.log.Debug("automutex: skipped: the key is busy",
			"rule", t.rule.Name, "key", t.key, "task", a.note, "holder", busy.HolderTask)
		a.observe(Event{Kind: EventSkipped, Rule: t.rule.Name, Key: t.key, Policy: policy})
		return &verdict{}
	case policyArchive:
		return &verdict{answer: archive{busy}}
	case policyFail:
		return &verdict{answer: busy}
	case policyAllow:
		return nil
	case policyAfterFailure:
		err := policy.failureFunc()(a.ctx, a.task, busy)
		if !returned(err, busy) || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) {
			return &verdict{answer: err}
		}
	case policyRetryIn:
		return a.retry(t, busy, policy.delay)
	case policyPark:
		if busy.parked {
			return a.park(t, busy)
		}
	case policyRetry, policyReplace:
	}
	return a.retry(t, busy, retryDelay())
}

// returned tells whether err is that very BusyError, or wraps it.
func returned(err error, busy *BusyError) bool {
	var got *BusyError
	return errors.As(err, &got) && got == busy
}

// retry hands the task back. With no attempts left asynq would archive it for
// that, so it waits in the worker instead.
func (a *attempt) retry(t target, reason error, delay time.Duration) *verdict {
	if !a.last {
		return a.handBack(t, reason, delay)
	}
	began := time.Now()
	if _, err := a.insist(t); err != nil {
		return a.gaveUp(err)
	}
	a.tellAcquired(t, time.Since(began))
	return nil
}

// handBack returns the task to asynq, its attempt not spent. It must not be
// called on a task's last attempt, which asynq would archive for that.
func (a *attempt) handBack(t target, reason error, delay time.Duration) *verdict {
	a.observe(Event{Kind: EventRetried, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Delay: delay})
	return &verdict{answer: &handBack{guard: a.guard, err: reason, delay: delay}}
}

// againAfter is how long a task on its last attempt pauses before it takes its
// locks from the beginning: so a lease that is lost each time, such as one with
// a MaxHold shorter than the wait for the next lock, costs no busy loop.
const againAfter = 100 * time.Millisecond

// startAgain is for a task one of whose leases ended before its handler began:
// it goes back, or, with no attempts left, takes all locks again (nil).
func (a *attempt) startAgain(early *stay) *verdict {
	if !a.last {
		return a.handBack(early.target, early.loss(), retryDelay())
	}
	a.release()
	if a.pause(againAfter) {
		return nil
	}
	return a.gaveUp(early.loss())
}

// gaveUp is the verdict on a task that stopped waiting on its last attempt, for
// want of what err says.
func (a *attempt) gaveUp(err error) *verdict {
	switch {
	case a.ctx.Err() != nil:
		return &verdict{answer: context.Cause(a.ctx)}
	case a.stopped():
		return &verdict{answer: a.revoke(nil)}
	case errors.Is(err, ErrClosed), a.guard.closing.Err() != nil:
		return &verdict{closed: true}
	}
	return &verdict{answer: err} // the task's own time is up: asynq archives it, with who was in the way
}

package automutex

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/inside"
)

// Hold closes the gate of the handler's key for d from now: no other task gets the key,
// whatever the Limit. Running handlers go on. Use it when an upstream says "not now", such as
// HTTP 429 with Retry-After:
//
//	if err := automutex.Hold(ctx, wait); err != nil {
//		return err
//	}
//	return automutex.RetryAfter(wait, errUpstreamBusy)
//
// No policy drops a task that meets a hold: under Skip, Archive, Fail and AfterFailure too the
// task returns to asynq, its attempt not spent. A second Hold never shortens the first. A hold
// outlives the handler. [lock.Lock.BreakAll], the command automutex and its web page end it.
//
// ctx is the handler's context. If the task holds several locks, Hold closes the one taken
// last, as [Lease] does. d is more than 0 and at most ten years, and is rounded up to whole
// milliseconds. The error Is [lock.ErrNotHeld] if the lease was lost. It Is [lock.ErrBackend]
// if Redis could not be asked (the gate may be closed or not), or if too few replicas have the
// hold (see [Config].MinReplicas). Without a lease Hold returns another error.
func Hold(ctx context.Context, d time.Duration) error {
	h := innermostLease(ctx)
	if h == nil {
		return errors.New("automutex: Hold: no lock in this context: call it in a handler behind Guard.Middleware, with the handler's context")
	}
	ends := time.Now().Add(d)
	if err := inner.Hold(ctx, h.held.lease, d); err != nil {
		return fmt.Errorf("automutex: Hold: %w", err)
	}
	h.held.holdEnds.Store(&ends)
	return nil
}

// RetryAfter returns an error with which a handler returns its task to asynq: the task runs
// again after d, its attempt not spent, and asynq does not call [asynq.Config].ErrorHandler.
// err is the reason, and may be nil. A d below 0 counts as 0, and one above ten years as ten
// years. asynq looks for such tasks every DelayedTaskCheckInterval (5 seconds by default), so
// the task may run some seconds after d is over, but never before.
//
// RetryAfter works for every task of a server with [Guard.ServerConfig], whether a rule
// matches the task or not. The handler may wrap the error. If err wraps asynq.SkipRetry, asynq
// archives the task.
//
// A task on its last attempt cannot return to asynq, which would archive it. If its handler is
// wrapped in [Guard.Middleware], the task waits in its worker without its locks, and the
// handler runs again. If less than a second to the task's deadline would then be left, asynq
// archives the task with err.
func RetryAfter(d time.Duration, err error) error {
	return &retryAfter{delay: min(max(0, d), inside.MaxTTL), err: err}
}

// retryAfter is what RetryAfter makes. Any Guard's ServerConfig recognizes it.
type retryAfter struct {
	delay time.Duration
	err   error
}

// Error is valid UTF-8, since asynq stores no other text.
func (r *retryAfter) Error() string {
	text := fmt.Sprintf("to be run again after %s", r.delay)
	if r.err != nil {
		text += ": " + r.err.Error()
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func (r *retryAfter) Unwrap() error { return r.err }

// wantsRetryAfter returns the RetryAfter in a handler's error, or nil. An error that also
// wraps asynq.SkipRetry or asynq.RevokeTask is none.
func wantsRetryAfter(err error) *retryAfter {
	if err == nil {
		return nil
	}
	var r *retryAfter
	if !errors.As(err, &r) || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) {
		return nil
	}
	return r
}

// retryHere reports whether the handler of a task on its last attempt runs again in its
// worker. It sleeps for the delay of the handler's RetryAfter, without a lock. closed is
// true if the Guard was closed instead.
func (d *delivery) retryHere(err error) (again, closed bool) {
	r := wantsRetryAfter(err)
	if r == nil || d.id == "" || d.ctx.Err() != nil || d.isReplaced() {
		return false, false
	}
	if !d.lastAttempt {
		d.observe(Event{Kind: EventRetried, Delay: r.delay, Err: err})
		return false, false
	}
	if deadline, ok := d.ctx.Deadline(); ok && time.Until(deadline)-margin < r.delay {
		return false, false // asynq archives the task with the handler's error
	}
	d.release()
	if d.sleepOnLastAttempt(r.delay) {
		d.handlerStart = time.Time{}
		return true, false
	}
	return false, d.guard.closing.Err() != nil
}

// parkFirst parks a task ahead of all parked tasks, so that it is woken first when the gate
// opens. It does so under the policy Park, if the handler put its key on Hold and returned a
// RetryAfter that is over before the Hold, or within a second after it. Otherwise, or if
// Redis did not park the task, parkFirst returns err: only the RetryAfter brings it back.
func (d *delivery) parkFirst(err error) error {
	r := wantsRetryAfter(err)
	if r == nil || d.lastAttempt || d.note == "" || d.ctx.Err() != nil || d.guard.closing.Err() != nil {
		return err
	}
	i := slices.IndexFunc(d.leases, func(h *heldLease) bool {
		ends := h.holdEnds.Load()
		return h.target.rule.Busy.kind == policyPark && ends != nil && time.Until(*ends) > r.delay-time.Second
	})
	if i < 0 {
		return err
	}
	t := d.leases[i].target
	d.release() // nothing parks behind its own lease
	d.handlerStart = time.Time{}
	lease, lockErr := inner.LockOrPark(d.ctx, d.lockOf(t, inner.ParkFirst()), parkNow)
	var busy *BusyError
	if lockErr = d.keepLease(t, lease, lockErr); !errors.As(lockErr, &busy) || !busy.parked {
		return err // an operator has opened the gate, or Redis does not answer
	}
	delay := notBefore(r.delay)
	d.checkInspector()
	d.observe(Event{Kind: EventParked, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Delay: delay, Busy: busy})
	return &returnedTask{guard: d.guard, err: fmt.Errorf("%w: %w", busy, err), delay: delay}
}

// runWithoutLocks runs the handler of a task that needs no lock.
func (g *Guard) runWithoutLocks(ctx context.Context, t *asynq.Task, next asynq.Handler) error {
	for {
		err := next.ProcessTask(ctx, t)
		if wantsRetryAfter(err) == nil {
			return err
		}
		d := g.newDelivery(ctx, t)
		again, closed := d.retryHere(err)
		switch {
		case closed:
			return d.afterClose()
		case !again:
			return err
		}
	}
}

package automutex

import (
	"context"
	"errors"
	"time"

	"github.com/automutex/automutex/lock"
)

// This file is how a task waits for a lock.

// margin is how long before its task's deadline a wait ends. When the task's context ends,
// asynq fails the attempt, whatever the handler returns later. So the middleware returns
// before.
const margin = time.Second

// acquire takes a lock. It waits in line for at most the rule's Wait. The error is one of
//
//   - a *BusyError: others hold the lock, its gate is closed, or an operator paused it;
//   - ErrReplaced, or any error while isReplaced is true: a newer task has come;
//   - ErrClosed: the Guard was closed;
//   - the error of the task's context;
//   - lock.ErrBackend: Redis failed.
func (a *attempt) acquire(t target) error {
	kind := t.rule.Busy.kind
	switch {
	case kind == policyReplace:
		return a.replace(t)
	case kind == policyPark && !a.lastAttempt && a.note != "":
		return a.lockOrPark(t, a.lockOf(t))
	}
	maxWait := t.rule.Wait
	// Wait has no meaning for Park. A task on its last attempt waits in retry instead.
	if kind == policyPark || maxWait > 0 && !a.reserveWait() {
		maxWait = 0
	}
	if maxWait == 0 {
		lease, err := a.lockOf(t).TryLock(a.ctx)
		return a.keepLease(t, lease, err)
	}
	defer a.guard.waiting.Add(-1)
	a.warnLongWait(t)
	// InTimeOnly: return at once if the gate opens only after the wait.
	return a.lockWithin(t, a.lockOf(t, inner.InTimeOnly()), maxWait)
}

// lockOf returns a handle of the target's lock, with the options of this attempt.
func (a *attempt) lockOf(t target, more ...lock.Option) *lock.Lock {
	options := a.guard.lockOptions(t, a.note)
	options = append(append(options, more...), a.onStop(t)...)
	options = append(options, inner.OnWait(func() { a.observeWaiting(t) }))
	if a.deadlineIsFar() {
		options = append(options, inner.Uninterrupted())
	}
	return a.guard.locker.Semaphore(t.scope, t.limit, options...)
}

// farDeadline is how far away a task's deadline must be so that the task's context need not
// end a round trip to Redis: a round trip ends by itself, after about 5 s at most. So a
// round trip with a far deadline runs on the caller's goroutine, without another one that
// watches the context. The attempt checks the context afterwards, before the handler starts.
const farDeadline = 15 * time.Second

func (a *attempt) deadlineIsFar() bool {
	deadline, ok := a.ctx.Deadline()
	return !ok || time.Until(deadline) > farDeadline
}

// roundTripContext returns the context for a single round trip to Redis. The task's context
// ends it only if the deadline is near; see farDeadline.
func (a *attempt) roundTripContext() context.Context {
	if a.deadlineIsFar() {
		return context.WithoutCancel(a.ctx)
	}
	return a.ctx
}

// lockOptions returns the options of a target's lock, with room for those that lockOf adds.
func (g *Guard) lockOptions(t target, note string) []lock.Option {
	const more = 6
	options := make([]lock.Option, 0, len(t.rule.lockOptions)+more)
	return append(append(options, t.rule.lockOptions...), inner.WithKey(t.key), lock.Note(note))
}

// reserveWait counts a worker as waiting. It returns false when MaxWaiting workers wait
// already. After true, the caller subtracts 1 from Guard.waiting when the wait is over.
func (a *attempt) reserveWait() bool {
	waiting := a.guard.waiting.Add(1)
	if maxWaiting := a.guard.cfg.MaxWaiting; maxWaiting > 0 && waiting > int64(maxWaiting) {
		a.guard.waiting.Add(-1)
		return false
	}
	return true
}

// lockWithin waits in line until the lock is granted, maxWait is over, the margin before
// the task's deadline is reached, the Guard closes, an operator pauses the key, or a newer
// task replaces this one. A pause does not end the wait of a task on its last attempt.
func (a *attempt) lockWithin(t target, handle *lock.Lock, maxWait time.Duration) error {
	if deadline, ok := a.ctx.Deadline(); ok {
		maxWait = min(maxWait, time.Until(deadline)-margin)
	}
	// ctx ends everything. maxWait only bounds the time in line: if the answer to an earlier
	// ask arrives after maxWait and grants the lock, the task keeps the lock.
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	defer context.AfterFunc(a.guard.closing, cancel)()
	if maxWait <= 0 && a.guard.closing.Err() == nil {
		// No time is left to wait, so try once.
		lease, err := handle.TryLock(a.ctx)
		return a.keepLease(t, lease, err)
	}
	defer a.observeWaited(t)
	defer a.watchWhileWaiting(t, handle, cancel)()
	if a.lastAttempt { // asynq would archive it, so it waits for the end of a pause too
		return a.lockInLine(ctx, t, handle, maxWait)
	}
	return a.lockUnlessPaused(ctx, cancel, t, handle, maxWait)
}

// lockUnlessPaused waits as lockInLine does, and ends the wait when an operator pauses the
// key: then Guard.pauses calls cancel, and the error is a *BusyError with ReasonPaused.
func (a *attempt) lockUnlessPaused(ctx context.Context, cancel context.CancelFunc, t target, handle *lock.Lock, maxWait time.Duration) (err error) {
	watched := a.guard.pauses.add(t.key, cancel)
	// Deferred, so that an Observe that panics leaves no watch behind.
	defer func() { err = endedByPause(err, a.guard.pauses.remove(watched)) }()
	if err = a.pausedError(t); err != nil { // after add: a pause is seen here, or ends the wait
		return err
	}
	return a.lockInLine(ctx, t, handle, maxWait)
}

// lockInLine waits in line for at most maxWait. It returns ErrClosed if the Guard closed
// meanwhile.
func (a *attempt) lockInLine(ctx context.Context, t target, handle *lock.Lock, maxWait time.Duration) error {
	lease, err := inner.LockWithin(ctx, handle, maxWait)
	if err != nil && a.guard.closing.Err() != nil {
		return ErrClosed
	}
	return a.keepLease(t, lease, err)
}

// observeWaiting observes that the task begins to wait in line.
func (a *attempt) observeWaiting(t target) {
	a.waitingSince = time.Now()
	a.observe(Event{Kind: EventWaiting, Rule: t.rule.Name, Key: t.key})
}

// observeWaited observes the end of a wait, if it began.
func (a *attempt) observeWaited(t target) {
	if a.waitingSince.IsZero() {
		return
	}
	waited := time.Since(a.waitingSince)
	a.waitingSince = time.Time{}
	a.observe(Event{Kind: EventWaited, Rule: t.rule.Name, Key: t.key, Waited: waited})
}

// waitUntilDeadline takes the lock for a task on its last attempt: asynq would archive the
// task for any error, although its handler has not run. waitUntilDeadline ignores MaxWaiting
// and the policy's maxWait, and tries again while Redis fails. It stops only at the margin
// before the task's deadline, when the Guard closes, or when a newer task replaces this one.
func (a *attempt) waitUntilDeadline(t target) error {
	a.guard.waiting.Add(1)
	defer a.guard.waiting.Add(-1)
	for {
		err := a.waitOnce(t)
		if err == nil {
			a.guard.outage.noteSuccess(a.guard.log)
			return nil
		}
		var busy *BusyError
		if errors.As(err, &busy) || errors.Is(err, ErrClosed) || a.ctx.Err() != nil || a.isReplaced() {
			return err
		}
		a.backendError(t, err)
		if !a.sleepOnLastAttempt(a.guard.outage.delay()) {
			if a.guard.closing.Err() != nil {
				return ErrClosed
			}
			return err
		}
	}
}

// waitOnce waits in line until the margin before the task's deadline, once.
func (a *attempt) waitOnce(t target) error {
	const forever = 1 << 62 // lockWithin shortens it to the task's deadline
	if t.rule.Busy.kind == policyReplace {
		return a.replaceInLine(t, forever)
	}
	return a.lockWithin(t, a.lockOf(t), forever)
}

// sleepOnLastAttempt blocks the worker of a task on its last attempt for d, or until the
// margin before the task's deadline. It returns false, at once, when the task must not try
// again: its time is up, the Guard closes, or a newer task replaced it.
func (a *attempt) sleepOnLastAttempt(d time.Duration) (again bool) {
	if deadline, ok := a.ctx.Deadline(); ok {
		left := time.Until(deadline) - margin
		if left <= 0 {
			return false
		}
		d = min(d, left)
	}
	var replaced <-chan struct{} // nil blocks for ever: no lock of the task has Replace
	if a.replacing != nil {
		replaced = a.replacing.stopRequested.Done()
	}
	timer := time.NewTimer(d) // the worker's own; ends with this call
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-a.ctx.Done():
	case <-a.guard.closing.Done():
	case <-replaced:
	}
	return false
}

// asynqTimeout is the Timeout that asynq gives to a task enqueued with neither
// asynq.Timeout nor asynq.Deadline.
const asynqTimeout = 30 * time.Minute

// longestWait returns the longest time that a task of the rule waits in its worker before
// the policy applies. It is 0 for Park, whose wait has no fixed bound: see lockOrPark.
func (c *compiledRule) longestWait() time.Duration {
	switch {
	case c.Busy.kind == policyPark:
		return 0
	case c.Busy.kind == policyReplace && c.Wait == 0:
		return c.TTL
	}
	return c.Wait
}

// warnLongWait warns once of a rule whose Wait is longer than the Timeout of a task.
func (a *attempt) warnLongWait(t target) {
	deadline, ok := a.ctx.Deadline()
	maxWait := t.rule.longestWait()
	if !ok || maxWait <= deadline.Sub(a.arrivedAt)-margin {
		return
	}
	a.guard.warnOnce("long wait of "+t.rule.Name, "a rule's Wait is longer than the Timeout of its task, and time in line counts against that: "+
		"the handler may begin with a second left; shorten the Wait, or enqueue the task with a Timeout of at least the Wait and the work together",
		"rule", t.rule.Name, "wait", maxWait, "timeout", deadline.Sub(a.arrivedAt).Round(time.Millisecond), "task", a.note)
}

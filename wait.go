package automutex

import (
	"context"
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
//   - errSpent, or one that inner.IsOrderDone knows: the task of an ordered key has no attempt left, or was done already;
//   - ErrClosed: the Guard was closed;
//   - the error of the task's context;
//   - lock.ErrBackend: Redis failed.
func (d *delivery) acquire(t target) error {
	kind := t.rule.Busy.kind
	d.crowded = false
	switch {
	case d.inOrder(t):
		return d.acquireInOrder(t)
	case d.stayAt == t.key:
		return d.acquireStaying(t)
	case kind == policyReplace:
		return d.replace(t)
	case kind == policyPark && !d.lastAttempt && d.note != "":
		return d.lockOrPark(t, d.lockOf(t))
	}
	maxWait := t.rule.Wait
	// Wait has no meaning for Park. A task on its last attempt waits in acquireStaying instead.
	if kind == policyPark || maxWait > 0 && !d.reserveWait() {
		maxWait = 0
	}
	if maxWait == 0 {
		lease, err := d.lockOf(t).TryLock(d.ctx)
		return d.keepLease(t, lease, err)
	}
	defer d.guard.waiting.Add(-1)
	d.warnLongWait(t)
	// InTimeOnly: return at once if the gate opens only after the wait.
	return d.lockWithin(t, d.lockOf(t, inner.InTimeOnly()), maxWait)
}

// lockOf returns a handle of the target's lock, with the options of this delivery.
func (d *delivery) lockOf(t target, more ...lock.Option) *lock.Lock {
	const most = 8 // they stay on the stack
	options := append(append(make([]lock.Option, 0, most), more...), d.onStop(t)...)
	options = append(options, inner.OnWait(func() {
		if d.asked != nil {
			d.asked()
		}
		d.observeWaiting(t)
	}))
	if d.inOrder(t) {
		options = append(options, inner.InOrder(d.place(t)))
	}
	if d.deadlineIsFar() {
		options = append(options, inner.Uninterrupted())
	}
	return d.guard.lockAt(t, d.note, options...)
}

// farDeadline is how far away a task's deadline must be so that the task's context need not
// end a round trip to Redis: a round trip ends by itself, after about 5 s at most. So a
// round trip with a far deadline runs on the caller's goroutine, without another one that
// watches the context. look checks the context afterwards.
const farDeadline = 15 * time.Second

func (d *delivery) deadlineIsFar() bool {
	deadline, ok := d.ctx.Deadline()
	return !ok || time.Until(deadline) > farDeadline
}

// roundTripContext returns the context for a single round trip to Redis. The task's context
// ends it only if the deadline is near; see farDeadline.
func (d *delivery) roundTripContext() context.Context {
	if d.deadlineIsFar() {
		return context.WithoutCancel(d.ctx)
	}
	return d.ctx
}

// lockAt returns a handle of the target's lock for the task that note names.
func (g *Guard) lockAt(t target, note string, options ...lock.Option) *lock.Lock {
	return inner.At(t.rule.lock, t.scope, t.key, t.limit, note, options...)
}

// reserveWait counts a worker as waiting. It returns false, and sets crowded, when MaxWaiting workers
// wait already. After true, the caller subtracts 1 from Guard.waiting when the wait is over.
func (d *delivery) reserveWait() bool {
	waiting := d.guard.waiting.Add(1)
	if maxWaiting := d.guard.cfg.MaxWaiting; maxWaiting > 0 && waiting > int64(maxWaiting) {
		d.guard.waiting.Add(-1)
		d.crowded = true
		return false
	}
	return true
}

// lockWithin waits in line until the lock is granted, maxWait is over, the margin before
// the task's deadline is reached, the Guard closes, an operator pauses the key, or a newer
// task replaces this one. A pause does not end the wait of a task on its last attempt.
func (d *delivery) lockWithin(t target, handle *lock.Lock, maxWait time.Duration) error {
	if deadline, ok := d.ctx.Deadline(); ok {
		maxWait = min(maxWait, time.Until(deadline)-margin)
	}
	// ctx ends everything. maxWait only bounds the time in line: if the answer to an earlier
	// ask arrives after maxWait and grants the lock, the task keeps the lock.
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	defer context.AfterFunc(d.guard.closing, cancel)()
	if maxWait <= 0 && d.guard.closing.Err() == nil {
		// No time is left to wait, so try once.
		lease, err := handle.TryLock(d.ctx)
		return d.keepLease(t, lease, err)
	}
	defer d.observeWaited(t)
	defer d.watchWhileWaiting(t, handle, cancel)()
	if d.lastAttempt { // asynq would archive it, so it waits for the end of a pause too
		return d.lockInLine(ctx, t, handle, maxWait)
	}
	return d.lockUnlessPaused(ctx, cancel, t, handle, maxWait)
}

// lockUnlessPaused waits as lockInLine does, and ends the wait when an operator pauses the
// key: then Guard.pauses calls cancel, and the error is a *BusyError with ReasonPaused.
func (d *delivery) lockUnlessPaused(ctx context.Context, cancel context.CancelFunc, t target, handle *lock.Lock, maxWait time.Duration) (err error) {
	watched := d.guard.pauses.add(t.key, cancel)
	// Deferred, so that an Observe that panics leaves no watch behind.
	defer func() { err = endedByPause(err, d.guard.pauses.remove(watched)) }()
	if err = d.pausedError(t); err != nil { // after add: a pause is seen here, or ends the wait
		return err
	}
	return d.lockInLine(ctx, t, handle, maxWait)
}

// lockInLine waits in line for at most maxWait. It returns ErrClosed if the Guard closed
// meanwhile.
func (d *delivery) lockInLine(ctx context.Context, t target, handle *lock.Lock, maxWait time.Duration) error {
	lease, err := inner.LockWithin(ctx, handle, maxWait)
	if err != nil && d.guard.closing.Err() != nil {
		return ErrClosed
	}
	return d.keepLease(t, lease, err)
}

// observeWaiting observes that the task begins to wait in line.
func (d *delivery) observeWaiting(t target) {
	d.waitingSince, d.stoodInLine = time.Now(), true
	d.observe(Event{Kind: EventWaiting, Rule: t.rule.Name, Key: t.key})
	d.waitInClaim()
}

// observeWaited observes the end of a wait, if it began.
func (d *delivery) observeWaited(t target) {
	if d.waitingSince.IsZero() {
		return
	}
	waited := time.Since(d.waitingSince)
	d.waitingSince = time.Time{}
	if d.ctx.Err() == context.Canceled {
		d.guard.cutShort.Store(true)
	}
	d.observe(Event{Kind: EventWaited, Rule: t.rule.Name, Key: t.key, Waited: waited})
}

// stayLook is how long a task on its last attempt waits in line before it looks again, if its policy
// may do something else by then than wait.
const stayLook = time.Second

// acquireStaying is acquire for a task on its last attempt that has met an obstacle at this lock, and
// that stays in its worker: asynq would archive it, although its handler has not run. It ignores
// MaxWaiting. If the policy can only bring the task back, it waits until the margin before the task's
// deadline, for the end of a pause too. Otherwise what the task met first decides nothing: after
// a time it looks again.
func (d *delivery) acquireStaying(t target) error {
	d.guard.waiting.Add(1)
	defer d.guard.waiting.Add(-1)
	maxWait := time.Duration(1 << 62) // lockWithin shortens it to the task's deadline
	if policy := t.rule.Busy; policy.kind == policyAllow || policy.mayEnd() && !d.stayAsked {
		maxWait = max(t.rule.Wait, stayLook)
	}
	if t.rule.Busy.kind == policyReplace {
		return d.replaceInLine(t, maxWait)
	}
	return d.lockWithin(t, d.lockOf(t), maxWait)
}

// sleep blocks the worker of a task on its last attempt for delay, at most until the margin before
// the task's deadline. It ends when the delivery is over.
func (d *delivery) sleep(delay time.Duration) {
	if deadline, ok := d.ctx.Deadline(); ok {
		delay = min(delay, time.Until(deadline)-margin)
	}
	var replaced <-chan struct{} // nil blocks for ever: no lock of the task has Replace
	if d.replacing != nil {
		replaced = d.replacing.stopRequested.Done()
	}
	timer := time.NewTimer(delay) // the worker's own; ends with this call
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.ctx.Done():
	case <-d.guard.closing.Done():
	case <-replaced:
	}
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
func (d *delivery) warnLongWait(t target) {
	deadline, ok := d.ctx.Deadline()
	maxWait := t.rule.longestWait()
	if !ok || maxWait <= deadline.Sub(d.arrivedAt)-margin {
		return
	}
	d.guard.warnOnce("long wait of "+t.rule.Name, "a rule's Wait is longer than the Timeout of its task, and time in line counts against that: "+
		"the handler may begin with a second left; shorten the Wait, or enqueue the task with a Timeout of at least the Wait and the work together",
		"rule", t.rule.Name, "wait", maxWait, "timeout", deadline.Sub(d.arrivedAt).Round(time.Millisecond), "task", d.note)
}

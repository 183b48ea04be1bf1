package automutex

import (
	"context"
	"errors"
	"time"

	"github.com/automutex/automutex/lock"
)

// margin is how long before its task's deadline a wait ends. asynq files a task whose
// context has ended as failed, whatever the handler returns, so the middleware's answer
// has to come before.
const margin = time.Second

// acquire takes a lock. It waits in line for as long as the rule's Wait allows. The
// error is a *BusyError, ErrClosed, or says that Redis could not be asked.
func (a *attempt) acquire(t target) error {
	if t.rule.Busy.kind == policyReplace {
		return a.replace(t)
	}
	if t.rule.Busy == Park && !a.lastAttempt && a.note != "" {
		return a.lockOrPark(t, a.lockOf(t))
	}
	wait := t.rule.Wait
	if t.rule.Busy == Park || wait > 0 && !a.reserveWait() {
		wait = 0
	}
	if wait == 0 {
		lease, err := a.lockOf(t).TryLock(a.ctx)
		return a.keepLease(t, lease, err)
	}
	defer a.guard.waiting.Add(-1)
	a.warnLongWait(t)
	return a.lockWithin(t, a.lockOf(t, inner.InTimeOnly()), wait)
}

// lockOf returns the lock of a target as this attempt takes it.
func (a *attempt) lockOf(t target, more ...lock.Option) *lock.Lock {
	options := a.guard.lockOptions(t, a.note)
	options = append(append(options, more...), a.onStop(t)...)
	options = append(options, inner.OnWait(func() { a.observeWaiting(t) }))
	if a.deadlineIsFar() {
		options = append(options, inner.Uninterrupted())
	}
	return a.guard.locker.Semaphore(t.scope, t.limit, options...)
}

// farDeadline is how far away a task's deadline has to be for its exchanges with Redis
// to run to their end, after about 5 s at most, also when its context ends meanwhile.
// That saves a hand-over to another goroutine. The context is looked at afterwards, before the handler starts.
const farDeadline = 15 * time.Second

func (a *attempt) deadlineIsFar() bool {
	deadline, ok := a.ctx.Deadline()
	return !ok || time.Until(deadline) > farDeadline
}

// exchangeContext is the context for a single exchange with Redis.
func (a *attempt) exchangeContext() context.Context {
	if a.deadlineIsFar() {
		return context.WithoutCancel(a.ctx)
	}
	return a.ctx
}

// lockOptions are those of a target's lock, with room for the few that an attempt adds.
func (g *Guard) lockOptions(t target, note string) []lock.Option {
	const more = 6
	options := make([]lock.Option, 0, len(t.rule.lockOptions)+more)
	return append(append(options, t.rule.lockOptions...), inner.WithKey(t.key), lock.Note(note))
}

// reserveWait counts a worker as waiting. It returns false when MaxWaiting workers wait
// already. After true, the caller subtracts 1 from Guard.waiting when the wait is over.
func (a *attempt) reserveWait() bool {
	n := a.guard.waiting.Add(1)
	if limit := a.guard.cfg.MaxWaiting; limit > 0 && n > int64(limit) {
		a.guard.waiting.Add(-1)
		return false
	}
	return true
}

// lockWithin waits in line until the lock is granted, limit is over, the margin before
// the task's deadline is reached, the Guard closes, the key is paused, or a newer task
// replaces this one.
func (a *attempt) lockWithin(t target, m *lock.Lock, limit time.Duration) error {
	if deadline, ok := a.ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)-margin)
	}
	// ctx ends what waits for this task; limit bounds the time in line alone. A lock that
	// Redis gives after limit, to an ask from before, is kept: the key was free.
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	defer context.AfterFunc(a.guard.closing, cancel)()
	if limit <= 0 && a.guard.closing.Err() == nil {
		// Too late to wait, but not to try once.
		lease, err := m.TryLock(a.ctx)
		return a.keepLease(t, lease, err)
	}
	defer a.observeWaited(t)
	defer a.watchWhileWaiting(t, m, cancel)()
	if a.lastAttempt { // it has nowhere to go: it waits for the end of a pause too
		return a.lockInLine(ctx, t, m, limit)
	}
	return a.lockUnlessPaused(ctx, cancel, t, m, limit)
}

// lockUnlessPaused is lockInLine until the key is paused, which calls cancel.
func (a *attempt) lockUnlessPaused(ctx context.Context, cancel context.CancelFunc, t target, m *lock.Lock, limit time.Duration) (err error) {
	watched := a.guard.pauses.add(t.key, cancel)
	// Deferred: an Observe that panics meanwhile leaves nothing behind.
	defer func() { err = endedByPause(err, a.guard.pauses.remove(watched)) }()
	if err = a.pausedError(t); err != nil { // after add: a pause is seen here, or ends the wait
		return err
	}
	return a.lockInLine(ctx, t, m, limit)
}

func (a *attempt) lockInLine(ctx context.Context, t target, m *lock.Lock, limit time.Duration) error {
	lease, err := inner.LockWithin(ctx, m, limit)
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

// waitUntilDeadline takes the lock for a task on its last attempt, which asynq would
// archive for any error although it has not run. It waits in line whatever MaxWaiting
// and the policy say, tries again while Redis is away, and stops only when the task's
// time is up, the Guard closes, or a newer task replaces this one.
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
		if !a.pause(a.guard.outage.delay()) {
			if a.guard.closing.Err() != nil {
				return ErrClosed
			}
			return err
		}
	}
}

func (a *attempt) waitOnce(t target) error {
	const forever = 1 << 62
	if t.rule.Busy.kind == policyReplace {
		return a.replaceInLine(t, forever)
	}
	return a.lockWithin(t, a.lockOf(t), forever)
}

// pause blocks the worker of a task on its last attempt for d, or until the margin
// before the task's deadline. It returns false, at once, when the task must not try
// again: its time is up, the Guard closes, or a newer task replaced it.
func (a *attempt) pause(d time.Duration) (again bool) {
	if deadline, ok := a.ctx.Deadline(); ok {
		left := time.Until(deadline) - margin
		if left <= 0 {
			return false
		}
		d = min(d, left)
	}
	var replaced <-chan struct{} // nil, which blocks, where no rule replaces
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

// longestWait returns the longest time that a task of the rule waits in its worker
// before the policy applies. Park has no fixed time.
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
	wait := t.rule.longestWait()
	if !ok || wait <= deadline.Sub(a.arrivedAt)-margin {
		return
	}
	a.guard.warnOnce("long wait of "+t.rule.Name, "a rule's Wait is longer than the Timeout of its task, and time in line counts against that: "+
		"the handler may begin with a second left; shorten the Wait, or enqueue the task with a Timeout of at least the Wait and the work together",
		"rule", t.rule.Name, "wait", wait, "timeout", deadline.Sub(a.arrivedAt).Round(time.Millisecond), "task", a.note)
}

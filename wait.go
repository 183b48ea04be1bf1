package automutex

import (
	"context"
	"errors"
	"time"

	"github.com/automutex/automutex/lock"
)

// margin is how long before a task's own deadline a wait ends: asynq files a
// task whose context ended as failed, whatever the handler says, and the answer
// has to be there before.
const margin = time.Second

// acquire takes a lock, standing in line for as long as the rule's Wait allows.
// The error is a *BusyError, ErrClosed, or says that Redis could not be asked.
func (a *attempt) acquire(t target) (*lock.Lease, error) {
	if t.rule.Busy.kind == policyReplace {
		return a.replace(t)
	}
	m := a.lockOf(t)
	if t.rule.Busy == Park && !a.last && a.note != "" {
		return a.acquireOrPark(t, m)
	}
	wait := t.rule.Wait
	if t.rule.Busy == Park || wait > 0 && !a.join() {
		wait = 0
	}
	if wait == 0 {
		lease, err := m.TryLock(a.ctx)
		return a.own(t, lease, err)
	}
	defer a.guard.waiting.Add(-1)
	a.warnLongWait(t)
	return a.wait(t, m, wait)
}

// lockOf is the lock of a target as this attempt takes it.
func (a *attempt) lockOf(t target) *lock.Lock {
	return a.guard.lockOf(t, a.note, append(a.stoppable(t), lock.OnWait(func() { a.lineUp(t) }))...)
}

func (g *Guard) lockOf(t target, note string, more ...lock.Option) *lock.Lock {
	return g.locker.Semaphore(t.scope, t.rule.Limit, append([]lock.Option{
		lock.WithKey(t.key), lock.TTL(t.rule.TTL), lock.MaxHold(t.rule.MaxHold), lock.Note(note), lock.OnePerNote(),
	}, more...)...)
}

// join counts a worker into the line unless MaxWaiting are there.
func (a *attempt) join() bool {
	n := a.guard.waiting.Add(1)
	if most := a.guard.cfg.MaxWaiting; most > 0 && n > int64(most) {
		a.guard.waiting.Add(-1)
		return false
	}
	return true
}

// wait stands in line for at most so long, the margin before the task's
// deadline, the Guard's Close, or until the task is asked to stop.
func (a *attempt) wait(t target, m *lock.Lock, most time.Duration) (*lock.Lease, error) {
	if deadline, ok := a.ctx.Deadline(); ok {
		most = min(most, time.Until(deadline)-margin)
	}
	ctx, cancel := context.WithTimeout(a.ctx, max(0, most))
	defer cancel()
	defer context.AfterFunc(a.guard.closing, cancel)()
	if ctx.Err() != nil && a.ctx.Err() == nil && a.guard.closing.Err() == nil {
		// No time for a line, but for a look.
		lease, err := m.TryLock(a.ctx)
		return a.own(t, lease, err)
	}
	defer a.stepOut(t)
	defer a.pursue(t, m, cancel)()
	lease, err := m.Lock(ctx)
	if err != nil && a.guard.closing.Err() != nil {
		return nil, ErrClosed
	}
	return a.own(t, lease, err)
}

// lineUp tells that the wait in line began, stepOut that it is over, if it began.
func (a *attempt) lineUp(t target) {
	a.inLine = time.Now()
	a.observe(Event{Kind: EventWaiting, Rule: t.rule.Name, Key: t.key})
}

func (a *attempt) stepOut(t target) {
	if a.inLine.IsZero() {
		return
	}
	waited := time.Since(a.inLine)
	a.inLine = time.Time{}
	a.observe(Event{Kind: EventWaited, Rule: t.rule.Name, Key: t.key, Waited: waited})
}

// waitInLine waits for a lock in line, whatever the policy of its rule.
func (a *attempt) waitInLine(t target, most time.Duration) (*lock.Lease, error) {
	if t.rule.Busy.kind == policyReplace {
		return a.replaceInLine(t, most)
	}
	return a.wait(t, a.lockOf(t), most)
}

// insist is how a task without attempts left gets its lock: any error would
// have asynq archive it although it has not run. It waits in line, whatever
// MaxWaiting says, bears Redis being away, and gives up only when the task's
// own time is up.
func (a *attempt) insist(t target) (*lock.Lease, error) {
	a.guard.waiting.Add(1)
	defer a.guard.waiting.Add(-1)
	const forever = 1 << 62
	for {
		lease, err := a.waitInLine(t, forever)
		if err == nil {
			a.guard.outage.over(a.guard.log)
			return lease, nil
		}
		var busy *BusyError
		if errors.As(err, &busy) || errors.Is(err, ErrClosed) || a.ctx.Err() != nil || a.stopped() {
			return nil, err
		}
		a.backendError(t, err)
		if !a.pause(a.guard.outage.delay()) {
			if a.guard.closing.Err() != nil {
				return nil, ErrClosed
			}
			return nil, err
		}
	}
}

// pause blocks the worker before a task on its last attempt tries again: for d,
// but at most until the margin before the task's deadline. It returns false, at
// once, when the task must not try again: its time is up, the Guard closes, or a
// newer task replaced it.
func (a *attempt) pause(d time.Duration) (again bool) {
	if deadline, ok := a.ctx.Deadline(); ok {
		left := time.Until(deadline) - margin
		if left <= 0 {
			return false
		}
		d = min(d, left)
	}
	var replaced <-chan struct{} // nil, which blocks, where no rule replaces
	if a.newest != nil {
		replaced = a.newest.asked.Done()
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

// longestWait is the longest time that a task of the rule stands in line in its
// worker before the policy applies. Park does not wait for a fixed time.
func (c *compiled) longestWait() time.Duration {
	switch {
	case c.Busy.kind == policyPark:
		return 0
	case c.Busy.kind == policyReplace && c.Wait == 0:
		return c.TTL
	}
	return c.Wait
}

// warnLongWait warns once for a rule whose Wait is longer than the time that a
// task came with.
func (a *attempt) warnLongWait(t target) {
	deadline, ok := a.ctx.Deadline()
	wait := t.rule.longestWait()
	if !ok || wait <= deadline.Sub(a.came)-margin {
		return
	}
	a.guard.warnOnce("long wait of "+t.rule.Name, "a rule's Wait is longer than the Timeout of its task, and time in line counts against that: "+
		"the handler may begin with a second left; shorten the Wait, or enqueue the task with a Timeout of at least the Wait and the work together",
		"rule", t.rule.Name, "wait", wait, "timeout", deadline.Sub(a.came).Round(time.Millisecond), "task", a.note)
}

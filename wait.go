package automutex

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/engine"
)

// This file is how a task waits for a lock.

// margin is how long before its task's deadline a wait ends: when the task's context ends, asynq fails the attempt.
const margin = time.Second

// standing is what is known of the lock that a task comes to.
type standing struct {
	key     string
	came    time.Time
	stood   bool               // in the lock's line, at some time
	waiting time.Time          // since when it is in line; zero: it is not
	waiter  *engine.WorkerWait // as the server's workers know it; nil: it gives way to nobody
}

// acquire takes a lock. The error is a *BusyError (others hold the lock, its gate is closed, or an operator paused it),
// errSpent, one that Is engine.ErrOrderDone, or lock.ErrBackend. While the delivery is over it may be any.
func (d *delivery) acquire(t target) error {
	switch {
	case d.isOrdered(t):
		return d.acquireInOrder(t)
	case t.rule.Busy.kind == policyReplace:
		return d.replace(t)
	}
	return d.wait(t, d.waitOf(t))
}

// waiting is how a task waits for one lock. The zero value tries once.
type waiting struct {
	most   time.Duration // in line; 0: none
	inTime bool          // it ends at once if the gate opens only after the wait
	parks  bool          // it parks where it ends, or where it cannot begin; most does not count
	yields bool          // it takes no worker that another key's task could have
	stays  bool          // a pause does not end it
}

// waitOf returns how the rule has the task wait. On its last attempt a task waits where others return.
func (d *delivery) waitOf(t target) waiting {
	policy := t.rule.Busy.row()
	switch {
	case d.last && (d.staying || policy.returns()):
		d.warnOneAttempt(t.rule)
		return waiting{most: 1 << 62, stays: true} // wait shortens it to the task's deadline
	case t.rule.InOrder && d.outer != nil:
		return waiting{most: t.rule.TTL, yields: true} // it has no place that it could keep
	case policy.parks:
		return waiting{parks: d.note != "", yields: true}
	}
	most := t.rule.Wait
	if t.rule.Busy.kind == policyReplace && most == 0 {
		most = t.rule.TTL
	}
	return waiting{most: most, inTime: true, yields: policy.yields}
}

// wait takes the lock of t. It stands in line until the lock is granted, the wait is over, the margin before the task's
// deadline is reached, the Guard closes, an operator pauses the key, a newer task replaces this one, or another task
// may need the worker.
//
// If the task parked, the error is a *BusyError with parked set: Redis keeps the task's place in line.
func (d *delivery) wait(t target, w waiting) (err error) {
	r := d.request(t)
	r.InTime = w.inTime
	latest, bounded := d.ctx.Deadline()
	if latest = latest.Add(-margin); bounded {
		w.most = min(w.most, time.Until(latest))
	}
	// Without a server nobody knows how many workers are free. One that is behind has the first ask park.
	sifted := w.yields && d.server != nil && !d.server.workers.MayWait(t.key, d.turn(t))
	if r.Park = w.parks; sifted || w.parks && d.server == nil || !w.parks && w.most <= 0 {
		return d.ask(d.ctx, t, r)
	}
	r.Wait, r.OnWait = true, func(sinceCall time.Duration) {
		d.noteCame(t, sinceCall)
		d.observeWaiting(t)
	}
	// ctx ends everything. most only bounds the time in line: if the answer to an earlier ask arrives after it and grants
	// the lock, the task keeps the lock.
	ctx, cancel := d.untilLate()
	defer cancel()
	defer context.AfterFunc(d.guard.life.Closing, cancel)()
	leave := cancel
	if w.parks {
		parkNow := make(chan struct{})
		r.Yield = parkNow
		leave = sync.OnceFunc(func() { close(parkNow) })
		if bounded {
			// Stop does not wait for a timer that fires now. Its leave closes parkNow when the wait is over, and nobody reads
			// parkNow then.
			defer time.AfterFunc(time.Until(parkBy(d.arrived, latest)), leave).Stop()
		}
	} else {
		within, cancel := context.WithTimeout(ctx, w.most)
		defer cancel()
		r.Within, r.Leaves = within, !w.stays
	}
	if w.yields && d.server != nil {
		me := &engine.WorkerWait{Key: t.key, Place: d.turn(t), Leave: leave}
		if r.Lender != nil {
			again := make(chan struct{}, 1) // never blocks the workers: one ask does for several reasons
			r.Worker, r.Again = me, again
			me.Lender, me.Limit, me.Ask = r.Lender, t.limit, func() {
				select {
				case again <- struct{}{}:
				default:
				}
			}
		}
		d.line.waiter = me // observeWaiting adds it to the server's
		defer func() { d.server.workers.End(me, err == nil); d.line.waiter = nil }()
	}
	defer d.observeWaited(t)
	// While this task waits, a newer task may replace it on a lock that it holds already. Then cancel ends the wait.
	defer d.watchWhileWaiting(t, cancel)()
	err = d.ask(ctx, t, r)
	var busy *BusyError
	if err != nil && d.guard.life.Closing.Err() != nil && (!errors.As(err, &busy) || !busy.parked) {
		return ErrClosed // Close ended the wait, and not the policy
	}
	return err
}

func (d *delivery) ask(ctx context.Context, t target, r engine.Request) error {
	lease, err := d.guard.engine.Take(ctx, r)
	sinceCall := time.Duration(-1)
	if busy, is := err.(*engine.Busy); is && busy.Returned { //nolint:errorlint // Take does not wrap it
		sinceCall = busy.SinceCall
	} else if err == nil {
		sinceCall = lease.SinceCall()
	}
	d.noteCame(t, sinceCall)
	return d.keepLease(t, lease, err)
}

// noteCame tells the server's workers what the first exchange with Redis has told of the task.
func (d *delivery) noteCame(t target, sinceCall time.Duration) {
	if d.server != nil && !d.came {
		d.server.workers.Came(t.key, sinceCall)
	}
	d.came = true
}

// parkBy returns when a task that waits in its worker parks: after half of its time, so that its handler has the other
// half, and no later than latest, the margin before its deadline.
func parkBy(arrived, latest time.Time) time.Time {
	if half := arrived.Add(latest.Add(margin).Sub(arrived) / 2); half.Before(latest) {
		return half
	}
	return latest
}

// request is what the task asks of the engine for the lock of t: one try. A round trip ends by itself, after about 5 s
// at most. So it runs on the worker's goroutine, without another one that watches the context (Whole); look checks that
// afterwards.
func (d *delivery) request(t target) engine.Request {
	r := t.rule.request
	r.Name, r.Key, r.Limit, r.Pace, r.Note, r.Whole = t.scope, t.key, t.limit, t.pace, d.note, true
	r.Notes = d.outer == nil // two tasks within one task have one note
	if d.isOrdered(t) {
		r.Ordered, r.Place = true, d.placeIn(t)
	}
	if d.replacing != nil {
		d.replacing.stopBy(&r, t)
	}
	if t.rule.LeaveIdle > 0 && d.server != nil {
		r.Lender = d.server.lender(t.scope, t.rule.LeaveIdle)
	}
	return r
}

// observeWaiting observes that the task begins to wait in line.
func (d *delivery) observeWaiting(t target) {
	d.line.waiting, d.line.stood = time.Now(), true
	switch {
	case d.line.waiter != nil:
		d.server.workers.Begin(d.line.waiter)
	case d.mark != nil:
		d.mark.noteWorks() // no wait of others ends this one
	}
	d.observe(Event{Kind: EventWaiting, Rule: t.rule.Name, Key: t.key})
	d.waitInClaim()
}

// observeWaited observes the end of a wait, if it began.
func (d *delivery) observeWaited(t target) {
	if d.line.waiting.IsZero() {
		return
	}
	waited := time.Since(d.line.waiting)
	d.line.waiting = time.Time{}
	d.observe(Event{Kind: EventWaited, Rule: t.rule.Name, Key: t.key, Waited: waited})
}

// sleep blocks the worker of a task on its last attempt for delay, at most until the margin before the task's deadline.
// It ends when the delivery is over.
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
	case <-d.guard.life.Closing.Done():
	case <-replaced:
	}
}

// warnOneAttempt warns once of a rule with the policy Park whose tasks have one attempt and so cannot park.
func (d *delivery) warnOneAttempt(rule *compiledRule) {
	if most, ok := asynq.GetMaxRetry(d.ctx); !ok || most > 0 || !rule.Busy.row().parks {
		return
	}
	d.guard.warnOnce("one attempt of "+rule.Name, "a rule has the policy park, but its task was enqueued with MaxRetry "+
		"0 or less, and asynq archives a task that returns on its last attempt: "+
		"it waits in its worker instead; enqueue such tasks with automutex.NewClient, or with a MaxRetry of at least 1",
		"rule", rule.Name, "type", d.task.Type(), "task", d.note)
}

package automutex

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/engine"
)

// margin is how long before its task's deadline a wait ends: when the task's context ends, asynq fails the attempt.
const margin = time.Second

type standing struct {
	key     string
	came    time.Time
	stood   bool               // in the lock's line, at some time
	waiting time.Time          // since when it is in line; zero: it is not
	waiter  *engine.WorkerWait // as the server's workers know it; nil: it gives way to nobody
}

// acquire takes a lock. The error is a *BusyError, errSpent, one that Is engine.ErrOrderDone, or lock.ErrBackend.
// While the delivery is over it may be any.
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
	open   bool          // a closed gate ends it: the task gives back what it holds
}

// On its last attempt a task waits where others return.
func (d *delivery) waitOf(t target) waiting {
	policy, holds := t.rule.Busy.row(), len(d.leases) > 0
	switch {
	case d.last && (d.staying == t.key || policy.returns()):
		d.warnOneAttempt(t)
		return waiting{most: 1 << 62, stays: !holds, open: holds} // wait shortens it to the task's deadline
	case t.rule.InOrder && d.outer != nil:
		return waiting{most: t.rule.TTL, yields: true} // it has no place that it could keep
	case policy.parks:
		return waiting{parks: d.note != "", yields: true, open: holds}
	}
	return waiting{most: d.waitLeft(t), inTime: true, yields: policy.yields, open: holds}
}

// waitLeft is what is left of the rule's Wait; under Park, for a gate in its worker, of a second.
func (d *delivery) waitLeft(t target) time.Duration {
	most := t.rule.Wait
	switch {
	case t.rule.Busy.row().parks:
		most = minStay
	case t.rule.Busy.kind == policyReplace && most == 0:
		most = t.rule.TTL
	}
	if came, waited := d.cameTo[t.key]; waited {
		most -= time.Since(came)
	}
	return most
}

// comeTo notes when a task first came to a lock that is not its first: it may give back those before.
func (d *delivery) comeTo(t target, came time.Time) {
	if d.cameTo == nil {
		d.cameTo = map[string]time.Time{}
	}
	if _, known := d.cameTo[t.key]; !known {
		d.cameTo[t.key] = came
	}
}

// stayOut has a task that cannot stand in line wait in its worker. It ends the Wait of one whose worker others may
// need.
func (d *delivery) stayOut(met obstacle) {
	t, delay, leave := met.target, minStay, make(chan struct{})
	if left := met.busy.ExpiresIn; left > 0 {
		delay = min(delay, left+time.Millisecond)
	}
	switch yields := !d.last && t.rule.Busy.row().yields && d.server != nil; {
	case yields && !d.server.workers.MayWait(t.key, 0):
		close(leave)
	case yields:
		me := &engine.WorkerWait{Key: t.key, Leave: sync.OnceFunc(func() { close(leave) })}
		d.server.workers.Begin(me)
		defer func() { d.server.workers.End(me, false) }()
	case d.mark != nil:
		d.mark.noteWorks() // no wait of others ends this one
	}
	d.waitInClaim()
	if d.sleep(delay, leave) {
		d.cameTo[t.key] = time.Time{}
	}
}

// wait stands in line for t until the lock is granted, the wait is over, the margin before the task's deadline is
// reached, the Guard closes, an operator pauses the key, a newer task replaces this one, or another task may need the
// worker. If the task parked, the error is a *BusyError with parked set.
func (d *delivery) wait(t target, w waiting) (err error) {
	r := d.request(t)
	r.InTime, r.Open = w.inTime, w.open
	latest, bounded := d.ctx.Deadline()
	if latest = latest.Add(-margin); bounded {
		w.most = min(w.most, time.Until(latest))
	}
	// Without a server nobody knows how many workers are free. One that is behind has the first ask park.
	sifted := w.yields && d.server != nil && !d.server.workers.MayWait(t.key, d.turn(t))
	if r.Park = w.parks; sifted || w.parks && d.server == nil || !w.parks && w.most <= 0 {
		return d.ask(d.ctx, t, r)
	}
	if lease, err := d.guard.engine.TakeFree(d.ctx, r); lease != nil || err != nil {
		d.noteCame(t, -1)
		return d.keepLease(t, lease, err)
	}
	r.Wait, r.OnWait = true, func(sinceCall time.Duration) {
		d.noteCame(t, sinceCall)
		d.observeWaiting(t)
	}
	// ctx ends everything, most only the time in line: a lock that an earlier ask's late answer grants is kept.
	ctx, cancel := d.untilLate()
	defer cancel()
	defer context.AfterFunc(d.guard.life.Closing, cancel)()
	for _, h := range d.leases {
		ctx = h.lease.Bind(ctx) // what waits for the next lock with an earlier one lost waits in vain
	}
	leave := cancel
	if w.parks {
		parkNow := make(chan struct{})
		r.Yield = parkNow
		leave = sync.OnceFunc(func() { close(parkNow) })
		if bounded {
			// Stop does not wait for a timer that fires now: nobody reads parkNow any more.
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
			r.Again, r.Worker = borrows(me, r.Lender, t.limit), me
		}
		d.line.waiter = me // observeWaiting adds it to the server's
		defer func() { d.server.workers.End(me, err == nil); d.line.waiter = nil }()
	}
	defer d.observeWaited(t)
	// A newer task may replace this one on a lock that it holds already. Then cancel ends the wait.
	defer d.watchWhileWaiting(t, cancel)()
	err = d.ask(ctx, t, r)
	var busy *BusyError
	if err != nil && d.guard.life.Closing.Err() != nil && (!errors.As(err, &busy) || !busy.parked) {
		return ErrClosed // Close ended the wait, and not the policy
	}
	return err
}

// borrows has a wait ask for a worker of the lender when the channel says so.
func borrows(me *engine.WorkerWait, from *engine.Lender, limit int) <-chan struct{} {
	again := make(chan struct{}, 1) // never blocks the workers: one ask does for several reasons
	me.Lender, me.Limit, me.Ask = from, limit, func() {
		select {
		case again <- struct{}{}:
		default:
		}
	}
	return again
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

func (d *delivery) noteCame(t target, sinceCall time.Duration) {
	if d.server != nil && !d.came {
		d.server.workers.Came(t.key, sinceCall)
	}
	d.came = true
}

// parkBy returns when a waiting task parks: after half of its time, the other half is its handler's, and no later
// than latest.
func parkBy(arrived, latest time.Time) time.Time {
	if half := arrived.Add(latest.Add(margin).Sub(arrived) / 2); half.Before(latest) {
		return half
	}
	return latest
}

// request asks for the lock of t: one try. A round trip ends by itself, after about 5 s at most. So it runs on the
// worker's goroutine, with none that watches the context (Whole); look checks that afterwards.
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

func (d *delivery) observeWaiting(t target) {
	d.line.waiting, d.line.stood = time.Now(), true
	switch {
	case d.line.waiter != nil:
		d.server.workers.Begin(d.line.waiter)
	case d.mark != nil:
		d.mark.noteWorks() // no wait of others ends this one
	}
	d.observe(t, Event{Kind: EventWaiting})
	d.waitInClaim()
}

func (d *delivery) observeWaited(t target) {
	if d.line.waiting.IsZero() {
		return
	}
	waited := time.Since(d.line.waiting)
	d.line.waiting = time.Time{}
	d.observe(t, Event{Kind: EventWaited, Waited: waited})
}

// sleep blocks the worker for delay, at most until the margin. It ends when the delivery is over, or leave is closed,
// which it reports.
func (d *delivery) sleep(delay time.Duration, leave <-chan struct{}) (left bool) {
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
	case <-leave:
		return true
	}
	return false
}

func (d *delivery) warnOneAttempt(t target) {
	if most, ok := asynq.GetMaxRetry(d.ctx); !ok || most > 0 || !t.rule.Busy.row().parks {
		return
	}
	d.guard.warnOnce("one attempt of "+t.rule.Name, "a rule has the policy park, but its task was enqueued with MaxRetry "+
		"0 or less, and asynq archives a task that returns on its last attempt: "+
		"it waits in its worker instead; enqueue such tasks with automutex.NewClient, or with a MaxRetry of at least 1",
		d.about(t)...)
}

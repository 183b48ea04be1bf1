package automutex

import (
	"cmp"
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/engine/workers"
	"github.com/automutex/automutex/lock"
)

// margin is how long before its task's deadline a wait ends: when the task's context ends, asynq fails the attempt.
const margin = time.Second

type standing struct {
	key     string
	came    time.Time
	stood   bool          // in the lock's line, at some time
	waiting time.Time     // since when it is in line; zero: it is not
	waiter  *workers.Wait // as the server's workers know it; nil: it gives way to nobody
}

// acquire takes a lock, or returns why the task did not get it.
func (d *delivery) acquire(t *target) *obstacle {
	err := d.tryAndWait(t)
	if err != nil {
		if met := d.at(fails, t, err); met.stops() {
			return met
		}
		return d.refused(t, err)
	}
	met := d.at(takes, t, nil)
	if last := len(d.leases) - 1; met.stops() {
		h := d.leases[last]
		d.leases = d.leases[:last]
		if _, failed := h.lease.Release(d.ctx, engine.Ending{}); errors.Is(failed, lock.ErrBackend) {
			d.backendError(t, failed) // the lease ends at its deadline
		}
	}
	return met
}

func (d *delivery) tryAndWait(t *target) error {
	w := d.waitOf(t)
	if !t.rule.Busy.row().tries {
		return d.wait(t, w)
	}
	err := d.ask(d.ctx, t, d.request(t))
	var busy *BusyError
	if !errors.As(err, &busy) {
		return err
	}
	switch notNow := busy.SameTask || busy.Pause != nil; {
	case notNow && !w.pauses:
		return err
	case !notNow: // also of a closed gate: it may open too late for this task to stand in line
		if d.at(tries, t, nil); d.isToStop() {
			return err
		}
	}
	return d.wait(t, w)
}

// waiting is how a task waits for one lock. The zero value tries once.
type waiting struct {
	most   time.Duration // in line; 0: none
	latest time.Time     // margin before the deadline; zero: none
	inTime bool          // it ends at once if the gate opens only after the wait
	parks  bool          // it parks where it ends, or where it cannot begin; most does not count
	yields bool          // it takes no worker that another key's task could have
	pauses bool          // it outlasts a pause
	open   bool          // a closed gate ends it: the task gives back what it holds
}

// On its last attempt a task waits where others return.
func (d *delivery) waitOf(t *target) waiting {
	policy, holds := t.rule.Busy.row(), len(d.leases) > 0
	switch {
	case d.last && (d.staying == t.key || policy.returns()):
		return waiting{most: 1 << 62, pauses: !holds, open: holds} // wait shortens it to the task's deadline
	case t.rule.InOrder && d.outer != nil:
		return waiting{most: t.rule.TTL, yields: true} // it has no place that it could keep
	case policy.parks:
		return waiting{parks: d.note != "", yields: true, open: holds}
	}
	return waiting{most: d.cameTo.waitLeft(t), inTime: true, yields: policy.yields(), open: holds}
}

// firstCame is when a task first met what kept it from a lock that is not its first.
type firstCame map[string]time.Time

func (f *firstCame) met(t *target, came time.Time) {
	if *f == nil {
		*f = firstCame{}
	}
	if _, known := (*f)[t.key]; !known {
		(*f)[t.key] = came
	}
}

// waitLeft is what is left of the rule's Wait; under Park, for a gate in its worker, of a second.
func (f *firstCame) waitLeft(t *target) time.Duration {
	most := t.rule.Wait
	switch policy := t.rule.Busy.row(); {
	case policy.parks:
		most = minStay
	case policy.tries && most == 0:
		most = t.rule.TTL
	}
	if came, waited := (*f)[t.key]; waited {
		most -= time.Since(came)
	}
	return most
}

// stayOut has a task that cannot stand in line wait in its worker. It ends the Wait of one whose worker others may
// need.
func (d *delivery) stayOut(met *obstacle) {
	t, delay, leave := met.target, minStay, make(chan struct{})
	defer d.countLast()()
	if left := met.busy.ExpiresIn; left > 0 {
		delay = min(delay, left+time.Millisecond)
	}
	switch yields := !d.last && t.rule.Busy.row().yields() && d.server != nil; {
	case yields && !d.server.workers.MayWait(t.key, 0):
		close(leave)
	case yields:
		me := &workers.Wait{Key: t.key, Leave: sync.OnceFunc(func() { close(leave) })}
		d.server.workers.Begin(me)
		defer func() { d.server.workers.End(me, false) }()
	case d.worker != nil:
		d.worker.worksNow() // no wait of others ends this one
	}
	d.at(aside, t, nil)
	if d.sleep(delay, leave) {
		d.cameTo[t.key] = time.Time{}
	}
}

// wait takes t if it is free. Else the task parks or returns at once, or stands in line until the lock is granted, the
// wait or its time is over, the Guard closes, an operator pauses the key, a newer task replaces it, or another may
// need the worker. If it parked, the error is a *BusyError with parked set.
func (d *delivery) wait(t *target, w waiting) error {
	r := d.request(t)
	if deadline, bounded := d.ctx.Deadline(); bounded {
		w.latest = deadline.Add(-margin)
		w.most = min(w.most, time.Until(w.latest))
	}
	// Without a server nobody knows of idle workers. Behind, it takes what is free, or parks.
	asks := w.yields && d.server != nil && !d.server.workers.MayWait(t.key, ticketAt(r.Place)) ||
		w.parks && d.server == nil || !w.parks && w.most <= 0
	if asks && !w.parks {
		return d.ask(d.ctx, t, r)
	}
	if lease, err := d.guard.engine.TakeFree(d.ctx, r); lease != nil || err != nil {
		d.tellCame(t, -1)
		return d.keepLease(t, lease, err)
	}
	if asks {
		r.Line = &engine.Line{Yield: engine.AtOnce}
		return d.ask(d.ctx, t, r)
	}
	return d.stand(t, w, r)
}

// stand is apart from wait: most tasks never wait, and save stack.
func (d *delivery) stand(t *target, w waiting, r *engine.Request) (err error) {
	defer d.countLast()()
	r.Line = &engine.Line{OnWait: func(sinceCall time.Duration) {
		d.tellCame(t, sinceCall)
		d.observeWaiting(t)
	}}
	// ctx ends everything, most only the time in line: a lock that an earlier ask's late answer grants is kept.
	ctx, cancel := d.late.context()
	defer cancel()
	defer context.AfterFunc(d.guard.life.Closing, cancel)()
	for _, h := range d.leases {
		ctx = h.lease.Bind(ctx) // what waits for the next lock with an earlier one lost waits in vain
	}
	leave := cancel
	if w.parks {
		parkNow := make(chan struct{})
		r.Line.Yield = parkNow
		leave = sync.OnceFunc(func() { close(parkNow) })
		if !w.latest.IsZero() {
			// Stop does not wait for a timer that fires now: nobody reads parkNow any more.
			defer time.AfterFunc(time.Until(parkBy(d.arrived, w.latest)), leave).Stop()
		}
	} else {
		within, cancel := context.WithTimeout(ctx, w.most)
		defer cancel()
		if r.Line.Within, r.Line.AtPause = within, !w.pauses; w.inTime {
			r.Line.GateBy, _ = within.Deadline()
		}
	}
	if w.open {
		r.Line.GateBy = time.Now()
	}
	if w.yields && d.server != nil {
		me := &workers.Wait{Key: t.key, Place: ticketAt(r.Place), Leave: leave}
		if r.Lender != nil {
			r.Line.Again, r.Line.Worker = borrows(me, r.Lender, t.limit), me
		}
		d.line.waiter = me // observeWaiting adds it to the server's
		defer func() { d.server.workers.End(me, err == nil); d.line.waiter = nil }()
	}
	defer d.observeWaited(t)
	if d.stop != nil { // also by a task that wants a lock which this one holds already
		defer context.AfterFunc(d.stop, cancel)()
	}
	return d.guard.orClosed(d.ask(ctx, t, r))
}

// orClosed returns ErrClosed for the error of a wait that Close has ended, and not the policy.
func (g *Guard) orClosed(err error) error {
	var busy *BusyError
	if err != nil && g.life.Closing.Err() != nil && (!errors.As(err, &busy) || !busy.parked) {
		return ErrClosed
	}
	return err
}

// borrows has a wait ask for a worker of the lender when the channel says so.
func borrows(me *workers.Wait, from *workers.Lender, limit int) <-chan struct{} {
	again := make(chan struct{}, 1) // never blocks the workers: one ask does for several reasons
	me.Lender, me.Limit, me.Ask = from, limit, func() {
		select {
		case again <- struct{}{}:
		default:
		}
	}
	return again
}

// ticketAt is 0 for a lock in no order.
func ticketAt(p *engine.Place) int64 {
	if p == nil {
		return 0
	}
	return cmp.Or(p.Ticket, math.MaxInt64)
}

func (d *delivery) ask(ctx context.Context, t *target, r *engine.Request) error {
	lease, err := d.guard.engine.Take(ctx, r)
	sinceCall := time.Duration(-1)
	if busy, is := err.(*engine.Busy); is && busy.Returned { //nolint:errorlint // Take does not wrap it
		sinceCall = busy.SinceCall
	} else if err == nil {
		sinceCall = lease.SinceCall()
	}
	d.tellCame(t, sinceCall)
	return d.keepLease(t, lease, err)
}

func (d *delivery) tellCame(t *target, sinceCall time.Duration) {
	if d.server != nil && !d.came && d.outer == nil {
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

// request returns what is asked for t, until the next call: one try. A round trip ends by itself, after about 5 s at
// most. So it runs on the worker's goroutine, with none that watches the context (Whole); look checks that afterwards.
func (d *delivery) request(t *target) *engine.Request {
	r := &d.wish
	*r = t.rule.request
	r.Name, r.Key, r.Limit, r.Pace, r.Note, r.Whole = t.scope, t.key, t.limit, t.pace, d.note, true
	r.Notes = d.outer == nil // two tasks within one task have one note
	for _, s := range d.steps {
		s.request(r, t)
	}
	if t.rule.LeaveIdle > 0 && d.server != nil {
		r.Lender = d.server.lender(t.scope, t.rule.LeaveIdle)
	}
	return r
}

func (d *delivery) observeWaiting(t *target) {
	d.line.waiting, d.line.stood = time.Now(), true
	switch {
	case d.line.waiter != nil:
		d.server.workers.Begin(d.line.waiter)
	case d.worker != nil:
		d.worker.worksNow() // no wait of others ends this one
	}
	d.observe(t, Event{Kind: EventWaiting, Last: d.last})
	d.at(stands, t, nil)
}

func (d *delivery) observeWaited(t *target) {
	if d.line.waiting.IsZero() {
		return
	}
	waited := time.Since(d.line.waiting)
	d.line.waiting = time.Time{}
	d.at(stood, t, nil)
	d.observe(t, Event{Kind: EventWaited, Waited: waited, Last: d.last})
}

// sleep blocks the worker for delay, at most until the margin. It ends when the delivery is over, or leave is closed,
// which it reports.
func (f *facts) sleep(delay time.Duration, leave <-chan struct{}) (left bool) {
	if deadline, ok := f.ctx.Deadline(); ok {
		delay = min(delay, time.Until(deadline)-margin)
	}
	var replaced <-chan struct{} // nil blocks for ever
	if f.stop != nil {
		replaced = f.stop.Done()
	}
	timer := time.NewTimer(delay) // the worker's own; ends with this call
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.ctx.Done():
	case <-f.guard.life.Closing.Done():
	case <-replaced:
	case <-leave:
		return true
	}
	return false
}

// countLast counts a wait on a last attempt until its end, and warns once if half of the server's workers are in such,
// or the task had one attempt.
func (f *facts) countLast() (ended func()) {
	if !f.last || f.server == nil {
		return func() {}
	}
	n := f.server.lasts.Add(1)
	if most, _ := asynq.GetMaxRetry(f.ctx); most <= 0 || 2*n >= int64(f.server.workers.Limit) {
		f.guard.warnOnce("last attempts", "a task on its last attempt waits in its worker, since asynq would archive it if "+
			"it went back: enqueue tasks with automutex.NewClient, which gives each an attempt to go back with",
			f.about(nil)...)
	}
	return func() { f.server.lasts.Add(-1) }
}

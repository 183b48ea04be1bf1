package automutex

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/engine"
)

// This file is how a task waits for a lock, and which wait gives way to other tasks.

// margin is how long before its task's deadline a wait ends: when the task's context ends, asynq fails the attempt.
const margin = time.Second

// standing is what is known of the lock that a task comes to.
type standing struct {
	key     string
	came    time.Time
	stood   bool      // in the lock's line, at some time
	waiting time.Time // since when it is in line; zero: it is not
	waiter  *waiter   // as the server's workers know it; nil: it gives way to nobody
}

// acquire takes a lock. The error is a *BusyError (others hold the lock, its gate is closed, or an operator paused it), errSpent, one
// that Is engine.ErrOrderDone, or lock.ErrBackend. While the delivery is over it may be any.
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
	yields bool          // it may not keep the server's last worker
	stays  bool          // a pause does not end it
}

// waitOf returns how the rule has the task wait. On its last attempt a task waits where others return.
func (d *delivery) waitOf(t target) waiting {
	policy := t.rule.Busy.row()
	switch {
	case d.last && (d.staying || policy.returns()):
		d.warnOneAttempt(t.rule)
		return waiting{most: 1 << 62, stays: true} // wait shortens it to the task's deadline
	case policy.parks:
		return waiting{parks: d.note != "", yields: true}
	}
	most := t.rule.Wait
	if t.rule.Busy.kind == policyReplace && most == 0 {
		most = t.rule.TTL
	}
	return waiting{most: most, inTime: true, yields: policy.yields}
}

// wait takes the lock of t. It stands in line until the lock is granted, the wait is over, the margin before
// the task's deadline is reached, the Guard closes, an operator pauses the key, a newer task replaces this one, or
// the wait would keep the server's last worker.
//
// If the task parked, the error is a *BusyError with parked set: Redis keeps the task's place in line.
func (d *delivery) wait(t target, w waiting) (err error) {
	r := d.request(t)
	r.InTime = w.inTime
	latest, bounded := d.ctx.Deadline()
	if latest = latest.Add(-margin); bounded {
		w.most = min(w.most, time.Until(latest))
	}
	if r.Park = w.parks; w.parks && d.server == nil || !w.parks && w.most <= 0 { // without a server who knows how many workers are free
		return d.ask(d.ctx, t, r)
	}
	r.Wait, r.OnWait = true, func() { d.observeWaiting(t) }
	// ctx ends everything. most only bounds the time in line: if the answer to an earlier
	// ask arrives after it and grants the lock, the task keeps the lock.
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	defer context.AfterFunc(d.guard.closing, cancel)()
	leave := cancel
	if w.parks {
		parkNow := make(chan struct{})
		r.Yield = parkNow
		leave = sync.OnceFunc(func() { close(parkNow) })
		if bounded {
			// Stop does not wait for a timer that fires now. Its leave closes parkNow when
			// the wait is over, and nobody reads parkNow then.
			defer time.AfterFunc(time.Until(parkBy(d.arrived, latest)), leave).Stop()
		}
	} else {
		within, cancel := context.WithTimeout(ctx, w.most)
		defer cancel()
		r.Within, r.Leaves = within, !w.stays
	}
	if w.yields && d.server != nil {
		me := &waiter{key: t.key, turn: d.turn(t), leave: leave}
		d.line.waiter = me // observeWaiting adds it to the server's
		defer func() { d.server.workers.end(me, err == nil); d.line.waiter = nil }()
	}
	defer d.observeWaited(t)
	// While this task waits, a newer task may replace it on a lock that it holds already.
	// Then cancel ends the wait.
	defer d.watchWhileWaiting(t, cancel)()
	err = d.ask(ctx, t, r)
	var busy *BusyError
	if err != nil && d.guard.closing.Err() != nil && (!errors.As(err, &busy) || !busy.parked) {
		return ErrClosed // Close ended the wait, and not the policy
	}
	return err
}

// ask asks the engine for the lock of t.
func (d *delivery) ask(ctx context.Context, t target, r engine.Request) error {
	lease, err := d.guard.engine.Take(ctx, r)
	return d.keepLease(t, lease, err)
}

// parkBy returns when a task that waits in its worker parks: after half of its time, so that its handler has the other
// half, and no later than latest, the margin before its deadline.
func parkBy(arrived, latest time.Time) time.Time {
	if half := arrived.Add(latest.Add(margin).Sub(arrived) / 2); half.Before(latest) {
		return half
	}
	return latest
}

// request is what the task asks of the engine for the lock of t: one try. A round trip ends by itself, after about 5 s at most. So it
// runs on the worker's goroutine, without another one that watches the context (Whole); look checks that afterwards.
func (d *delivery) request(t target) engine.Request {
	r := t.rule.request
	r.Name, r.Key, r.Limit, r.Note, r.Whole = t.scope, t.key, t.limit, d.note, true
	if d.isOrdered(t) {
		r.Ordered, r.Order = true, &engine.Order{Place: d.placeIn(t)}
	}
	if d.replacing != nil {
		d.replacing.stopBy(&r, t)
	}
	return r
}

// observeWaiting observes that the task begins to wait in line.
func (d *delivery) observeWaiting(t target) {
	d.line.waiting, d.line.stood = time.Now(), true
	if d.line.waiter != nil {
		d.server.workers.begin(d.line.waiter)
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

// warnOneAttempt warns once of a rule with the policy Park whose tasks have one attempt and so cannot park.
func (d *delivery) warnOneAttempt(rule *compiledRule) {
	if most, ok := asynq.GetMaxRetry(d.ctx); !ok || most > 0 || !rule.Busy.row().parks {
		return
	}
	d.guard.warnOnce("one attempt of "+rule.Name, "a rule has the policy park, but its task was enqueued with MaxRetry 0 or less, and asynq archives a task that returns on its last attempt: "+
		"it waits in its worker instead; enqueue such tasks with automutex.NewClient, or with a MaxRetry of at least 1", "rule", rule.Name, "type", d.task.Type(), "task", d.note)
}

// yieldAfter is how long a wait may keep the server's last worker.
const yieldAfter = 20 * time.Millisecond

// workers counts the tasks of one server that are in the Middleware, and knows which of them only wait and may give way. When
// all workers have been busy for yieldAfter, the newest wait ends: its task parks, or returns. Of an ordered key that is the task whose turn
// comes last: if another one parked, those behind it would wait in their workers until it is back.
//
// As long as no wait of the server has ended with its lock since, the next ones end at once: a backlog of 10,000 tasks of one
// key that is held for long would otherwise keep the queue for 200 s.
type workers struct {
	limit int

	mu       sync.Mutex // guards what follows; never held across I/O
	busy     int
	waiting  []*waiter   // in the order in which they began to wait
	yielding *waiter     // was told to leave, and its worker is not free: one at a time
	stands   bool        // a wait was told to end, and none has got its lock since
	full     *time.Timer // runs while all workers are busy and one of them may give way; nil: that is not so
}

// waiter is a worker that waits in line.
type waiter struct {
	key   string
	turn  int64  // its place in the order of the key; 0: the key is not ordered
	leave func() // ends the wait; may be called again, and when the wait is over
}

// taskStarted counts a worker as busy, and taskEnded as free.
func (w *workers) taskStarted() { w.change(func() { w.busy++ }) }
func (w *workers) taskEnded() {
	w.change(func() {
		w.busy--
		if !slices.Contains(w.waiting, w.yielding) {
			w.yielding = nil
		}
	})
}

// begin adds a wait, and end removes it; granted: its task has the lock, and works on. end does nothing for a wait that did
// not begin.
func (w *workers) begin(me *waiter) { w.change(func() { w.waiting = append(w.waiting, me) }) }
func (w *workers) end(me *waiter, granted bool) {
	w.change(func() {
		w.waiting = slices.DeleteFunc(w.waiting, func(other *waiter) bool { return other == me })
		if granted {
			w.stands = false
			if w.yielding == me {
				w.yielding = nil
			}
		}
	})
}

// change changes the counts, and begins or ends the time of yieldAfter. The timer fires once, and does nothing if it was
// replaced or the counts have changed; nobody has to wait for it.
func (w *workers) change(counts func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts()
	isFull := w.busy >= w.limit && len(w.waiting) > 0 && w.yielding == nil
	switch {
	case isFull && w.full == nil:
		after := yieldAfter
		if w.stands {
			after = 0
		}
		var mine *time.Timer
		mine = time.AfterFunc(after, func() { w.yieldOne(&mine) }) // mu is held, so yieldOne sees mine
		w.full = mine
	case !isFull && w.full != nil:
		w.full.Stop()
		w.full = nil
	}
}

// yieldOne tells the newest wait to end, if the timer is still the one that runs.
func (w *workers) yieldOne(timer **time.Timer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.full != *timer {
		return
	}
	w.full, w.stands = nil, true
	w.yielding = w.waiting[len(w.waiting)-1]
	for _, other := range w.waiting {
		if other.key == w.yielding.key && other.turn > w.yielding.turn {
			w.yielding = other
		}
	}
	w.yielding.leave()
}

package lock

import (
	"context"
	"sync"
	"time"
)

// How waiters keep their places.
const (
	// refreshEvery is how often a waiter asks again, so that a lost message
	// costs at most about that long.
	refreshEvery = time.Second
	// stay is how long a line entry lives without being asked for: three
	// refreshes. With less, one slow exchange would cost a live waiter its
	// place; with more, several waiters of one dead process would each be
	// granted a lease before they are found stale.
	stay = 3 * refreshEvery
	// patience is how long a waiter bears Redis not answering.
	patience = 15 * time.Second
	// leaveGrace is how long a waiter that gave up waits for its leave to be
	// confirmed; the leave itself goes on beside.
	leaveGrace = 250 * time.Millisecond
	// refreshTogether: refreshes due that soon travel with one that is due.
	refreshTogether = refreshEvery / 4
)

// line is the waiting side of a Locker. Each waiter is a goroutine blocked in
// wait; what happens to it is decided here, on messages, on replies to asks and
// on the alarm. All asks after the first are sent by the line, in pipelines.
//
// For one token, asks and the leave never overlap: asking is set while an ask
// is on its way, nothing else is sent meanwhile, and whoever wants the waiter
// gone then only sets gone. (An ask that overtook its own leave would take the
// lock for nobody.)
type line struct {
	locker *Locker
	alarm  alarm

	mu      sync.Mutex // guards the fields below and those of every waiter; never held across I/O
	waiters map[string]*waiter
}

// waiter is one goroutine in line. All fields but done belong to line.mu.
type waiter struct {
	lease *Lease

	until   time.Time // when its wait ends; zero: not by the clock
	parks   bool      // its goroutine takes being parked for an answer
	parking bool      // it is to be parked at the next ask
	called  bool      // it is back from a call
	away    bool      // it is out of line: parked, or not for its own note's sake

	asking    bool      // an ask is on its way
	asked     wish      // what the last ask was for
	again     bool      // ask once more after it: messages may have been missed since it ran
	askedAt   time.Time // when the last answered ask was sent
	answered  time.Time // when Redis last answered, for patience
	refreshAt time.Time // when to ask again at the latest
	expiryAt  time.Time // when the first holder's deadline passes; only for the first in line
	last      answer    // the last busy answer
	hint      message   // the newest grant message, until used
	hintAt    time.Time // when it was heard

	gone bool          // the goroutine gave up; leave as soon as no ask is on its way
	left chan struct{} // closed when the leave is through
	done chan struct{} // closed when the waiter has its lease, or err
	err  error
}

func newLine(l *Locker) *line {
	n := &line{locker: l, waiters: make(map[string]*waiter)}
	n.alarm.ring = n.ring
	return n
}

// wait takes m's lock, in line if need be, until waiting ends, or until yield is
// closed: then it parks. A nil yield means that it does not park. ctx is for the first
// ask, which is sent also when waiting has ended.
func (n *line) wait(ctx, waiting context.Context, m *Lock, yield <-chan struct{}) (*Lease, error) {
	le := m.newLease()
	w := &waiter{lease: le, parks: yield != nil, asking: true, asked: join, done: make(chan struct{}), left: make(chan struct{})}
	select {
	case <-yield:
		w.asked = parks
	default:
		if w.parks && m.slots() == 0 {
			w.asked = parks // it is paused: no goroutine is held for that
		}
	}
	w.until, _ = waiting.Deadline()
	began := time.Now()
	// Known to the line before the ask joins: its grant may be published
	// before the reply is read.
	n.mu.Lock()
	n.waiters[le.token] = w
	n.mu.Unlock()

	a, sent, err := m.take(ctx, le, w.asked)
	if err == nil {
		w.called = m.locker.parking.came(m, le, a)
	}
	if err != nil || a.yours || w.asked.park {
		n.mu.Lock()
		delete(n.waiters, le.token)
		n.mu.Unlock()
		switch {
		case err != nil:
			return nil, err
		case a.yours:
			m.locker.renewer.add(le, a.fence, a.value, sent, m.ttl)
			m.listen()
			return m.replicated(ctx, le)
		}
		m.locker.parking.parked(m, a, w.called)
		m.locker.doubt(le)
		return nil, m.busy(a, 0, nil)
	}
	n.locker.wake.listen()
	if w.parks {
		n.locker.parking.measured(m)
	}
	n.settle(w, a, nil, sent)
	if w.parks && m.noteHolds(a) {
		return nil, m.busy(n.leave(w), 0, nil)
	}
	n.tell(w)

	for {
		select {
		case <-w.done:
			if w.err != nil {
				n.leave(w)
				return nil, w.err
			}
			if w.away {
				m.locker.doubt(le)
				return nil, m.busy(w.last, time.Since(began), nil)
			}
			return m.replicated(ctx, le)
		case <-yield:
			yield = nil // once
			n.park(w)
		case <-n.locker.closing.Done():
			if last := n.leave(w); last.parked {
				return nil, m.busy(last, time.Since(began), ErrClosed)
			}
			return nil, ErrClosed
		case <-waiting.Done():
			return nil, m.busy(n.leave(w), time.Since(began), waiting.Err())
		}
	}
}

// park has the next ask of w park it. What became of that ends the wait: a
// lease, if w was granted it meanwhile, or a place in line without a goroutine.
func (n *line) park(w *waiter) {
	n.mu.Lock()
	w.parking, w.refreshAt = true, time.Now()
	next := w.next()
	n.mu.Unlock()
	n.alarm.set(next)
}

// tell has OnWait's function called. Should it panic, the waiter leaves: nobody
// would be there for its grant.
func (n *line) tell(w *waiter) {
	if w.lease.lock.onWait == nil {
		return
	}
	told := false
	defer func() {
		if !told {
			n.leave(w)
		}
	}()
	w.lease.lock.onWait()
	told = true
}

// settle notes the answer to an ask of w, sent at sent.
func (n *line) settle(w *waiter, a answer, err error, sent time.Time) {
	now := time.Now()
	n.mu.Lock()
	again := w.again
	w.asking, w.again = false, false
	switch {
	case w.gone:
		if err == nil && a.parked { // the goroutine goes, its place stays
			w.last = a
			n.locker.parking.parked(w.lease.lock, a, w.called)
		}
		n.depart(w)
	case err != nil && (!transient(err) || now.Sub(w.answered) > patience):
		w.err = err
		n.finish(w)
	case err != nil:
		// The first deadline may have passed: without a new answer it says nothing,
		// and would have the next ask sent at once, again and again.
		w.refreshAt, w.expiryAt = now.Add(refreshEvery/4), time.Time{}
	case a.yours:
		n.locker.renewer.add(w.lease, a.fence, a.value, sent, w.lease.lock.ttl)
		n.finish(w)
	case w.asked.park && !a.more:
		w.last, w.away = a, true
		n.locker.parking.parked(w.lease.lock, a, w.called)
		n.finish(w)
	default:
		w.last, w.askedAt, w.answered = a, sent, now
		if w.hintAt.Before(sent) {
			w.hint = message{} // refuted: we did not hold the lock after that grant
		}
		w.refreshAt, w.expiryAt = now.Add(refreshEvery), time.Time{}
		if w.parks && (a.gate > longGate || w.lease.lock.slots() == 0) {
			w.parking = true // nobody may begin: no worker is held for that
		}
		if again || w.parking || a.more {
			w.refreshAt = now
		}
		// Only the first in line watch the first deadline; one of them will
		// be granted what it frees. The very first watches the gate.
		switch {
		case a.gate > 0 && a.place == 0:
			w.expiryAt = now.Add(a.gate)
		case a.gate == 0 && a.deadline >= 0 && a.place < w.lease.lock.slots():
			w.expiryAt = now.Add(a.deadline + time.Millisecond)
		}
		if w.inVain(now, a.gate) {
			w.err = w.lease.lock.busy(a, 0, context.DeadlineExceeded)
			n.finish(w)
			break
		}
		n.take(w)
	}
	next := w.next()
	n.mu.Unlock()
	n.alarm.set(next)
}

// next is when w needs asking again. Callers hold mu.
func (w *waiter) next() time.Time {
	select {
	case <-w.done:
		return time.Time{}
	default:
	}
	if w.asking || w.gone {
		return time.Time{}
	}
	return earliest(w.refreshAt, w.expiryAt)
}

// finish lets the waiting goroutine go on. Callers hold mu.
func (n *line) finish(w *waiter) {
	delete(n.waiters, w.lease.token)
	close(w.done)
}

// hear notes a grant message. Callers hold nothing.
func (n *line) hear(msg message) {
	if msg.fence == brokenFence {
		n.locker.renewer.broken(msg.token)
		return
	}
	if msg.fence == stopFence {
		n.stop(msg.token)
		return
	}
	if msg.fence == gateFence {
		n.watchGate(msg)
		return
	}
	n.mu.Lock()
	var next time.Time
	if w := n.waiters[msg.token]; w != nil && msg.us > w.hint.us {
		w.hint, w.hintAt = msg, time.Now()
		if !w.asking && !w.gone {
			n.take(w)
			next = w.next()
		}
	}
	n.mu.Unlock()
	n.alarm.set(next)
}

// hintIsFromAnotherClock tells whether the hint's server time is later than the
// server's clock can be by now: that clock was stepped back since the message was
// sent, and the lease of which it speaks may have ended before the last busy answer.
// A hint that such an answer refutes, because it was heard before the ask was sent,
// is dropped by settle. Callers hold mu.
func (w *waiter) hintIsFromAnotherClock() bool {
	since := time.Since(w.askedAt)
	return w.hint.us > w.last.serverUS+(since+since/100+5*time.Millisecond).Microseconds()
}

// take makes w the holder if its hint proves a grant: the message must be newer
// than the last busy answer, or it speaks of a lease that has ended since. The
// lease then counts from when that answered ask was sent, which was before the
// grant, so we never believe for longer than Redis does. If less than half is
// left of it, asking again is safer: the answer re-arms the lease. So it is for
// a lease longer than a grant that nobody will renew. Callers hold mu, and no
// ask is on its way.
func (n *line) take(w *waiter) {
	if w.hint.us <= w.last.serverUS {
		return
	}
	if w.hintIsFromAnotherClock() {
		w.hint, w.refreshAt = message{}, time.Now()
		return
	}
	length := min(w.lease.lock.ttl, maxGrant)
	short := length < w.lease.lock.ttl && !w.lease.lock.renew
	if short || time.Until(w.askedAt.Add(believe(length))) < length/2 {
		w.refreshAt = time.Now()
		return
	}
	n.locker.renewer.addGranted(w.lease, w.hint.fence, w.hint.value, w.askedAt, length)
	n.finish(w)
}

// leave takes w out of line, giving back a slot it may have been granted
// meanwhile, and returns the last answer: parked if it was parked at the last
// moment. It waits for that no longer than leaveGrace.
func (n *line) leave(w *waiter) answer {
	n.mu.Lock()
	w.gone = true
	delete(n.waiters, w.lease.token)
	if !w.asking {
		n.depart(w)
	}
	n.mu.Unlock()
	timer := time.NewTimer(leaveGrace)
	defer timer.Stop()
	select {
	case <-w.left:
	case <-timer.C:
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return w.last
}

// depart sends the leave for a waiter that is gone, once. Callers hold mu and
// are counted in themselves: by the waiter's call to Lock, or as a refresh.
func (n *line) depart(w *waiter) {
	le := w.lease
	n.locker.branch(func() {
		n.locker.renewer.drop(le) // it may have been granted, and added, at the last moment
		_, _, err := le.release(context.Background())
		close(w.left)
		switch {
		case err == nil && !le.doubtful():
		case err != nil && n.locker.closing.Err() != nil: // as in abandon
		case err != nil:
			n.locker.abandon(le)
		default:
			n.locker.abandoned.add(le, false)
		}
	})
}

// ring asks again for every waiter that is due. After Close it does nothing:
// the waiters are leaving.
func (n *line) ring() {
	if n.locker.enter() != nil {
		return
	}
	defer n.locker.work.Done()
	now := time.Now()
	var due []*waiter
	var next time.Time
	n.mu.Lock()
	for _, w := range n.waiters {
		expired := !w.expiryAt.IsZero() && !w.expiryAt.After(now)
		if !w.asking && (expired || !w.refreshAt.After(now.Add(refreshTogether))) {
			w.asking, w.asked = true, join
			if w.parking {
				w.asked = parks
			}
			due = append(due, w)
		}
		next = earliest(next, w.next())
	}
	n.mu.Unlock()
	n.alarm.set(next)
	inBatches(n.locker, due, func(w *waiter) string { return w.lease.lock.Key() }, n.refresh)
}

// refresh asks for a batch of waiters, in one pipeline; pools have a script of
// their own, and so a pipeline.
func (n *line) refresh(batch []*waiter) {
	batches := map[*script][]*waiter{}
	calls := map[*script][]*call{}
	for _, w := range batch {
		s, args := w.lease.lock.askArgs(w.lease, w.asked) // ours alone while asking is set
		batches[s] = append(batches[s], w)
		calls[s] = append(calls[s], &call{keys: w.lease.lock.keys, args: args})
	}
	for s, batch := range batches {
		n.refreshWith(s, batch, calls[s])
	}
}

func (n *line) refreshWith(s *script, batch []*waiter, calls []*call) {
	before := make([]int32, len(batch))
	for i, w := range batch {
		before[i] = w.lease.asks.Load()
	}
	sent := time.Now()
	n.locker.conn.pipeline(context.Background(), s, calls)
	for i, w := range batch {
		var a answer
		err := calls[i].err
		w.lease.countReply(before[i], err) // before settle, which asks whether a copy may run yet
		if err == nil {
			a, err = w.lease.lock.parseAnswer(calls[i].reply)
		} else {
			err = backendError(s.name, w.lease.lock.Key(), err)
		}
		n.settle(w, a, err, sent)
	}
}

// empty tells whether nobody waits.
func (n *line) empty() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.waiters) == 0
}

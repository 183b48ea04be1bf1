package lock

import (
	"context"
	"sync"
	"time"
)

// How waiters keep their places.
const (
	// refreshEvery is how often a waiter asks again. A lost message delays a waiter by
	// about that long at most.
	refreshEvery = time.Second
	// entryLifetime is how long a line entry lives without another ask: three
	// refreshes. With less, one slow exchange would cost a live waiter its
	// place; with more, several waiters of one dead process would each be
	// granted a lease before they are found stale.
	entryLifetime = 3 * refreshEvery
	// patience is how long a waiter stays in line while Redis does not answer.
	patience = 15 * time.Second
	// leaveGrace is how long a caller that gave up waits for the reply to its leave. The
	// leave itself goes on in the background.
	leaveGrace = 250 * time.Millisecond
)

// line is the waiting side of a Locker. Each waiter is a goroutine blocked in wait.
// The line decides what happens to a waiter, on three events: a grant message
// (grants.go), the reply to an ask, and the alarm (refresh.go). The line sends all asks
// after a waiter's first, in pipelines.
//
// For one token, asks and the leave never overlap: while waiter.pending is set, nothing
// else is sent for its token. A waiter that gives up meanwhile only changes its state,
// and the reply to the ask then sends the leave. (An ask that overtook its own leave
// would take the lock for nobody.)
type line struct {
	locker *Locker
	alarm  alarm

	mu      sync.Mutex         // guards the fields below and those of every waiter; never held across I/O
	waiters map[string]*waiter // by token: those in stateInLine or stateParkNext
}

// waitState is how far a wait has come. A reply or a grant message ends a wait that is
// in the first or second state, and closes done:
//
//	stateInLine -> stateParkNext                 parkNow was closed, or nobody may take the lock for a while
//	stateInLine, stateParkNext -> stateGranted, stateParkedOrRefused or stateFailed
//	any state -> stateLeaving                    the goroutine gave up, or the wait failed
//
// No state goes back to an earlier one.
type waitState uint8

const (
	stateInLine          waitState = iota // the line asks for it again and again
	stateParkNext                         // like stateInLine, but the next ask parks it
	stateGranted                          // the lease is with the renewer
	stateParkedOrRefused                  // parked, or refused because a holder has its note: see waiter.last
	stateFailed                           // see waiter.err; leave removes the entry that may be left in Redis
	stateLeaving                          // the leave is sent once no ask is pending
)

// pendingAsk is an ask that is on its way.
type pendingAsk struct {
	mode   askMode
	repeat bool // ask once more after it: a message may have been missed since it ran
}

// waiter is one goroutine in line. All fields but done belong to line.mu.
type waiter struct {
	lease     *Lease
	until     time.Time // when its wait ends; zero: it has no deadline
	mayPark   bool      // it may park, see lockOrPark
	wasCalled bool      // a Caller called its note; the reply to the first ask says so

	state   waitState
	pending *pendingAsk // nil: no ask is on its way

	askedAt   time.Time // when the last ask with a busy reply was sent
	repliedAt time.Time // when Redis last replied, for patience
	refreshAt time.Time // when to ask again at the latest
	expiryAt  time.Time // when a slot may come free: the first deadline, or the gate; only for the first in line
	last      answer    // the last busy reply
	hint      message   // the newest grant message, until used
	hintAt    time.Time // when it was received

	left chan struct{} // closed when the leave has a reply or an error
	done chan struct{} // closed when the state is stateGranted, stateParkedOrRefused or stateFailed
	err  error
}

func newLine(l *Locker) *line {
	n := &line{locker: l, waiters: make(map[string]*waiter)}
	n.alarm.ring = n.ring
	return n
}

// newWaiter returns a waiter whose first ask is pending. A nil parkNow means that it may
// not park.
func (m *Lock) newWaiter(until time.Time, parkNow <-chan struct{}) *waiter {
	mode := modeJoin
	select {
	case <-parkNow:
		mode = modePark
	default:
		if parkNow != nil && m.slots() == 0 {
			mode = modePark // the lock is paused: park instead of waiting for the end of the pause
		}
	}
	return &waiter{
		lease: m.newLease(), until: until, mayPark: parkNow != nil, pending: &pendingAsk{mode: mode},
		done: make(chan struct{}), left: make(chan struct{}),
	}
}

// wait takes m's lock. If the lock is busy it waits in line until waiting ends, or parks when
// parkNow is closed; with a nil parkNow it does not park. ctx bounds the first ask, which is
// sent even if waiting has ended.
func (n *line) wait(ctx, waiting context.Context, m *Lock, parkNow <-chan struct{}) (*Lease, error) {
	until, _ := waiting.Deadline()
	w, began := m.newWaiter(until, parkNow), time.Now()
	mode := w.pending.mode
	// Add w to the line before the ask: its grant may be published before the reply is read.
	n.mu.Lock()
	n.waiters[w.lease.token] = w
	n.mu.Unlock()

	a, sent, err := m.take(ctx, w.lease, mode)
	if err != nil {
		n.mu.Lock()
		delete(n.waiters, w.lease.token)
		n.mu.Unlock()
		return nil, err
	}
	if !a.yours {
		w.wasCalled = m.locker.parking.noteReturn(m, w.lease, a)
	}
	n.handleReply(w, a, nil, sent)
	if a.yours || mode == modePark && !a.morePruning {
		return n.result(ctx, w, 0)
	}
	n.locker.wake.listen()
	if w.mayPark {
		n.locker.parking.measureHeld(m)
		if m.holderHasOwnNote(a) {
			return nil, m.busy(n.leave(w), 0, nil)
		}
	}
	n.callOnWait(w)

	for {
		select {
		case <-w.done:
			return n.result(ctx, w, time.Since(began))
		case <-parkNow:
			parkNow = nil // once
			n.parkSoon(w)
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

// result is what Lock returns for w, whose done is closed: the lease, a *BusyError or
// the error of the wait. w's goroutine calls it, once.
func (n *line) result(ctx context.Context, w *waiter, waited time.Duration) (*Lease, error) {
	m := w.lease.lock
	switch w.state { //nolint:exhaustive // stateFailed is below; done is open in the other states
	case stateGranted:
		return m.handOut(ctx, w.lease)
	case stateParkedOrRefused:
		m.locker.releaseLater(w.lease)
		return nil, m.busy(w.last, waited, nil)
	}
	n.leave(w)
	return nil, w.err
}

// parkSoon has the next ask of w park it, at once or after the pending one. If w is
// granted the lock meanwhile, it does not park.
func (n *line) parkSoon(w *waiter) {
	n.mu.Lock()
	if w.state == stateInLine {
		w.state, w.refreshAt = stateParkNext, time.Now()
	}
	next := w.nextAsk()
	n.mu.Unlock()
	n.alarm.set(next)
}

// callOnWait calls the function of OnWait. If it panics, the waiter leaves the line: its
// goroutine could not take a grant.
func (n *line) callOnWait(w *waiter) {
	if w.lease.lock.onWait == nil {
		return
	}
	returned := false
	defer func() {
		if !returned {
			n.leave(w)
		}
	}()
	w.lease.lock.onWait()
	returned = true
}

// nextAsk is when to ask for w again; zero: not for now. Callers hold mu.
func (w *waiter) nextAsk() time.Time {
	if w.pending != nil || w.state != stateInLine && w.state != stateParkNext {
		return time.Time{}
	}
	return earliest(w.refreshAt, w.expiryAt)
}

// end sets the last state of w and lets its goroutine go on. Callers hold mu.
func (n *line) end(w *waiter, state waitState) {
	w.state = state
	delete(n.waiters, w.lease.token)
	close(w.done)
}

// leave removes w from the line and releases a slot that w may have been granted meanwhile.
// It returns the last busy reply, which says parked if w was parked at the last moment. It
// waits for at most leaveGrace.
func (n *line) leave(w *waiter) answer {
	n.mu.Lock()
	w.state = stateLeaving
	delete(n.waiters, w.lease.token)
	if w.pending == nil {
		n.sendLeave(w)
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

// sendLeave sends the leave of w, which is a release of its token. It is called once for each
// w. Callers hold mu and are counted in (see Locker.enter), by the waiter's call to Lock or as
// a refresh.
func (n *line) sendLeave(w *waiter) {
	le := w.lease
	n.locker.branch(func() {
		n.locker.renewer.drop(le) // it may have been granted, and added, at the last moment
		_, _, err := le.release(context.Background())
		close(w.left)
		switch {
		case err == nil && !le.asks.MayRunYet():
		case err != nil && n.locker.closing.Err() != nil: // as in abandon
		case err != nil:
			n.locker.abandon(le)
		default:
			n.locker.abandoned.add(le, false)
		}
	})
}

// empty reports whether nobody waits.
func (n *line) empty() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.waiters) == 0
}

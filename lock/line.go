package lock

import (
	"context"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/wire"
)

// How waiters keep their places.
const (
	// refreshEvery is how often a waiter asks again. A lost message delays a waiter by
	// about that long at most.
	refreshEvery = time.Second
	// entryLifetime is how long a line entry lives in Redis without another ask: three
	// refreshes. With less, one slow exchange would cost a live waiter its place. With more,
	// releases would grant the lock to more waiters of a dead process, and each such grant
	// blocks the lock until its lease ends.
	entryLifetime = 3 * refreshEvery
	// patience is how long a waiter goes on asking while Redis does not answer. Its entry in
	// Redis lives for entryLifetime only. After that a grant may drop the entry, and the next
	// ask makes a new one, at the end of the line.
	patience = 15 * time.Second
	// leaveGrace is how long a caller that gave up waits for the reply to its leave. The
	// leave itself goes on in the background.
	leaveGrace = 250 * time.Millisecond
)

// line is the waiting side of a Locker: the waiters of this process, each a goroutine blocked
// in wait. Elsewhere "the line" of a lock is the list in Redis of all processes' waiters: an ask
// adds an entry to it, and only that list decides who is next. This type decides what
// happens to a waiter here, on three events: a grant message (messages.go), the reply to an ask,
// and the alarm (both refresh.go).
//
// An ask is one run of the script ask for the token of a waiter. The waiter's goroutine
// sends the first one, the line sends all others, in pipelines. A leave is a release of that
// token: it removes the waiter's entry, and frees a slot that was granted meanwhile.
//
// For one token, asks and the leave never overlap: while waiter.pending is set, nothing
// else is sent for its token. A waiter that gives up meanwhile only changes its state,
// and the reply to the ask then sends the leave. (If the leave reached Redis before an ask
// that is still on its way, that ask would take the lock for a waiter that is gone.)
//
// go-redis may send an ask twice. The second one, a late copy, may even run after the leave, and
// take the lock for that waiter. So a token of which a copy may yet run is released again later,
// see type abandoned.
//
// To add a way to wait: an askMode in take.go, with its arguments and replies in kind.go and
// lua/ask.lua, and its cases in newWaiter and handleReply; a case of the select in wait for what
// else can end it; and a waitState with its case in result if it ends in a new way.
type line struct {
	locker *Locker
	alarm  life.Alarm

	mu      sync.Mutex         // guards the fields below and those of every waiter; never held across I/O
	waiters map[string]*waiter // by token: those in stateInLine or stateParkNext
}

// waitState is how far a wait has come. Transitions:
//
//	stateInLine -> stateParkNext   parkNow was closed, the lock was paused, or its gate is closed for longer than longGate
//	stateInLine, stateParkNext -> stateGranted, stateParkedOrRefused, stateFailed   by a reply or a grant message
//	any state -> stateLeaving      the goroutine gave up, or is about to return the error of a failed wait
//
// No state goes back to an earlier one. end closes done as it sets stateGranted,
// stateParkedOrRefused or stateFailed.
type waitState uint8

const (
	stateInLine          waitState = iota // the first state, also if the first ask parks. The line asks once a second
	stateParkNext                         // like stateInLine, but the next ask parks it
	stateGranted                          // the lease is with the renewer
	stateParkedOrRefused                  // parked, or refused because a holder has the waiter's note: see waiter.last
	stateFailed                           // see waiter.err; leave removes the entry that may be left in Redis
	stateLeaving                          // the leave is sent once no ask is pending
)

// pendingAsk is an ask that is on its way.
type pendingAsk struct {
	mode   askMode
	repeat bool // ask once more after it: a message may have been missed since it ran
}

// waiter is one goroutine in line. line.mu guards its fields, with these exceptions:
//
//   - lease, until, mayPark, done and leaveDone are set before the line knows the waiter, and
//     never change. So the goroutine of sendLeave uses lease and leaveDone without mu.
//   - Its goroutine sets wasCalled while the first ask is pending. Only handleReply reads it,
//     under mu, for that ask (on the same goroutine) or a later one.
//   - After done is closed only its own goroutine, and that of its leave, use the waiter. A
//     wait ends while no ask is pending, and end removes the waiter from the map, so nobody
//     else finds it any more.
type waiter struct {
	lease     *Lease
	until     time.Time // when its wait ends; zero: it has no deadline
	mayPark   bool      // it may park, see lockOrPark
	wasCalled bool      // the waiter's note was parked, and some process had called it (see inside.Caller)

	state   waitState
	pending *pendingAsk // nil: no ask is on its way

	askedAt    time.Time    // when the last ask with a busy reply was sent
	repliedAt  time.Time    // when Redis last replied, for patience
	refreshAt  time.Time    // when to ask again at the latest
	slotFreeAt time.Time    // when a slot may come free without a release: the first deadline, or the gate opens; zero: w does not ask then, since it is not known, or waiters with a better place do, see stayInLine
	last       wire.Answer  // the last busy reply
	hint       wire.Message // the newest message that says w was granted the lock; zero once a later ask was busy, which proves it stale
	hintAt     time.Time    // when it was received

	leaveDone chan struct{} // closed when the leave has a reply or an error
	done      chan struct{} // closed when the state is stateGranted, stateParkedOrRefused or stateFailed
	err       error         // with stateFailed: what Lock returns
}

func newLine(l *Locker) *line {
	n := &line{locker: l, waiters: make(map[string]*waiter)}
	n.alarm.Ring = n.ring
	return n
}

// newWaiter returns a waiter whose first ask is pending: the caller sends it. A nil parkNow
// means that the waiter may not park.
func (m *Lock) newWaiter(until time.Time, parkNow <-chan struct{}) *waiter {
	w := &waiter{
		lease: m.newLease(), until: until, mayPark: parkNow != nil,
		done: make(chan struct{}), leaveDone: make(chan struct{}),
	}
	w.pending = &pendingAsk{mode: w.nextMode()}
	select {
	case <-parkNow:
		w.pending.mode = modePark
	default:
		if parkNow != nil && m.slots() == 0 {
			w.pending.mode = modePark // the lock is paused: park instead of waiting for the end of the pause
		}
	}
	return w
}

// wait takes m's lock. If the lock is busy it waits in line until waitCtx ends, or parks when
// parkNow is closed: the middleware closes it when a task has to give its worker way. With a
// nil parkNow, as of Lock and Do, it does not park. ctx bounds the first ask, which is
// sent even if waitCtx has ended. wait may return a lease that arrived when waitCtx or ctx had just
// ended: lockBefore gives it back if ctx has ended.
func (n *line) wait(ctx, waitCtx context.Context, m *Lock, parkNow <-chan struct{}) (*Lease, error) {
	until, _ := waitCtx.Deadline()
	w, began := m.newWaiter(until, parkNow), time.Now()
	mode := w.pending.mode
	// Add w to the line before the ask: its grant may be published before the reply is read.
	n.mu.Lock()
	n.waiters[w.lease.token] = w
	n.mu.Unlock()

	a, sent, err := m.take(ctx, w.lease, mode)
	if err != nil {
		// If the ask may have run, take has abandoned the token: a slot that it took or was
		// granted is released. A message that arrives from now on finds no waiter.
		n.mu.Lock()
		delete(n.waiters, w.lease.token)
		n.mu.Unlock()
		return nil, err
	}
	if !a.Yours {
		w.wasCalled = m.noteReturn(w.lease, a)
	}
	n.handleReply(w, a, nil, sent)
	if a.Yours || a.Parked || mode == modePark {
		return n.result(ctx, w, 0) // handleReply has closed done: granted, parked or refused
	}
	// A grant that is published before the subscription stands is lost. So each new
	// subscription has all waiters ask again (askAll, called in messages.go), also those whose ask
	// is pending.
	n.locker.wake.listen()
	if m.isOrdered() {
		n.locker.parking.CheckOrder(m.parked())
	}
	if w.mayPark {
		n.locker.parking.MeasureHeld(m.parked()) // from now on, for averageHeld
		// A holder has this waiter's own note: lockOrPark refuses it at once. Lock waits for
		// that holder as for any other.
		if m.holderHasOwnNote(a) {
			last := n.leave(w)
			return nil, m.busy(last, 0, nil)
		}
	}
	n.callOnWait(w)
	return n.await(ctx, waitCtx, w, parkNow, began)
}

// await waits until w, which came at began, has a result, or waitCtx ends, or parkNow is closed.
func (n *line) await(ctx, waitCtx context.Context, w *waiter, parkNow <-chan struct{}, began time.Time) (*Lease, error) {
	m := w.lease.lock
	// If done and an end are ready together, select takes either, and both are right: leave gives
	// back a granted slot, last.parked says whether w parked, and for a caller whose wait has
	// ended that end is as good a reason as w.err.
	for {
		select {
		case <-w.done:
			return n.result(ctx, w, time.Since(began))
		case <-parkNow:
			parkNow = nil // once
			n.parkSoon(w)
		case <-n.locker.life.Closing.Done():
			if last := n.leave(w); last.Parked {
				return nil, m.busy(last, time.Since(began), ErrClosed)
			}
			return nil, ErrClosed
		case <-waitCtx.Done():
			last := n.leave(w)
			return nil, m.busy(last, time.Since(began), waitCtx.Err())
		}
	}
}

// result is what Lock returns for w, whose done is closed: the lease, a *BusyError or
// the error of the wait. w's goroutine calls it, once.
func (n *line) result(ctx context.Context, w *waiter, waited time.Duration) (*Lease, error) {
	m := w.lease.lock
	switch w.state { // stateFailed is below; done is open in the other states
	case stateGranted:
		return m.handOut(ctx, w.lease)
	case stateParkedOrRefused:
		m.locker.releaseLater(w.lease) // against a late copy of an ask, if there may be one
		return nil, m.busy(w.last, waited, nil)
	}
	n.leave(w)
	return nil, w.err
}

// parkSoon makes the next ask of w a parking one. It is sent at once, or after the reply to
// the pending ask. If w is granted the lock meanwhile, it does not park.
func (n *line) parkSoon(w *waiter) {
	n.mu.Lock()
	if w.state == stateInLine {
		w.state, w.refreshAt = stateParkNext, time.Now()
	}
	next := w.nextAsk()
	n.mu.Unlock()
	n.alarm.Set(next)
}

// callOnWait calls the function given to OnWait. If that function panics, w leaves the line,
// because no goroutine would take a grant to w.
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
	return life.Earliest(w.refreshAt, w.slotFreeAt)
}

// end ends the wait of w in one of the states that close done, and lets its goroutine go on.
// No ask of w is pending. Callers hold mu.
func (n *line) end(w *waiter, state waitState) {
	w.state = state
	delete(n.waiters, w.lease.token)
	close(w.done)
}

// leave removes w from the line and releases a slot that w may have been granted meanwhile.
// It returns the last busy reply, in which parked is true if w was parked at the last moment.
// It waits for at most leaveGrace. If an ask is still pending then, leave returns the reply to
// the ask before it, though the pending one may yet park w. w's goroutine calls it, at most once.
func (n *line) leave(w *waiter) wire.Answer {
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
	case <-w.leaveDone:
	case <-timer.C:
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return w.last
}

// sendLeave sends the leave of w, on a goroutine of its own. It is called at most once for
// each w. Callers hold mu, and run inside Life.Enter: in the waiter's call of Lock, or in a
// refresh. So Close waits for that goroutine.
func (n *line) sendLeave(w *waiter) {
	le := w.lease
	n.locker.life.Branch(func() {
		n.locker.renewer.drop(le, time.Now()) // it may have been granted, and added, at the last moment
		_, _, err := le.release(context.Background())
		close(w.leaveDone)
		switch {
		case err == nil && !le.asks.MayRunYet(): // released, and there is no late copy
		case err != nil && n.locker.life.Closing.Err() != nil: // Redis is away: Close must not wait for a second release
		case err != nil:
			n.locker.abandon(le) // not released: release it now, and again later
		default: // released: only again later, against a late copy
			n.locker.abandoned.add(le, false) // false: the last release has not failed
		}
	})
}

// empty reports whether nobody waits.
func (n *line) empty() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.waiters) == 0
}

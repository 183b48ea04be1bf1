package lock

import (
	"context"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// leaveGrace is how long a caller that gave up waits for the reply to its leave. The
// leave itself goes on in the background.
const leaveGrace = 250 * time.Millisecond

// line is the waiting side of a Locker: the waiters of this process, each a goroutine blocked
// in wait. Elsewhere "the line" of a lock is the list in Redis of all processes' waiters: an ask
// adds an entry to it, and only that list decides who is next. A turn.Wait decides what becomes of a waiter
// here; this type sends the asks and carries out the steps, on three events: a grant
// message (messages.go), the reply to an ask, and the alarm (both refresh.go).
//
// An ask is one run of the script ask for the token of a waiter. The waiter's goroutine
// sends the first one, the line sends all others, in pipelines. A leave is a release of that
// token: it removes the waiter's entry, and frees a slot that was granted meanwhile.
//
// go-redis may send an ask twice. The second one, a late copy, may even run after the leave, and
// take the lock for that waiter. So a token of which a copy may yet run is released again later,
// see type abandoned.
//
// A new way to wait needs a turn.Ask, in begin and Replied of package turn, with its arguments and replies in kind.go and
// lua/ask.lua; a turn.Step for how it ends, in act and result; its stories; and a case of the select in
// await for what else can end it.
type line struct {
	locker *Locker
	alarm  life.Alarm

	mu      sync.Mutex         // guards the fields below and those of every waiter; never held across I/O
	waiters map[string]*waiter // by token: those whose wait goes on
}

// waiter is one goroutine in line. line.mu guards its fields, with these exceptions:
//
//   - lease, done and leaveDone are set before the line knows the waiter, and
//     never change. So the goroutine of sendLeave uses lease and leaveDone without mu.
//   - turn.Asks does not change while an ask is under way, so who sends it reads it without mu.
//   - Its goroutine sets wasCalled while the first ask is under way. Only act reads it,
//     under mu, for that ask (on the same goroutine) or a later one.
//   - After done is closed only its own goroutine, and that of its leave, use the waiter. A
//     wait ends while no ask is under way, and act removes the waiter from the map, so nobody
//     else finds it any more.
type waiter struct {
	lease     *Lease
	turn      turn.Wait
	wasCalled bool          // the waiter's note was parked, and some process had called it (see inside.Caller)
	leaveDone chan struct{} // closed when the leave has a reply or an error
	done      chan struct{} // closed when the wait has ended by itself
	ended     turn.Step     // with done: how
	err       error         // with turn.Failed and turn.TooLate: what Lock returns
}

func newLine(l *Locker) *line {
	n := &line{locker: l, waiters: make(map[string]*waiter)}
	n.alarm.Ring = n.ring
	return n
}

// newWaiter returns a waiter whose first ask is under way: the caller sends it. A nil parkNow
// means that the waiter may not park.
func (m *Lock) newWaiter(until time.Time, parkNow <-chan struct{}) *waiter {
	var atOnce bool
	select {
	case <-parkNow:
		atOnce = true
	default:
		atOnce = parkNow != nil && m.slots() == 0 // the lock is paused: park instead of waiting for the end of the pause
	}
	grant := m.grantLength()
	terms := turn.Terms{
		Until: until, InTime: m.inTimeOnly, MayPark: parkNow != nil,
		Grant: grant, Counted: believe(grant), Short: grant < m.ttl && !m.renew,
	}
	return &waiter{
		lease: m.newLease(), turn: turn.New(terms, atOnce),
		done: make(chan struct{}), leaveDone: make(chan struct{}),
	}
}

// wait takes m's lock. If the lock is busy it waits in line until waitCtx ends, or parks when
// parkNow is closed: the middleware closes it when a task has to give its worker way. With a
// nil parkNow, as of Lock and Do, it does not park. ctx bounds the first ask, which is
// sent even if waitCtx has ended. wait may return a lease that arrived when waitCtx or ctx had just
// ended: lockBefore gives it back if ctx has ended.
func (n *line) wait(ctx, waitCtx context.Context, m *Lock, parkNow <-chan struct{}) (*Lease, error) {
	until, _ := waitCtx.Deadline()
	w, began := m.newWaiter(until, parkNow), time.Now()
	asked := w.turn.Asks()
	// Add w to the line before the ask: its grant may be published before the reply is read.
	n.mu.Lock()
	n.waiters[w.lease.token] = w
	n.mu.Unlock()

	a, sent, err := m.take(ctx, w.lease, asked)
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
	r := turn.Reply{Answer: a, Sent: sent}
	if !a.Yours {
		r.Slots = m.slots()
	}
	n.handleReply(w, r)
	if a.Yours || a.Parked || asked == turn.Park {
		return n.result(ctx, w, 0) // handleReply has closed done
	}
	// A grant that is published before the subscription stands is lost. So each new
	// subscription has all waiters ask again (askAll, called in messages.go), also those whose ask
	// is under way.
	n.locker.wake.listen()
	if m.isOrdered() {
		n.locker.parking.CheckOrder(m.parked())
	}
	if parkNow != nil {
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
	switch w.ended {
	case turn.Won, turn.Granted:
		return m.handOut(ctx, w.lease)
	case turn.ParkedOrRefused:
		m.locker.releaseLater(w.lease) // against a late copy of an ask, if there may be one
		return nil, m.busy(w.turn.Last(), waited, nil)
	}
	n.leave(w)
	return nil, w.err
}

// parkSoon makes the next ask of w a parking one.
func (n *line) parkSoon(w *waiter) {
	n.mu.Lock()
	w.turn.ParkSoon(time.Now())
	next := w.turn.Next()
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

// leave removes w from the line and releases a slot that w may have been granted meanwhile.
// It returns the last busy reply, in which parked is true if w was parked at the last moment.
// It waits for at most leaveGrace. If an ask is still pending then, leave returns the reply to
// the ask before it, though the pending one may yet park w. w's goroutine calls it, at most once.
func (n *line) leave(w *waiter) wire.Answer {
	n.mu.Lock()
	delete(n.waiters, w.lease.token)
	n.act(w, w.turn.GiveUp(), turn.Reply{})
	n.mu.Unlock()
	timer := time.NewTimer(leaveGrace)
	defer timer.Stop()
	select {
	case <-w.leaveDone:
	case <-timer.C:
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return w.turn.Last()
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

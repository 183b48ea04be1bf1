package lock

import (
	"context"
	"time"

	"github.com/automutex/automutex/internal/exchange"
)

// refreshTogether: refreshes due that soon travel with one that is due.
const refreshTogether = refreshEvery / 4

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
		if w.pending == nil && (expired || !w.refreshAt.After(now.Add(refreshTogether))) {
			w.pending = &pendingAsk{mode: modeJoin}
			if w.state == stateParkNext {
				w.pending.mode = modePark
			}
			due = append(due, w)
		}
		next = earliest(next, w.nextAsk())
	}
	n.mu.Unlock()
	n.alarm.set(next)
	exchange.InBatches(n.locker.conn, n.locker.branch, due, func(w *waiter) string { return w.lease.lock.Key() }, n.refresh)
}

// refresh asks for a batch of waiters, in one pipeline; pools have a script of
// their own, and so a pipeline.
func (n *line) refresh(batch []*waiter) {
	batches := map[*exchange.Script][]*waiter{}
	calls := map[*exchange.Script][]*exchange.Call{}
	for _, w := range batch {
		s, args := w.lease.lock.kind.ask(w.lease, w.pending.mode) // nobody changes pending before the reply
		batches[s] = append(batches[s], w)
		calls[s] = append(calls[s], &exchange.Call{Keys: w.lease.lock.keys, Args: args})
	}
	for s, batch := range batches {
		n.refreshWith(s, batch, calls[s])
	}
}

func (n *line) refreshWith(s *exchange.Script, batch []*waiter, calls []*exchange.Call) {
	before := make([]int32, len(batch))
	for i, w := range batch {
		before[i] = w.lease.asks.Copies()
	}
	sent := time.Now()
	n.locker.conn.Pipeline(context.Background(), s, calls)
	for i, w := range batch {
		var a answer
		err := calls[i].Err
		w.lease.asks.NoteReply(before[i], err) // before handleReply, which asks whether a copy may run yet
		if err == nil {
			a, err = w.lease.lock.parseAnswer(calls[i].Reply)
		} else {
			err = backendError(s.Name, w.lease.lock.Key(), err)
		}
		n.handleReply(w, a, err, sent)
	}
}

// handleReply handles the reply to the pending ask of w, which was sent at sent: it
// ends the wait, or sets when to ask again.
func (n *line) handleReply(w *waiter, a answer, err error, sent time.Time) {
	m, now := w.lease.lock, time.Now()
	n.mu.Lock()
	ask := w.pending
	w.pending = nil
	switch {
	case w.state == stateLeaving:
		if err == nil && a.parked { // the goroutine goes, its place stays
			w.last = a
			n.locker.parking.noteParked(m, a, w.wasCalled)
		}
		n.sendLeave(w)
	case err != nil && (!transient(err) || now.Sub(w.repliedAt) > patience):
		w.err = err
		n.end(w, stateFailed)
	case err != nil:
		// The first deadline may have passed: without a new reply it says nothing,
		// and would have the next ask sent at once, again and again.
		w.refreshAt, w.expiryAt = now.Add(refreshEvery/4), time.Time{}
	case a.yours:
		m.won(w.lease, a, sent)
		n.end(w, stateGranted)
	case ask.mode == modePark && !a.more:
		w.last = a
		n.locker.parking.noteParked(m, a, w.wasCalled)
		n.end(w, stateParkedOrRefused)
	default:
		w.repliedAt = now
		n.stayInLine(w, a, sent, ask.repeat)
	}
	next := w.nextAsk()
	n.mu.Unlock()
	n.alarm.set(next)
}

// stayInLine notes the busy reply a to an ask of w that was sent at sent, and sets when
// to ask again: at once if repeat is set. Callers hold mu.
func (n *line) stayInLine(w *waiter, a answer, sent time.Time, repeat bool) {
	m, now := w.lease.lock, w.repliedAt
	w.last, w.askedAt = a, sent
	if w.hintAt.Before(sent) {
		w.hint = message{} // refuted: w did not hold the lock after that grant
	}
	if w.mayPark && (a.gate > longGate || m.slots() == 0) {
		w.state = stateParkNext // nobody may take the lock: no goroutine waits for that
	}
	w.refreshAt, w.expiryAt = now.Add(refreshEvery), time.Time{}
	if repeat || w.state == stateParkNext || a.more {
		w.refreshAt = now
	}
	// Only the first in line watch the first deadline; one of them will be granted
	// what it frees. The very first watches the gate.
	switch {
	case a.gate > 0 && a.place == 0:
		w.expiryAt = now.Add(a.gate)
	case a.gate == 0 && a.deadline >= 0 && a.place < m.slots():
		w.expiryAt = now.Add(a.deadline + time.Millisecond)
	}
	if w.endsBeforeGateOpens(now, a.gate) {
		w.err = m.busy(a, 0, context.DeadlineExceeded)
		n.end(w, stateFailed)
		return
	}
	n.takeGrant(w)
}

// endsBeforeGateOpens reports whether the wait of w ends before the gate opens, and w
// shall not wait then; see InTimeOnly. Callers hold mu.
func (w *waiter) endsBeforeGateOpens(now time.Time, gate time.Duration) bool {
	return w.lease.lock.inTimeOnly && gate > 0 && !w.until.IsZero() && w.until.Before(now.Add(gate))
}

// askAgainFor makes the waiters of m ask again: the reply to a release may have named a
// grant to one of them, and was lost, or came to a copy of the release that was sent later.
func (n *line) askAgainFor(m *Lock) {
	n.askAgain(func(w *waiter) bool { return w.lease.lock.Key() == m.Key() })
}

// askAll makes every waiter ask again: messages may have been missed.
func (n *line) askAll() { n.askAgain(func(*waiter) bool { return true }) }

// askAgain makes the waiters that isMeant picks ask again, at once or after the pending
// ask.
func (n *line) askAgain(isMeant func(*waiter) bool) {
	var next time.Time
	n.mu.Lock()
	now := time.Now()
	for _, w := range n.waiters {
		if isMeant(w) {
			w.refreshAt = now
			w.repeatPending()
			next = now
		}
	}
	n.mu.Unlock()
	n.alarm.set(next)
}

// repeatPending has the pending ask of w, if there is one, followed by another at once.
// Callers hold mu.
func (w *waiter) repeatPending() {
	if w.pending != nil {
		w.pending.repeat = true
	}
}

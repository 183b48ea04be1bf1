package lock

import (
	"context"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/wire"
)

// refreshTogether: a refresh that is due this soon is sent in the pipeline of one that is due.
const refreshTogether = refreshEvery / 4

// ring asks again for every waiter that is due. The alarm calls it. After Close it does
// nothing: the waiters are leaving.
func (n *line) ring() {
	if n.locker.life.Enter() != nil {
		return
	}
	defer n.locker.life.Done()
	now := time.Now()
	var due []*waiter
	var next time.Time
	n.mu.Lock()
	for _, w := range n.waiters {
		expired := !w.slotFreeAt.IsZero() && !w.slotFreeAt.After(now)
		if w.pending == nil && (expired || !w.refreshAt.After(now.Add(refreshTogether))) {
			w.pending = &pendingAsk{mode: w.nextMode()}
			due = append(due, w)
		}
		next = life.Earliest(next, w.nextAsk())
	}
	n.mu.Unlock()
	n.alarm.Set(next)
	exchange.InBatches(n.locker.conn, n.locker.life.Branch, due, func(w *waiter) string { return w.lease.lock.Key() }, n.refresh)
}

// nextMode is the mode of the next ask of w. Callers hold mu.
func (w *waiter) nextMode() askMode {
	switch {
	case w.state == stateParkNext:
		return modePark
	case w.mayPark:
		return modeJoinOrPark
	}
	return modeJoin
}

// refresh asks for a batch of waiters, in one pipeline for each script: pools have another
// script than locks.
func (n *line) refresh(batch []*waiter) {
	batches := map[*exchange.Script][]*waiter{}
	calls := map[*exchange.Script][]*exchange.Call{}
	for _, w := range batch {
		s, args := w.lease.lock.kind.ask(w.lease, w.pending.mode) // mode does not change before the reply
		batches[s] = append(batches[s], w)
		calls[s] = append(calls[s], &exchange.Call{Keys: w.lease.lock.keys, Args: args})
	}
	for s, batch := range batches {
		n.refreshWith(s, batch, calls[s])
	}
}

// refreshWith sends calls of s, one for each waiter of batch, and handles the replies.
func (n *line) refreshWith(s *exchange.Script, batch []*waiter, calls []*exchange.Call) {
	before := make([]int32, len(batch))
	for i, w := range batch {
		before[i] = w.lease.asks.Copies()
	}
	sent := time.Now()
	n.locker.conn.Pipeline(context.Background(), s, calls)
	for i, w := range batch {
		var a wire.Answer
		err := calls[i].Err
		w.lease.asks.NoteReply(before[i], err) // before handleReply, which asks whether a copy may run yet
		if err == nil {
			a, err = w.lease.lock.parseAnswer(calls[i].Reply)
		} else {
			err = exchange.Failed(s.Name, w.lease.lock.Key(), err)
		}
		n.handleReply(w, a, err, sent)
	}
}

// handleReply handles the reply to the pending ask of w, which was sent at sent: it
// ends the wait, or sets when to ask again.
func (n *line) handleReply(w *waiter, a wire.Answer, err error, sent time.Time) {
	m, now := w.lease.lock, time.Now()
	n.mu.Lock()
	ask := w.pending
	w.pending = nil
	switch {
	case w.state == stateLeaving:
		if err == nil && a.Parked { // the goroutine returns, and its place in line stays
			w.last = a
			n.locker.parking.NoteParked(m.parked(), m.note, a, w.wasCalled)
		}
		n.sendLeave(w)
	case err != nil && (!exchange.Transient(err) || now.Sub(w.repliedAt) > patience):
		w.err = err
		n.end(w, stateFailed)
	case err != nil:
		// Clear slotFreeAt: it is from an older reply. If it has passed, it would have asks sent
		// again and again without a pause.
		w.refreshAt, w.slotFreeAt = now.Add(refreshEvery/4), time.Time{}
	case a.Yours:
		m.won(w.lease, a, sent)
		n.end(w, stateGranted)
	case a.Parked || ask.mode == modePark:
		w.last = a
		n.locker.parking.NoteParked(m.parked(), m.note, a, w.wasCalled)
		n.end(w, stateParkedOrRefused)
	default:
		w.repliedAt = now
		n.stayInLine(w, a, sent, ask.repeat)
	}
	next := w.nextAsk()
	n.mu.Unlock()
	n.alarm.Set(next)
}

// stayInLine notes the busy reply a to an ask of w that was sent at sent, and sets when
// to ask again: at once if repeat is set. Callers hold mu.
func (n *line) stayInLine(w *waiter, a wire.Answer, sent time.Time, repeat bool) {
	m, now := w.lease.lock, w.repliedAt
	w.last, w.askedAt = a, sent
	if w.hintAt.Before(sent) {
		w.hint = wire.Message{} // this reply came later, and w did not hold the lock then
	}
	if w.mayPark && (a.Gate > longGate || m.slots() == 0) {
		w.state = stateParkNext // nobody may take the lock for a while
	}
	w.refreshAt, w.slotFreeAt = now.Add(refreshEvery), time.Time{}
	if repeat || w.state == stateParkNext {
		w.refreshAt = now
	}
	// Only the first waiters, one for each slot, watch the first deadline: one of them gets
	// the slot that it frees. Only the first waiter watches the gate.
	switch {
	case a.Gate > 0 && a.Place == 0:
		w.slotFreeAt = now.Add(a.Gate)
	case a.Gate == 0 && a.Deadline >= 0 && a.Place < m.slots():
		w.slotFreeAt = now.Add(a.Deadline + time.Millisecond)
	}
	if w.endsBeforeGateOpens(now, a.Gate) {
		w.err = m.busy(a, 0, context.DeadlineExceeded)
		n.end(w, stateFailed)
		return
	}
	n.takeGrant(w)
}

// endsBeforeGateOpens reports whether w has the option InTimeOnly and its wait ends before
// the gate opens. Callers hold mu.
func (w *waiter) endsBeforeGateOpens(now time.Time, gate time.Duration) bool {
	return w.lease.lock.inTimeOnly && gate > 0 && !w.until.IsZero() && w.until.Before(now.Add(gate))
}

// askAgainFor makes the waiters of m ask again. A release may have granted the lock to one of
// them, and the reply that named the grant was lost: go-redis sent the release again, and
// read the reply to the second copy only.
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
	n.alarm.Set(next)
}

// repeatPending has the pending ask of w, if there is one, followed by another at once.
// Callers hold mu.
func (w *waiter) repeatPending() {
	if w.pending != nil {
		w.pending.repeat = true
	}
}

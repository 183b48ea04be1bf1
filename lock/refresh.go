package lock

import (
	"context"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/turn"
)

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
		if w.turn.Due(now) {
			due = append(due, w)
		}
		next = life.Earliest(next, w.turn.Next())
	}
	n.mu.Unlock()
	n.alarm.Set(next)
	exchange.InBatches(n.locker.conn, n.locker.life.Branch, due, func(w *waiter) string { return w.lease.lock.Key() }, n.refresh)
}

// refresh asks for a batch of waiters, in one pipeline for each script: pools have another
// script than locks.
func (n *line) refresh(batch []*waiter) {
	batches := map[*exchange.Script][]*waiter{}
	calls := map[*exchange.Script][]*exchange.Call{}
	for _, w := range batch {
		s, args := w.lease.lock.kind.ask(w.lease, w.turn.Asks()) // it does not change before the reply
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
		m := w.lease.lock
		r := turn.Reply{Err: calls[i].Err, Sent: sent, Slots: m.slots()}
		w.lease.asks.NoteReply(before[i], r.Err) // before handleReply, which asks whether a copy may run yet
		if r.Err == nil {
			r.Answer, r.Err = m.parseAnswer(calls[i].Reply)
			r.Final = r.Err != nil // Redis has answered
		} else {
			r.Err = exchange.Failed(s.Name, m.Key(), r.Err)
		}
		n.handleReply(w, r)
	}
}

// handleReply handles the reply to the ask of w that is under way.
func (n *line) handleReply(w *waiter, r turn.Reply) {
	r.Final = r.Final || r.Err != nil && !exchange.Transient(r.Err)
	n.mu.Lock()
	n.act(w, w.turn.Replied(r, time.Now()), r)
	next := w.turn.Next()
	n.mu.Unlock()
	n.alarm.Set(next)
}

// act carries out a step of w, after the reply r if one led to it. A step that ends the wait comes
// once, while no ask is under way, and lets the goroutine of w go on. Callers hold mu.
func (n *line) act(w *waiter, step turn.Step, r turn.Reply) {
	m := w.lease.lock
	switch step {
	case turn.Stay:
		return
	case turn.Leave:
		n.locker.parking.NoteParked(m.parked(), m.note, r.Answer, w.wasCalled)
		n.sendLeave(w)
		return
	case turn.Won:
		m.won(w.lease, r.Answer, r.Sent)
	case turn.Granted:
		grant, since := w.turn.Grant()
		n.locker.renewer.add(w.lease, grant.Fence, grant.Value, since, m.grantLength(), true)
	case turn.ParkedOrRefused:
		n.locker.parking.NoteParked(m.parked(), m.note, r.Answer, w.wasCalled)
	case turn.Failed:
		w.err = r.Err
	case turn.TooLate:
		w.err = m.busy(r.Answer, 0, context.DeadlineExceeded)
	}
	w.ended = step
	delete(n.waiters, w.lease.token)
	close(w.done)
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
			w.turn.AskAgain(now)
			next = now
		}
	}
	n.mu.Unlock()
	n.alarm.Set(next)
}

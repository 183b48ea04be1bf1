package lock

import (
	"runtime"
	"strconv"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/wire"
)

// onMessage handles a message: a grant to a waiter, or one of the other kinds that
// message.fence tells apart. Callers hold nothing.
func (n *line) onMessage(msg wire.Message) {
	switch msg.Fence {
	case wire.BrokenFence:
		n.locker.renewer.loseBroken(msg.Token)
		return
	case wire.StopFence:
		n.stop(msg.Token)
		return
	case wire.GateFence:
		n.watchGate(msg)
		return
	}
	n.mu.Lock()
	var next time.Time
	if w := n.waiters[msg.Token]; w != nil && msg.ServerUS > w.hint.ServerUS {
		w.hint, w.hintAt = msg, time.Now()
		if w.pending == nil {
			n.takeGrant(w)
			next = w.nextAsk()
		}
	}
	n.mu.Unlock()
	n.alarm.Set(next)
}

// hintIsFromAnotherClock reports whether the hint's server time is later than the
// server's clock can be by now: that clock was stepped back since the message was
// sent, and the granted lease may have ended before the last busy reply. (stayInLine
// drops a hint that a busy reply refutes, because the hint came before the ask was
// sent.) Callers hold mu.
func (w *waiter) hintIsFromAnotherClock() bool {
	since := time.Since(w.askedAt)
	return w.hint.ServerUS > w.last.ServerUS+(since+since/100+5*time.Millisecond).Microseconds()
}

// takeGrant makes w the holder if its hint proves a grant, that is, if the message is newer
// than the last busy reply. (A busy reply that is newer than the message means that the
// granted lease has ended.)
//
// The lease counts from when the ask with that reply was sent. That was before the grant,
// so w never counts on the lease for longer than Redis stores it. If less than half of the
// lease is left, w asks again instead, and the reply starts the lease anew. w also asks
// again if its lock is not renewed and its TTL is longer than a grant.
//
// Callers hold mu, and no ask is pending.
func (n *line) takeGrant(w *waiter) {
	if w.hint.ServerUS <= w.last.ServerUS {
		return
	}
	if w.hintIsFromAnotherClock() {
		w.hint, w.refreshAt = wire.Message{}, time.Now()
		return
	}
	length := min(w.lease.lock.ttl, maxGrant)
	short := length < w.lease.lock.ttl && !w.lease.lock.renew
	if short || time.Until(w.askedAt.Add(believe(length))) < length/2 {
		w.refreshAt = time.Now()
		return
	}
	w.lease.lock.wonByGrant(w.lease, w.hint, w.askedAt, length)
	n.end(w, stateGranted)
}

// handleGrants handles the part of a release's reply that names grants to waiters of this
// same Locker. The script puts their messages into the reply instead of publishing them;
// they prove a grant in the same way, see takeGrant. If the reply is lost, askAgainFor makes
// the waiters ask. handleGrants returns the rest of the reply, and whether there may be more
// dead waiters to drop. Callers hold nothing.
func (n *line) handleGrants(reply any) (rest any, more bool) {
	rest, grants, more := wire.ParseGrants(reply)
	if grants == nil {
		return rest, more
	}
	for _, msg := range grants {
		n.onMessage(msg)
	}
	// Let the goroutine of the next holder run before this one, which may go on for long.
	runtime.Gosched()
	return rest, more
}

// watchGate has the first waiter in line ask when the gate opens. If the message is old, one
// ask is in vain. If the message is lost, the next refresh asks.
func (n *line) watchGate(msg wire.Message) {
	us, err := strconv.ParseInt(msg.Value, 10, 64)
	if err != nil || us < 0 || us > inside.MaxTTL.Microseconds() {
		return
	}
	n.mu.Lock()
	var next time.Time
	if w := n.waiters[msg.Token]; w != nil && msg.ServerUS > w.last.ServerUS {
		w.slotFreeAt = time.Now().Add(time.Duration(us) * time.Microsecond)
		w.repeatPending() // its reply may not know of the gate yet, and overwrites slotFreeAt
		next = w.nextAsk()
	}
	n.mu.Unlock()
	n.alarm.Set(next)
}

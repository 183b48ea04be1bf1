package lock

import (
	"runtime"
	"strconv"
	"time"
)

// told takes a reply of release apart that tells of grants to waiters of this very
// Locker, in the words of messages, which are not sent then. It is as good a proof
// as they are, by the same rules (see take). A reply that is lost tells nobody;
// see doubt. Returns what else the reply says, and whether dead waiters are left to
// be dropped. Callers hold nothing.
func (n *line) told(reply any) (rest any, more bool) {
	r, _ := reply.([]any)
	if len(r) < 2 {
		return reply, false
	}
	if _, tells := r[1].(string); !tells {
		return reply, false
	}
	for _, v := range r[1:] {
		if text, ok := v.(string); ok {
			more = more || text == moreToPrune
			if msg, ok := parseMessage(text); ok {
				n.hear(msg)
			}
		}
	}
	// The next holder is runnable now. It starts before the last one goes on, who
	// would keep it waiting until he blocks.
	runtime.Gosched()
	return r[0], more
}

// doubt makes the waiters of m ask again, for a grant may have been told to nobody:
// the release had no answer, or one to a copy of it that was sent later.
func (n *line) doubt(m *Lock) {
	n.askAgain(func(w *waiter) bool { return w.lease.lock.Key() == m.Key() })
}

// askAll makes every waiter ask again: messages may have been missed.
func (n *line) askAll() { n.askAgain(func(*waiter) bool { return true }) }

// askAgain makes those waiters ask again, at once or after the ask under way.
func (n *line) askAgain(which func(*waiter) bool) {
	var next time.Time
	n.mu.Lock()
	now := time.Now()
	for _, w := range n.waiters {
		if which(w) {
			w.refreshAt, w.again = now, w.again || w.asking
			next = now
		}
	}
	n.mu.Unlock()
	n.alarm.set(next)
}

// watchGate has the waiter that is first in line ask when the gate opens. The message
// may be old, or get lost: then an ask comes in vain, or with the next refresh.
func (n *line) watchGate(msg message) {
	us, err := strconv.ParseInt(msg.value, 10, 64)
	if err != nil || us < 0 || us > MaxTTL.Microseconds() {
		return
	}
	n.mu.Lock()
	var next time.Time
	if w := n.waiters[msg.token]; w != nil && !w.gone && msg.us > w.last.serverUS {
		w.expiryAt = time.Now().Add(time.Duration(us) * time.Microsecond)
		// The reply to an ask under way may not know of it yet, and overwrites it.
		w.again = w.again || w.asking
		next = w.next()
	}
	n.mu.Unlock()
	n.alarm.set(next)
}

// inVain tells whether the wait of w ends before the gate opens, and w is not to wait
// then. Callers hold mu.
func (w *waiter) inVain(now time.Time, gate time.Duration) bool {
	return w.lease.lock.inTimeOnly && gate > 0 && !w.until.IsZero() && w.until.Before(now.Add(gate))
}

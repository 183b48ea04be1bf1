package simulate

import "time"

// What follows is about parked tasks that run once more when they have ended, as docs/guarantees.md
// says: the Guard that wakes one has looked at it, and the command that has asynq run it
// arrives when the task has come back by itself and has ended.

// sentAgainAfter is how long go-redis waits for a reply, and then until it sends again.
const sentAgainAfter = 6 * time.Second

// comesAgain notes that a task comes, which may have ended: it tells whether a wake that was
// held up explains that. Callers hold mu.
func (b *ledger) comesAgain(t *taskBook) bool {
	if !t.parked || t.left.IsZero() || !b.w.wakesHeldUp(t.left.Add(-sentAgainAfter)) {
		return false
	}
	t.again = t.again || t.success > 0
	return true
}

// wakesHeldUp tells whether some Guard's command may have been sent again, or may have arrived
// late, since then.
func (w *world) wakesHeldUp(from time.Time) bool {
	w.redis.mu.Lock()
	ends := append([]*endpoint(nil), w.redis.ends...)
	w.redis.mu.Unlock()
	for _, e := range ends {
		if e.kind == "lock" && e.proc >= 0 && e.heldUp(from) {
			return true
		}
	}
	return false
}

func (e *endpoint) heldUp(from time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.active {
		switch a.kind {
		case refused, noScript, noPerm, misconf, wrapped, outOfMemory:
			continue // go-redis tells its caller at once
		}
		if a.until.After(from) && !a.since.After(time.Now()) {
			return true
		}
	}
	return false
}

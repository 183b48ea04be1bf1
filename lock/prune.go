package lock

// moreToPrune is the last field of a reply of release if there may be more dead waiters
// than the 64 that one script call drops.
const moreToPrune = "more"

// pruneOn drops the dead waiters of m that a release or a Put left, 64 a call, until
// a slot is granted or the line is empty. Without it the slot would stay free until
// somebody else asks. The goroutine also ends when Redis does not answer (the waiters ask
// again within a second), and when the Locker closes. It cannot run for ever: each call
// drops 64, which is faster than waiters die.
func (l *Locker) pruneOn(m *Lock) {
	l.spawn(func() {
		for l.closing.Err() == nil && m.kind.pruneSome(m) {
		}
	})
}

// mustPruneAgain reports whether a reply of call says that there may be more dead waiters.
func mustPruneAgain(reply any) bool {
	if r, ok := reply.([]any); ok {
		return len(r) > 2 && r[2] == int64(0)
	}
	return reply == int64(-1)
}

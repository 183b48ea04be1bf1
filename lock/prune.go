package lock

// pruneOn drops the dead waiters of m that a release or a Put left, 64 a call, until
// a slot is granted or the line is empty. Without it the slot would stay free until
// somebody else asks. The goroutine also ends when Redis does not answer (the waiters ask
// again within a second), and when the Locker closes. It cannot run for ever: each call
// drops 64, which is faster than waiters die.
func (l *Locker) pruneOn(m *Lock) {
	l.life.Spawn(func() {
		for l.life.Closing.Err() == nil && m.kind.pruneSome(m) {
		}
	})
}

package lock

// moreToPrune is the message at the end of a reply of release that stopped dropping
// dead waiters.
const moreToPrune = "more"

// pruneOn drops the dead waiters of m that a release or a Put left, 64 a call, until
// a slot is granted or nobody is left in line: without it the slot would stay free
// until somebody else asks. Its goroutine ends then, when Redis does not answer (the
// waiters ask again within a second), or when the Locker closes. It ends in any
// case: each call drops 64, which is faster than waiters die.
func (l *Locker) pruneOn(m *Lock) {
	l.spawn(func() {
		for l.closing.Err() == nil && m.kind.pruneSome(m) {
		}
	})
}

// lookAgain reports whether a reply of call says that dropping dead waiters was cut
// short.
func lookAgain(reply any) bool {
	if r, ok := reply.([]any); ok {
		return len(r) > 2 && r[2] == int64(0)
	}
	return reply == int64(-1)
}

package lock

import (
	"context"

	"github.com/automutex/automutex/internal/inside"
)

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
		for l.closing.Err() == nil && l.pruneSome(m) {
		}
	})
}

// pruneSome makes one such call, and tells whether there may be more to drop.
func (l *Locker) pruneSome(m *Lock) (more bool) {
	if m.pool {
		reply, err := l.conn.run(context.Background(), poolPutScript, m.keys, nil)
		r, _ := reply.([]any)
		return err == nil && len(r) == 3 && r[2] == int64(1)
	}
	reply, err := l.conn.run(context.Background(), callScript, m.keys, l.parking.args(m, "", inside.FateUnsure))
	if err != nil {
		return false
	}
	l.parking.heard(m, reply)
	return lookAgain(reply)
}

// lookAgain tells whether a reply of call says that dropping dead waiters was cut
// short.
func lookAgain(reply any) bool {
	if r, ok := reply.([]any); ok {
		return len(r) > 2 && r[2] == int64(0)
	}
	return reply == int64(-1)
}

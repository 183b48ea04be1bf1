package lock

import (
	"context"
	"time"

	"github.com/automutex/automutex/internal/wire"
)

// Every acquisition ends here, in two steps. First won or wonByGrant gives the lease to
// the renewer; the line does so under its mutex. Then handOut, on the goroutine of the
// caller, does what takes an exchange with Redis.

// won gives le to the renewer after the reply a, "yours", to an ask that was sent at
// sent. It does no I/O.
func (m *Lock) won(le *Lease, a wire.Answer, sent time.Time) {
	m.noteReturn(le, a)
	m.locker.renewer.add(le, a.Fence, a.Value, sent, m.ttl)
}

// noteReturn notes the reply to an ask whose note was parked before. It reports whether it was called.
func (m *Lock) noteReturn(le *Lease, a wire.Answer) (called bool) {
	parked, called := m.locker.parking.NoteReturn(m.parked(), m.note, a)
	if parked > 0 {
		le.parked = parked
	}
	return called
}

// wonByGrant gives le to the renewer after the message of a release that granted it for
// length. The lease counts from since, when the waiter's last ask was sent.
func (m *Lock) wonByGrant(le *Lease, msg wire.Message, since time.Time, length time.Duration) {
	m.locker.renewer.addGranted(le, msg.Fence, msg.Value, since, length)
}

// handOut returns le to the caller that acquired it. Before, it subscribes to messages if
// le has OnStop, and waits for replicas if Options.MinReplicas says so. On an error le has
// been released.
func (m *Lock) handOut(ctx context.Context, le *Lease) (*Lease, error) {
	m.listen()
	return m.handOutReplicated(ctx, le)
}

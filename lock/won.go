package lock

import (
	"context"
	"time"
)

// Every acquisition ends here, in two steps. First won or wonByGrant gives the lease to
// the renewer; the line does so under its mutex. Then handOut, on the goroutine of the
// caller, does what takes an exchange with Redis.

// won gives le to the renewer after the reply a, "yours", to an ask that was sent at
// sent. It does no I/O.
func (m *Lock) won(le *Lease, a answer, sent time.Time) {
	m.locker.parking.noteReturn(m, le, a)
	m.locker.renewer.add(le, a.fence, a.value, sent, m.ttl)
}

// wonByGrant gives le to the renewer after the message of a release that granted it for
// length. The lease counts from since, when the waiter's last ask was sent.
func (m *Lock) wonByGrant(le *Lease, msg message, since time.Time, length time.Duration) {
	m.locker.renewer.addGranted(le, msg.fence, msg.value, since, length)
}

// handOut returns le to the caller that acquired it. Before, it subscribes to messages if
// le has OnStop, and waits for replicas if Options.MinReplicas says so. On an error le has
// been released.
func (m *Lock) handOut(ctx context.Context, le *Lease) (*Lease, error) {
	m.listen()
	return m.handOutReplicated(ctx, le)
}

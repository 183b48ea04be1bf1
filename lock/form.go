package lock

import (
	"context"
	"time"
)

// A mutex that nobody waits for is a string in Redis, taken by SET with NX and PX; see
// docs/redis.md and lua/form.lua. If the key exists already, the caller runs the script ask,
// which turns the string into a sorted set if need be.

// take takes m for le: as a string if that is possible, else by an ask with mode.
// sent is when the command was sent that took it.
func (m *Lock) take(ctx context.Context, le *Lease, mode askMode) (a answer, sent time.Time, err error) {
	sent = le.takenAt // the lease was made just now
	if m.kind.mayTakeString(m) {
		ok, err := m.takeString(ctx, le)
		if ok || err != nil {
			return answer{yours: ok}, sent, err
		}
		m.locker.contended.note(m.keys[0])
		sent = time.Now()
	}
	a, err = m.ask(ctx, le, mode)
	return a, sent, err
}

// takeString takes m as a string. false without an error means that the caller has to ask:
// the key exists, and may even be this lease's, since go-redis sends a SET again if its reply
// was lost. Or Redis refused the SET, but may run the script.
func (m *Lock) takeString(ctx context.Context, le *Lease) (ok bool, err error) {
	before := le.asks.Copies()
	conn := m.locker.conn
	ok, err = conn.SetFirst(m.boundsOf(ctx, le.takenAt), m.keys[0], &le.asks, m.ttlArg)
	mayHaveRun := le.asks.NoteReply(before, err)
	if err == nil || conn.SetRefused(err) {
		return ok, nil
	}
	if mayHaveRun || le.asks.MayRunYet() {
		m.locker.abandon(le)
	}
	return false, backendError("set", m.Key(), conn.DescribeSet(err))
}

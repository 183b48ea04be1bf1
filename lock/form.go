package lock

import (
	"context"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/wire"
)

// A mutex that nobody waits for is a string in Redis, taken by SET with NX and PX; see
// docs/redis.md and lua/form.lua. If the key exists already, the caller runs the script ask,
// which turns the string into a sorted set if need be. It is released by a command that deletes a
// string if it has that value, where the server has one. Nobody waits for a string, so there is nobody to grant
// the lock to. If that command replies anything else than that it has deleted the key, the script release
// decides.

// take takes m for le: as a string if that is possible, else by an ask with mode.
// sent is when the command was sent that took it.
func (m *Lock) take(ctx context.Context, le *Lease, mode askMode) (a wire.Answer, sent time.Time, err error) {
	sent = le.takenAt // the lease was made just now
	if m.kind.mayTakeString(m) {
		ok, err := m.takeString(ctx, le)
		if ok || err != nil {
			return wire.Answer{Yours: ok}, sent, err
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
	if mayHaveRun && !exchange.NotRun(err) || le.asks.MayRunYet() {
		m.locker.abandon(le)
	}
	return false, exchange.Failed("set", m.Key(), conn.DescribeSet(err))
}

// releaseFirst releases le for the first time, at now.
func (le *Lease) releaseFirst(ctx context.Context, was leaseState, now time.Time) (free int, held bool, err error) {
	m := le.lock
	if !le.mayBeString(was) {
		return le.releaseAt(ctx, now)
	}
	deleted, err := m.locker.conn.DeleteFirst(toItsEnd(ctx, now), m.keys[0], &le.releases)
	switch {
	case err != nil || deleted == exchange.DeleteDone:
		return le.noteRelease(le.releases.Copies(), int64(m.slots()), err, now) // what the script replies
	case deleted == exchange.DeleteRefused:
		return le.releaseAt(ctx, time.Now())
	}
	_, args := m.kind.release(le)
	return le.releaseBy(ctx, now, wire.ReleaseStringScript, args)
}

// mayBeString reports whether le may still be a string in Redis that its release only has to delete. A lease with a fence
// was never one, and a caller that wanted a contended key has probably made it a sorted set.
func (le *Lease) mayBeString(was leaseState) bool {
	m := le.lock
	return le.fence == 0 && was == leaseHeld && le.cooldownEnd.Load() == nil && !m.locker.contended.isContended(m.keys[0])
}

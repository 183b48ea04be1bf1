package lock

import (
	"context"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/wire"
)

// Unlock releases the lock and ends the lease, whatever it returns:
//
//   - nil: the lock was held until now.
//   - ErrNotHeld: the lease had ended before: it was unlocked or lost. A later holder of the
//     lock is not affected.
//   - ErrBackend: Redis did not answer, or refused. Unlock is tried again in the background: at
//     once, after 0.25 s, 1 s, 5 s, and then less often for two minutes. The slot is free at
//     the lease's deadline at the latest. If the lease was lost before, the error Is ErrNotHeld, too.
//
// Unlock uses only the values of ctx, so it works after ctx has ended.
func (le *Lease) Unlock(ctx context.Context) error {
	_, err := le.Release(ctx)
	return err
}

// Release is [Lease.Unlock], and returns the number of slots that are free now. A slot that
// the release granted to a waiter is not free. After ErrBackend free is 0.
func (le *Lease) Release(ctx context.Context) (free int, err error) {
	return le.end(ctx, ending{})
}

// endedByOwner reports whether the lease was released by its owner, whether or not Redis
// knows of it yet.
func (le *Lease) endedByOwner() bool { return le.lock.locker.renewer.stateOf(le) == leaseReleased }

// ending says how a lease ends. The zero value only releases its slot.
type ending struct {
	cooldown time.Time // close the gate until then; zero: leave the gate as it is
	consume  bool      // remove the value from its pool
	unused   bool      // refund the start to the rate
}

// end ends the lease. It returns the number of free slots, and the errors of Unlock.
func (le *Lease) end(ctx context.Context, e ending) (int, error) {
	now := time.Now()
	was, deadline := le.lock.locker.renewer.drop(le, now)
	if was == leaseReleased {
		return 0, fmt.Errorf("%w: %q was unlocked before", ErrNotHeld, le.lock.name)
	}
	le.lock.locker.parking.NoteHeld(le.lock.parked(), now.Sub(le.takenAt))
	if was == leaseLost {
		e.cooldown, e.consume = time.Time{}, false
	}
	if !e.cooldown.IsZero() {
		until := e.cooldown // or e would be allocated for every lease
		le.cooldownEnd.Store(&until)
	}
	le.consuming.Store(e.consume)
	le.startCounts.Store(!e.unused)
	if e.unused {
		le.lock.endUnbegun()
	}
	free, held, err := le.releaseFirst(ctx, was, now)
	if err == nil {
		le.lock.locker.spawnReleaseLater(le)
	}
	switch {
	case err != nil:
		le.lock.locker.abandon(le)
		if was == leaseLost {
			err = fmt.Errorf("%w: %q: the lease was lost before; and: %w", ErrNotHeld, le.lock.name, err)
		}
		return 0, err
	case was == leaseLost:
		return free, fmt.Errorf("%w: %q: the lease was lost before", ErrNotHeld, le.lock.name)
	case held:
		return free, nil
	case le.releases.MayRunYet() && time.Now().Before(deadline):
		// The release was sent more than once, one copy got no reply, and the last reply is "absent" before
		// the deadline: that copy has released the lock.
		return free, nil
	}
	return free, fmt.Errorf("%w: %q: its deadline had passed, or the key was deleted", ErrNotHeld, le.lock.name)
}

// release runs the release script for this token, whatever the local state. held reports
// whether Redis still had the holder.
func (le *Lease) release(ctx context.Context) (free int, held bool, err error) {
	return le.releaseAt(ctx, time.Now())
}

func (le *Lease) releaseAt(ctx context.Context, now time.Time) (free int, held bool, err error) {
	s, args := le.lock.kind.release(le)
	return le.releaseBy(ctx, now, s, args)
}

func (le *Lease) releaseBy(ctx context.Context, now time.Time, s *exchange.Script, args []any) (free int, held bool, err error) {
	m := le.lock
	before := le.releases.Copies()
	reply, err := m.locker.conn.RunBounded(toItsEnd(ctx, now), s, m.keys, args)
	return le.noteRelease(before, reply, err, now)
}

// noteRelease handles the reply to a release that was sent at sent, or the error err; before is what
// releases.Copies returned then.
func (le *Lease) noteRelease(before int32, reply any, err error, sent time.Time) (free int, held bool, _ error) {
	m := le.lock
	le.releases.NoteReply(before, err)
	if err != nil || le.releases.MayRunYet() {
		m.locker.line.askAgainFor(m) // a lost reply may have named a grant
	}
	if err != nil {
		return 0, false, exchange.Failed("release", m.Key(), err)
	}
	if m.limit == 1 && reply != any(int64(1)) {
		m.locker.contended.note(m.keys[0]) // another holder has it now, or work is parked
	}
	reply = m.locker.line.handleGrants(reply)
	n, ok := reply.(int64)
	if ok {
		m.locker.parking.NoteNothingParked(m.parked(), sent)
	} else {
		n, ok = m.locker.parking.HandleCalls(m.parked(), reply)
	}
	if !ok {
		return 0, false, exchange.Failed("release", m.Key(), wire.Unexpected(reply))
	}
	le.consuming.Store(false) // done: a later release is only for a late copy of an ask
	if n < 0 {
		return int(-1 - n), false, nil
	}
	return int(n), true, nil
}

// abandon releases a token whose last command may have run or not. It releases now, and
// again later in case that command has not reached Redis yet; see releaseAgainAfter. If all
// releases fail, the slot is free at its deadline. Close sends the last release at once.
func (l *Locker) abandon(le *Lease) {
	l.life.Spawn(func() {
		_, _, err := le.release(context.Background())
		if err != nil && l.life.Closing.Err() != nil {
			return // Redis is away: Close must not wait for a second release
		}
		l.releaseToCool(le, err)
		l.abandoned.add(le, err != nil)
	})
}

// releaseLater releases a token later if a copy of its ask may yet run. Callers are
// counted in (see Life.Enter).
func (l *Locker) releaseLater(le *Lease) {
	if le.asks.MayRunYet() {
		l.life.Branch(func() { l.abandoned.add(le, false) })
	}
}

// spawnReleaseLater is releaseLater for callers that are not counted in. It does nothing
// after Close.
func (l *Locker) spawnReleaseLater(le *Lease) {
	if le.asks.MayRunYet() {
		l.life.Spawn(func() { l.abandoned.add(le, false) })
	}
}

// cooldownRetry is the pause between two releases of a lease with a cooldown.
const cooldownRetry = 250 * time.Millisecond

// releaseToCool repeats the failed release of a lease with a cooldown until it succeeds, the
// cooldown or the lease ends (then another holder may have the slot), or the Locker closes.
// err is the error of the release before. Callers are counted in.
func (l *Locker) releaseToCool(le *Lease, err error) {
	timer := time.NewTimer(cooldownRetry)
	defer timer.Stop()
	for err != nil && le.cooldownLeft() > 0 && time.Now().Before(le.Deadline()) {
		select {
		case <-timer.C:
		case <-l.life.Closing.Done():
			return
		}
		_, _, err = le.release(context.Background())
		timer.Reset(cooldownRetry)
	}
}

package lock

import (
	"context"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/wire"
)

// lockOrPark waits for the lock as Lock does. When parkNow is closed it parks: Redis keeps
// the place in line under the lock's [Note], and the error is a *BusyError with Parked set.
// With a parkNow that is closed already, a busy lock parks at once. A nil parkNow makes
// lockOrPark the same as Lock.
//
// When the turn of parked work comes, the [inside.Caller] of some Locker is called. The
// work then calls lockOrPark, Lock or TryLock with the same Note. lockOrPark and Lock go on
// from the place that was kept.
//
// Waiters with a goroutine are served first come, first served. Parked work is called in
// that order, but waiters may overtake it, since no slot is reserved. Work parks without
// waiting for parkNow while the gate is closed for more than a second or the lock is paused.
// A note has one parked place on a lock. While one of the first 1,000 holders has the same
// note, the result is a *BusyError at once, without Parked.
//
// After any other error no place is kept. If the outcome is unknown a place may remain; the
// Caller answers [inside.FateGone] to it. If the work was parked at the moment when ctx or
// the Locker ended, the *BusyError has Parked set and unwraps to that end.
func (m *Lock) lockOrPark(ctx context.Context, parkNow <-chan struct{}) (*Lease, error) {
	if err := m.checkParkable(); err != nil {
		return nil, err
	}
	return m.lockBefore(ctx, ctx, parkNow)
}

// parkFirst has [Lock.lockOrPark] park ahead of all parked work, if it parks at once. It is
// for work that held the lock and closed its gate with [Lease.hold]: the work is called
// first when the gate opens.
func parkFirst() Option { return func(m *Lock) { m.parkFirst = true } }

// averageHeld returns how long the lock was held on average lately, as this Locker measured
// it; 0: not measured. A lock is measured once a lockOrPark on it has waited in line.
func (m *Lock) averageHeld() time.Duration { return m.locker.parking.AverageHeld(m.parked()) }

// checkParkable returns why nothing can park on the lock, or nil.
func (m *Lock) checkParkable() error {
	switch {
	case m.err != nil:
		return m.err
	case m.note == "":
		return fmt.Errorf("lock: %q: LockOrPark needs a Note: its place in line is kept under it", m.name)
	}
	return nil
}

// holderHasOwnNote reports whether the holder that a busy reply names has the asker's
// own note.
func (m *Lock) holderHasOwnNote(a wire.Answer) bool {
	h, ok := m.kind.parseHolder(a.Holder)
	return ok && h.Note == m.note
}

package lock

import (
	"context"
	"fmt"
	"time"
)

// longGate is for how long the gate has to be closed yet for a waiter to park at once.
const longGate = time.Second

// lockOrPark waits for the lock as Lock does, until yield is closed: from then
// on a place in line is kept without the caller, under the lock's [Note], and
// the error is a *BusyError with Parked set. When its turn comes, the
// [inside.Caller] of some Locker is told, and the work calls lockOrPark, or Lock or
// TryLock, with the same Note again; lockOrPark and Lock then go on from the
// place it had. A yield that is closed already parks at once what finds the
// lock busy; a nil one makes this Lock.
//
// What waits in a goroutine is served first come, first served; what is parked
// is called so, and may be overtaken by goroutines, for no slot is reserved. A
// note parks once on a lock, and not behind itself: while a holder (of the first
// 1,000) has the same note the answer is a *BusyError at once, without Parked. While
// the gate is closed for more than a second, or the lock is paused, it parks without
// waiting for yield.
//
// Any other error means that nothing is kept: where the outcome is not known, a
// place may stay behind, to which the Caller answers [inside.FateGone]. One that was
// parked at the very moment when ctx or the Locker ended is told both.
func (m *Lock) lockOrPark(ctx context.Context, yield <-chan struct{}) (*Lease, error) {
	if err := m.parkable(); err != nil {
		return nil, err
	}
	return m.lockBefore(ctx, ctx, yield)
}

// parkFirst has [Lock.lockOrPark] park ahead of all that are parked, where it parks at once:
// for work that had the lock, and closed its gate with [Lease.hold], so that it is called
// first when the gate opens.
func parkFirst() Option { return func(m *Lock) { m.first = true } }

// holdTime is how long the lock was held on average of late, as this Locker has
// seen it; 0 when it has not. Only locks on which something waited to be parked
// are measured.
func (m *Lock) holdTime() time.Duration { return m.locker.parking.holdTime(m) }

func (m *Lock) parkable() error {
	switch {
	case m.err != nil:
		return m.err
	case m.note == "":
		return fmt.Errorf("lock: %q: LockOrPark needs a Note: its place in line is kept under it", m.name)
	case m.isPool():
		return fmt.Errorf("lock: %q is a pool, on which nothing can be parked; use Take", m.name)
	}
	return nil
}

// noteHolds reports whether the holder that a busy answer names has the asker's
// own note.
func (m *Lock) noteHolds(a answer) bool {
	h, ok := m.kind.parseHolder(a.holder)
	return ok && h.Note == m.note
}

package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/engine"
)

// TryLock takes the lock, or returns a *BusyError at once. It never overtakes a waiter: with
// others in line the lock is busy even if a slot is free. If an operator has paused the
// lock, the BusyError says so; see [Controls].
//
// After an error the caller holds nothing. If the reply was lost, so that the outcome is
// unknown, TryLock releases the lock in the background. If Redis does not answer, TryLock
// returns after about 5 s, or within a quarter of a second after ctx ended; the error then Is
// ErrBackend, and ctx.Err() if ctx ended. If ctx has ended when the lease arrives, TryLock
// gives the lease back and returns ctx.Err().
func (m *Lock) TryLock(ctx context.Context) (*Lease, error) {
	le, err := m.take(ctx, m.request)
	if err == nil {
		return le, nil
	}
	if busy := (*BusyError)(nil); errors.As(err, &busy) && busy.cause != nil {
		err = busy.cause
	}
	return nil, err
}

// Lock takes the lock. If the lock is busy, Lock waits in line until ctx ends; the error then
// Is both ErrBusy and ctx.Err(). Waiters are served first come, first served. ctx bounds the
// wait only: the lease outlives ctx. After ctx has ended Lock never succeeds: it gives back a
// lease that arrives later.
//
// After an error the caller holds nothing, and has no place in line: Lock gives back a slot
// that was granted at the last moment. If Redis cannot be reached at first, the error Is
// ErrBackend, and also ctx.Err() if ctx ended meanwhile. A call that is in line already waits
// through an outage of up to about 15 s. If too few replicas acknowledge
// ([Options].MinReplicas), Lock returns ErrNotReplicated.
func (m *Lock) Lock(ctx context.Context) (*Lease, error) {
	r := m.request
	r.Wait = true
	return m.take(ctx, r)
}

// lockOrPark waits for the lock as Lock does. When parkNow is closed it parks: Redis keeps
// the place in line under the lock's [Note], and the error is a *BusyError with Parked set.
// With a parkNow that is closed already, a busy lock parks at once. A nil parkNow makes
// lockOrPark the same as Lock.
//
// When the turn of parked work comes, the Caller of some Locker is called. The work then calls
// lockOrPark, Lock or TryLock with the same Note. lockOrPark and Lock go on from the place that
// was kept.
//
// Waiters with a goroutine are served first come, first served. Parked work is called in
// that order, but waiters may overtake it, since no slot is reserved. Work parks without
// waiting for parkNow while the gate is closed for more than a second or the lock is paused.
// A note has one parked place on a lock. While a holder has the same note, the result is a
// *BusyError at once, without Parked.
//
// After any other error no place is kept. If the outcome is unknown a place may remain; the
// Caller answers that the work is gone. If the work was parked at the moment when ctx or
// the Locker ended, the *BusyError has Parked set and unwraps to that end.
func (m *Lock) lockOrPark(ctx context.Context, parkNow <-chan struct{}) (*Lease, error) {
	r := m.request
	if r.Note == "" && m.err == nil {
		return nil, fmt.Errorf("lock: %q: LockOrPark needs a Note: its place in line is kept under it", r.Name)
	}
	r.Wait, r.Park, r.Yield = true, parkNow != nil, parkNow
	return m.take(ctx, r)
}

// lockWithin is [Lock.Lock] with a bound on the time in line: after wait it returns a
// *BusyError. It takes a free lock however short wait is, and however long Redis takes to
// reply, as long as ctx has not ended. With a wait of 0 it is TryLock; a negative wait is an
// error.
func (m *Lock) lockWithin(ctx context.Context, wait time.Duration) (*Lease, error) {
	switch {
	case wait == 0:
		return m.TryLock(ctx)
	case wait < 0:
		return nil, fmt.Errorf("lock: %q: a wait of %s: 0 tries once; to wait as long as the context allows, use Lock", m.request.Name, wait)
	}
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	r := m.request
	r.Wait, r.Within = true, within
	return m.take(ctx, r)
}

func (m *Lock) take(ctx context.Context, r engine.Request) (*Lease, error) {
	if m.err != nil {
		return nil, m.err
	}
	le, err := m.locker.engine.Take(ctx, r)
	if err != nil {
		return nil, m.busyOr(err)
	}
	return &Lease{le, m}, nil
}

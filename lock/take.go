package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
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
	le, err := m.take(ctx, inside.At(m).Request)
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
	r := inside.At(m).Request
	r.Wait = true
	return m.take(ctx, r)
}

// Acquire takes the lock, and reports with ok whether it did: a busy lock is no error.
// within is the longest wait in line. 0 tries once, as [Lock.TryLock]; a negative within is
// an error. Acquire takes a free lock however short within is, and however long Redis takes
// to reply. If ctx ends, the error is that of ctx. Other errors are those of [Lock.Lock].
func (m *Lock) Acquire(ctx context.Context, within time.Duration) (lease *Lease, ok bool, err error) {
	if within < 0 {
		return nil, false, fmt.Errorf("lock: %q: a wait of %s: 0 tries once; to wait as long as the context allows, use Lock", m.name(), within)
	}
	r := inside.At(m).Request
	if within > 0 {
		bound, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		r.Wait, r.Within = true, bound
	}
	lease, err = m.take(ctx, r)
	if errors.Is(err, ErrBusy) {
		return nil, false, ctx.Err()
	}
	return lease, err == nil, err
}

func (m *Lock) take(ctx context.Context, r engine.Request) (*Lease, error) {
	h := inside.At(m)
	if h.Err != nil {
		return nil, h.Err
	}
	le, err := h.Engine.Take(ctx, r)
	if err != nil {
		return nil, m.busyOr(err)
	}
	return &Lease{inside.Make(le)}, nil
}

package lock

import (
	"context"
	"time"
)

// LockOrPark waits in line, and parks when parkNow is closed.
func (insider) LockOrPark(ctx context.Context, m *Lock, parkNow <-chan struct{}) (*Lease, error) {
	r := m.request
	r.Wait, r.Park, r.Yield = true, parkNow != nil, parkNow
	return m.take(ctx, r)
}

// Parked is how long the lease's note was parked before.
func (insider) Parked(le *Lease) time.Duration { return le.inner.Parked() }

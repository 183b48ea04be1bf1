package lock

import (
	"context"
)

// LockOrPark waits in line, and parks when parkNow is closed.
func (insider) LockOrPark(ctx context.Context, m *Lock, parkNow <-chan struct{}) (*Lease, error) {
	r := m.request
	r.Wait, r.Park, r.Yield = true, parkNow != nil, parkNow
	return m.take(ctx, r)
}

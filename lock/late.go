package lock

import (
	"context"
	"time"
)

// inTime returns le to a caller whose ctx has not ended. Otherwise the lock was got too
// late, as in x/sync/semaphore: le is given back, and the error is that of ctx.
//
// The check comes after everything that could have taken the lock, so a caller never
// starts work on a context that had ended before.
func (m *Lock) inTime(ctx context.Context, le *Lease, err error) (*Lease, error) {
	if err != nil || ctx.Err() == nil {
		return le, err
	}
	m.giveBack(le)
	return nil, ctx.Err()
}

// giveBack releases a lease that its caller will not see, and waits for that no longer
// than leaveGrace. The release goes on beside; Close waits for it, since callers are
// counted in.
func (m *Lock) giveBack(le *Lease) {
	done := make(chan struct{})
	m.locker.branch(func() {
		defer close(done)
		_ = le.giveBack(context.Background()) // an error: it is released again later, or frees itself
	})
	timer := time.NewTimer(leaveGrace)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// lockBefore is Lock with two bounds: waiting bounds the time in line, and a lease that
// comes after ctx has ended is given back. The first ask is sent however short waiting
// is.
func (m *Lock) lockBefore(ctx, waiting context.Context, yield <-chan struct{}) (*Lease, error) {
	if m.err != nil {
		return nil, m.err
	}
	if err := ctx.Err(); err != nil {
		return nil, &BusyError{Name: m.name, cause: err}
	}
	if err := m.locker.enter(); err != nil {
		return nil, err
	}
	defer m.locker.work.Done()
	if err := m.knowControls(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	le, err := m.locker.line.wait(ctx, waiting, m, yield)
	le, late := m.inTime(ctx, le, err)
	if err == nil && late != nil {
		return nil, &BusyError{Name: m.name, Waited: time.Since(began), cause: late}
	}
	return le, err
}

package lock

import (
	"context"
	"time"
)

// inTime returns le if ctx has not ended. Otherwise it gives le back and returns the error
// of ctx, as x/sync/semaphore does. It is called last, so that a caller never starts work
// on a context that has ended.
func (m *Lock) inTime(ctx context.Context, le *Lease, err error) (*Lease, error) {
	if err != nil || ctx.Err() == nil {
		return le, err
	}
	m.giveBack(le)
	return nil, ctx.Err()
}

// giveBack releases a lease that no caller has seen. It waits for at most leaveGrace; the
// release goes on in the background, and Close waits for it. Callers are counted in.
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

// lockBefore is Lock with two bounds: waiting ends the time in line, and a lease that
// arrives after ctx has ended is given back. The first ask is sent however short waiting
// is. For parkNow see lockOrPark.
func (m *Lock) lockBefore(ctx, waiting context.Context, parkNow <-chan struct{}) (*Lease, error) {
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
	le, err := m.locker.line.wait(ctx, waiting, m, parkNow)
	le, late := m.inTime(ctx, le, err)
	if err == nil && late != nil {
		return nil, &BusyError{Name: m.name, Waited: time.Since(began), cause: late}
	}
	return le, err
}

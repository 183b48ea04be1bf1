package lock

import (
	"context"
	"errors"
	"time"

	"github.com/automutex/automutex/internal/controls"
)

// inTime returns le if ctx has not ended, and no pause has come since the controls were looked at.
// Otherwise it gives le back and returns the error of ctx, as x/sync/semaphore does, or the *BusyError
// of the pause. It is called last, so that a caller never starts work on a context that has ended.
//
// A process may be stopped at any point between its look at the controls and here. So one that comes
// here late looks again: whoever orders a pause and waits for controls.Delay sees nothing start.
func (m *Lock) inTime(ctx context.Context, looked time.Time, le *Lease, err error) (*Lease, error) {
	if err != nil {
		return nil, err
	}
	if controls.Old(looked, time.Now()) && ctx.Err() == nil {
		err = m.knowControls(ctx)
		if busy := m.pausedError(); err == nil && busy != nil {
			err = busy
		}
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		m.giveBack(le)
		return nil, err
	}
	return le, nil
}

// giveBack releases a lease that no caller has seen. It waits for at most leaveGrace; the
// release goes on in the background, and Close waits for it. Callers are counted in.
func (m *Lock) giveBack(le *Lease) {
	done := make(chan struct{})
	m.locker.life.Branch(func() {
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
	if err := m.locker.life.Enter(); err != nil {
		return nil, err
	}
	defer m.locker.life.Done()
	began := time.Now()
	if err := m.knowControls(ctx); err != nil {
		return nil, err
	}
	le, err := m.locker.line.wait(ctx, waiting, m, parkNow)
	if err != nil {
		return nil, err
	}
	le, err = m.inTime(ctx, began, le, nil)
	switch paused := (*BusyError)(nil); {
	case errors.As(err, &paused): // TryLock returns that; Lock waits until somebody resumes the lock
		calm := *m
		calm.onWait = nil // it is called once at most
		return calm.lockBefore(ctx, waiting, parkNow)
	case ctx.Err() != nil && err != nil:
		return nil, &BusyError{Name: m.name, Waited: time.Since(began), cause: err}
	}
	return le, err
}

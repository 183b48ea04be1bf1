package lock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Do takes the lock as [Lock.Lock] does, runs f while holding it, and releases it when f
// returns or panics. If ctx ends before the lock is taken, Do returns the error of Lock and
// does not call f.
//
// f's context ends when ctx does, and with cause ErrLost if the lease is lost. Do returns the
// error of f. If the lease was lost before f returned, the error is joined with ErrLost:
// another holder may have worked beside f. f may end the lease itself, with Unlock or
// Cooldown; see [FromContext].
func (m *Lock) Do(ctx context.Context, f func(ctx context.Context) error) error {
	if f == nil {
		return m.errNoFunc()
	}
	le, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	return m.run(ctx, le, f)
}

// TryDo is [Lock.Do] without a wait: if the lock is busy it returns a *BusyError and does not
// call f. f may return the *BusyError of another lock: to tell the two apart, have f record
// that it ran.
func (m *Lock) TryDo(ctx context.Context, f func(ctx context.Context) error) error {
	if f == nil {
		return m.errNoFunc()
	}
	le, err := m.TryLock(ctx)
	if err != nil {
		return err
	}
	return m.run(ctx, le, f)
}

// DoWithin is [Lock.Do] with a bound on the time in line: after wait it returns a *BusyError
// and does not call f. The error also Is context.DeadlineExceeded, even if ctx has no deadline.
// wait does not bound f. With a wait of 0 DoWithin is [Lock.TryDo]; a negative wait is an error.
func (m *Lock) DoWithin(ctx context.Context, wait time.Duration, f func(ctx context.Context) error) error {
	if f == nil {
		return m.errNoFunc()
	}
	le, err := m.lockWithin(ctx, wait)
	if err != nil {
		return err
	}
	return m.run(ctx, le, f)
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
		return nil, fmt.Errorf("lock: %q: a wait of %s: 0 tries once; to wait as long as the context allows, use Lock", m.name, wait)
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return m.lockBefore(ctx, waiting, nil)
}

// errNoFunc returns the error of Do, TryDo and DoWithin for a nil function.
func (m *Lock) errNoFunc() error {
	return fmt.Errorf("lock: %q: the function to run is nil", m.name)
}

// run runs f while le is held, and releases le.
func (m *Lock) run(ctx context.Context, le *Lease, f func(ctx context.Context) error) (err error) {
	// A plain defer, no recover: a panic keeps its own stack.
	defer func() {
		if le.endedByOwner() {
			return // by f
		}
		if released := le.Unlock(ctx); errors.Is(released, ErrNotHeld) {
			err = errors.Join(err, fmt.Errorf("%w: %q ended before the work did", ErrLost, m.name))
		}
	}()
	return f(le.Bind(ctx))
}

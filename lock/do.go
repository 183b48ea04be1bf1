package lock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Do waits for the lock as [Lock.Lock] does, runs f while holding it, and releases it
// when f returns or panics. f is not called when ctx ends before the lock is got.
//
// f's context ends when ctx does, and with cause ErrLost when the lease is lost. The
// error is f's own. ErrLost is joined to it when the lease was lost before f returned:
// then f may not have been alone. f may end the lease itself, with Unlock or Cooldown;
// see [FromContext].
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

// TryDo is [Lock.Do] without a wait: f is not called when the lock is busy, and the
// error is a *BusyError. An error of f's own may be ErrBusy too; f says itself whether
// it ran.
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

// DoWithin is [Lock.Do] with a bound on the wait, but not on f. After wait it returns a
// *BusyError without calling f. 0 is TryDo; a wait below 0 is an error.
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

// lockWithin is [Lock.Lock] with a bound on the time in line beside that of ctx. After
// wait it returns a *BusyError. A lock that is free is taken however short wait is, and
// however long Redis takes to answer, as long as ctx has not ended. 0 is TryLock;
// a wait below 0 is an error.
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

// errNoFunc is the error of Do and its like without a function: the lock is not taken.
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

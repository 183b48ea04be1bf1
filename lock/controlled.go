package lock

import "context"

// This file is what the controls are to a lock: how many may hold it, and whether it is paused.

// slots is how many may hold the lock at once, as the scripts get it.
func (m *Lock) slots() int { return m.locker.slots(m.Key(), m.limit, m.keepsLimit) }

func (l *Locker) slots(key string, limit int, keepsLimit bool) int {
	return l.controls.Slots(key, limit, keepsLimit)
}

// knowControls returns when the controls are known that are in force for the lock; see know of the reader.
// The caller has called Life.Enter.
func (m *Lock) knowControls(ctx context.Context) error {
	return m.locker.controls.Know(ctx, m.Key())
}

// enterControlled is knowControls for callers that have not called Life.Enter.
func (m *Lock) enterControlled(ctx context.Context) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.locker.life.Done()
	return m.knowControls(ctx)
}

// checkFormat is for operations that do without controls: see CheckFormat of the reader.
func (l *Locker) checkFormat(ctx context.Context, key string) error {
	if err := l.life.Enter(); err != nil {
		return err
	}
	defer l.life.Done()
	return l.controls.CheckFormat(ctx, key)
}

// checkFormat is that of the Locker, for operations of a lock.
func (m *Lock) checkFormat(ctx context.Context) error {
	if m.err != nil {
		return m.err
	}
	return m.locker.checkFormat(ctx, m.Key())
}

// paused returns a *BusyError if the lock with that Redis key is paused, else nil. It does not
// ask for the lock. It waits for the controls as TryLock does.
func (c *Controls) paused(ctx context.Context, key string) error {
	l := c.locker
	if err := l.life.Enter(); err != nil {
		return err
	}
	defer l.life.Done()
	if err := l.controls.Know(ctx, key); err != nil {
		return err
	}
	if busy := l.pausedError(key, key); busy != nil {
		return busy
	}
	return nil
}

// pausedError returns the error for a lock that is paused, or nil.
func (m *Lock) pausedError() *BusyError { return m.locker.pausedError(m.Key(), m.name) }

func (l *Locker) pausedError(key, name string) *BusyError {
	pause, left := l.controls.PauseOf(key)
	if pause == nil {
		return nil
	}
	return &BusyError{
		Name: name, Reason: ReasonPaused, ExpiresIn: left,
		Pause: &Control{Target: pause.Target, Paused: true, PausedUntil: pause.Until, Why: pause.Why, By: pause.By, Since: pause.Since},
	}
}

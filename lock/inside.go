package lock

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/mark"
)

// Inside returns the methods that only the other packages of this module use. No other module
// can call Inside, since [inside.Pass] is in an internal package. The type of the result is
// unexported, so that go doc does not list its methods.
func Inside(inside.Pass) insider {
	return insider{}
}

// insider has no state. Each method is the unexported function or method of (nearly) the
// same name, which has the comment.
type insider struct{}

// New is [New] with three functions; each may be nil.
//
// call has parked work run again, see [inside.Caller]. With nil this Locker calls nothing.
//
// onControls receives the controls in force, sorted by target, each time that they change,
// and first when the Locker has read them and there are any. The Locker calls it on a
// goroutine of its own, one call at a time. It should be quick.
//
// hasScope reports whether a rule has a scope of that very name, which then is the target of a control although it has a |.
func (insider) New(rdb Client, o Options, call inside.Caller, onControls func(inForce []Control), hasScope func(text string) bool) *Locker {
	o.call, o.onControls, o.hasScope = call, onControls, hasScope
	return New(rdb, o)
}

// LockErr is what is wrong with the definition of a lock, or with its Locker. It does no I/O.
func (insider) LockErr(m *Lock) error { return m.err }

// Engine is the lock itself.
func (insider) Engine(l *Locker) *engine.Engine { return l.engine }

// Request is what m asks of its engine, and what is wrong with m.
func (insider) Request(m *Lock) (*engine.Engine, *engine.Request, error) {
	return m.locker.engine, &m.request, m.err
}

// Lease is the lease of m as its holder sees it.
func (insider) Lease(m *Lock, le *engine.Lease) Lease { return Lease{le, m} }

// PauseOf is the pause of the lock with that key, nil if there is none, and how long it lasts; 0 if it has no end.
func (insider) PauseOf(l *Locker, key string) (*Control, time.Duration) {
	busy := l.pausedError(key, key)
	if busy == nil {
		return nil, 0
	}
	return busy.Pause, busy.ExpiresIn
}

// What is wrong with a client or an option, before there is a Locker.

func (insider) CheckClient(rdb Client) error    { return checkClient(rdb) }
func (insider) CheckPrefix(prefix string) error { return checkPrefix(prefix) }
func (insider) CheckSecret(secret string) error { return checkSecret(secret) }
func (insider) CheckRate(starts int, per time.Duration, burst int) error {
	return checkRate(starts, per, burst)
}

// Of pools; see package pool.

func (insider) Pool(l *Locker, name string, options ...Option) *Lock { return l.pool(name, options...) }
func (insider) Put(ctx context.Context, m *Lock, values []string) (int, error) {
	if m.err != nil {
		return 0, m.err
	}
	return m.locker.engine.Put(ctx, m.request.Ref, values)
}
func (insider) DeleteAll(ctx context.Context, m *Lock) (int, error) {
	return m.breakUp(ctx, "", engine.BreakKey)
}
func (insider) Value(le *Lease) string { return keys.Unescape(le.inner.Value()) }
func (insider) Consume(ctx context.Context, le *Lease) error {
	_, err := le.inner.Release(ctx, engine.Ending{Consume: true})
	return err
}

// Of a lease.

func (insider) CloseGate(ctx context.Context, le *Lease, d time.Duration) error {
	return le.closeGate(ctx, d)
}

// Of operators.

func (insider) ByKey(l *Locker, key string) *Lock { return l.byKey(key) }
func (insider) List(ctx context.Context, l *Locker) iter.Seq2[inside.Info, error] {
	return l.engine.List(ctx)
}
func (insider) Sweep(ctx context.Context, l *Locker) (int, error) {
	return l.engine.Sweep(ctx)
}
func (insider) Inspect(ctx context.Context, m *Lock) (inside.Info, error) {
	return m.inspect(ctx, maxHolders, m.request.Note)
}

func (insider) OpenGate(ctx context.Context, m *Lock) (bool, error) { return m.openGate(ctx) }

func (insider) Line(ctx context.Context, m *Lock, info inside.Info, most int) ([]inside.Waiter, error) {
	if m.err != nil {
		return nil, m.err
	}
	return m.locker.engine.Line(ctx, m.ref(), info, most)
}

// GateText says why nobody gets a lock whose gate is closed for that reason. It is empty for
// a reason that is not one of the gate, such as [ReasonHeld].
func (insider) GateText(reason string) string { return gateTexts[reason] }

// Of controls.

func (insider) InForce(c *Controls) []Control { return c.inForce() }
func (insider) Unreadable(ctx context.Context, c *Controls) (map[string]string, error) {
	return c.unreadable(ctx)
}

func (insider) Resume(ctx context.Context, c *Controls, target string) (inside.Ended, error) {
	return c.locker.controls.Resume(ctx, target)
}

func (insider) ClearLimit(ctx context.Context, c *Controls, target string) (inside.Ended, error) {
	return c.locker.controls.ClearLimit(ctx, target)
}

func (insider) ControlsFor(list []Control, key string) (its []Control, limit int, pause *Control) {
	return controlsFor(list, key)
}
func (insider) ControlText(c Control) string    { return c.text() }
func (insider) Orders(list []Control) []Control { return ordersOf(list) }

// Claim is the mark of package unique beside the lock with that key.
func (insider) Claim(l *Locker, key string) mark.Mark { return mark.Of(l.life, l.engine.Conn(), key) }

// ClaimLock returns a lock for producers that change the task of that claim in several steps. Workers do
// not take it.
func (insider) ClaimLock(l *Locker, key string, options ...Option) *Lock {
	m := l.Semaphore(key, 1, options...)
	m.request.Key = mark.Key(key) + ":lock"
	return m
}

// Of tasks in order.

// InOrder gives the lock to tasks in their order only. The lock needs the task's note.
func (insider) InOrder(p inside.Place) Option {
	return func(m *Lock) { m.request.Ordered, m.request.Order = true, &engine.Order{Place: p} }
}
func (insider) EndOrder(le *Lease, o inside.Outcome) { le.inner.End(o) }
func (insider) IsNotHead(err error) bool             { return errors.Is(err, engine.ErrNotHead) }
func (insider) IsHeadRunning(err error) bool         { return errors.Is(err, engine.ErrHeadRuns) }

// Stamp gives the task with that note and nonce the next place in order; see [engine.Engine.Stamp].
func (insider) Stamp(ctx context.Context, m *Lock, note, nonce string, deadline time.Duration, most int) (ticket int64, queued int, look []inside.OrderItem, err error) {
	if m.err != nil {
		return 0, 0, nil, m.err
	}
	return m.locker.engine.Stamp(ctx, m.ref(), note, nonce, deadline, most)
}

// SkipHead takes the head with that note and ticket out of the order, and calls the next; see [engine.Engine.Skip].
func (insider) SkipHead(ctx context.Context, m *Lock, note string, ticket int64) (head string, err error) {
	if m.err != nil {
		return "", m.err
	}
	return m.locker.engine.Skip(ctx, m.ref(), note, ticket)
}

// Head is the first task in order of the key. Its State is empty if no task is in order.
func (insider) Head(ctx context.Context, m *Lock) (inside.Head, error) {
	info, err := m.inspect(ctx, 1, "")
	return info.Head, err
}

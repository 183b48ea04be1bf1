package lock

import (
	"context"
	"iter"
	"time"

	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/wire"
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

// New is [New] with two functions; either may be nil.
//
// call has parked work run again, see [inside.Caller]. With nil this Locker calls nothing.
//
// onControls receives the controls in force, sorted by target, each time that they change,
// and first when the Locker has read them and there are any. The Locker calls it on a
// goroutine of its own, one call at a time. It should be quick.
func (insider) New(rdb Client, o Options, call inside.Caller, onControls func(inForce []Control)) *Locker {
	o.call, o.onControls = call, onControls
	return New(rdb, o)
}

// What is wrong with a client or an option, before there is a Locker.

func (insider) CheckClient(rdb Client) error    { return checkClient(rdb) }
func (insider) CheckPrefix(prefix string) error { return checkPrefix(prefix) }
func (insider) CheckSecret(secret string) error { return checkSecret(secret) }
func (insider) CheckRate(starts int, per time.Duration, burst int) error {
	return checkRate(starts, per, burst)
}

// LockerErr and LockErr return what is wrong with the options of a Locker and the
// definition of a lock. They do no I/O.

func (insider) LockerErr(l *Locker) error { return l.life.Unfit() }
func (insider) LockErr(m *Lock) error     { return m.err }

// At returns the lock with that key, which package keys has made, and the options that m was made with. The name
// appears only in errors.
func (insider) At(m *Lock, name, key string, limit int, note string, options ...Option) *Lock {
	return m.at(name, key, limit, note, options)
}

// Options of a lock.

func (insider) OnWait(f func()) Option                { return onWait(f) }
func (insider) OnStop(arrival int64, f func()) Option { return onStop(arrival, f) }
func (insider) OnePerNote() Option                    { return onePerNote() }
func (insider) ParkFirst() Option                     { return parkFirst() }
func (insider) InTimeOnly() Option                    { return inTimeOnly() }
func (insider) Uninterrupted() Option                 { return uninterrupted() }

// Ways to wait.

func (insider) LockOrPark(ctx context.Context, m *Lock, parkNow <-chan struct{}) (*Lease, error) {
	return m.lockOrPark(ctx, parkNow)
}

func (insider) LockWithin(ctx context.Context, m *Lock, wait time.Duration) (*Lease, error) {
	return m.lockWithin(ctx, wait)
}
func (insider) AverageHeld(m *Lock) time.Duration { return m.averageHeld() }

// ArriveWithin says how long called work may take to arrive where nothing is the matter; see
// [inside.Caller]. Work that takes longer keeps its place, but others are called beside it.
func (insider) ArriveWithin(l *Locker, d time.Duration) { l.parking.ArriveWithin(d) }

// The newest wins; see replace.go.

func (insider) Arrive(ctx context.Context, m *Lock) (arrival int64, first bool, err error) {
	return m.arrive(ctx)
}

func (insider) GoAway(ctx context.Context, m *Lock, away time.Duration, onlyKnown bool) (known bool, err error) {
	return m.goAway(ctx, away, onlyKnown)
}
func (insider) Forget(ctx context.Context, m *Lock) error { return m.forget(ctx) }

func (insider) AskOlderToStop(ctx context.Context, m *Lock) (inside.Standing, error) {
	return m.askOlderToStop(ctx)
}

// Of pools; see package pool.

func (insider) Pool(l *Locker, name string, options ...Option) *Lock { return l.pool(name, options...) }
func (insider) Operate(ctx context.Context, m *Lock, s *exchange.Script, args []any) (any, error) {
	return m.operate(ctx, s, args)
}

func (insider) OperateBreak(ctx context.Context, m *Lock, s *exchange.Script) (int, error) {
	return m.operateBreak(ctx, s, nil)
}
func (insider) Value(le *Lease) string { return wire.Unescape(le.value) }
func (insider) Consume(ctx context.Context, le *Lease) error {
	_, err := le.end(ctx, ending{consume: true})
	return err
}

// Of a lease.

// Parked is how long the lock's note was in line before it got this lease; 0 if it was never
// parked. It counts from its first place in line, or from when it was moved to the end of
// the line, because a call of it lapsed or its Caller answered FateLater. For a note that
// ParkFirst put before others it is the time of the first of those.
func (insider) Parked(le *Lease) time.Duration                { return le.parked }
func (insider) LeaseErr(le *Lease) error                      { return le.endErr() }
func (insider) GiveBack(ctx context.Context, le *Lease) error { return le.giveBack(ctx) }
func (insider) CloseGate(ctx context.Context, le *Lease, d time.Duration) error {
	return le.closeGate(ctx, d)
}

// Of operators.

func (insider) ByKey(l *Locker, key string) *Lock { return l.byKey(key) }
func (insider) List(ctx context.Context, l *Locker) iter.Seq2[inside.Info, error] {
	return l.walker().List(ctx)
}
func (insider) Sweep(ctx context.Context, l *Locker) (int, error) {
	return l.walker().Sweep(ctx)
}
func (insider) Inspect(ctx context.Context, m *Lock) (inside.Info, error) { return m.inspectAll(ctx) }

func (insider) OpenGate(ctx context.Context, m *Lock) (bool, error) { return m.openGate(ctx) }

func (insider) DeleteFrom(ctx context.Context, m *Lock, tokens ...string) (bool, error) {
	return m.deleteFrom(ctx, tokens...)
}

func (insider) Line(ctx context.Context, m *Lock, info inside.Info, most int) ([]inside.Waiter, error) {
	return m.listLine(ctx, info, most)
}

// GateText says why nobody gets a lock whose gate is closed for that reason. It is empty for
// a reason that is not one of the gate, such as [ReasonHeld].
func (insider) GateText(reason string) string { return wire.GateText(reason) }

// Of controls.

func (insider) InForce(c *Controls) []Control { return c.inForce() }
func (insider) Paused(ctx context.Context, c *Controls, key string) error {
	return c.paused(ctx, key)
}

func (insider) Unreadable(ctx context.Context, c *Controls) (map[string]string, error) {
	return c.unreadable(ctx)
}

func (insider) Resume(ctx context.Context, c *Controls, target string) (inside.Ended, error) {
	return c.resume(ctx, target)
}

func (insider) ClearLimit(ctx context.Context, c *Controls, target string) (inside.Ended, error) {
	return c.clearLimit(ctx, target)
}

func (insider) ControlsFor(list []Control, key string) (its []Control, limit int, pause *Control) {
	return controlsFor(list, key)
}
func (insider) ControlText(c Control) string         { return c.text() }
func (insider) Orders(list []Control) []Control      { return ordersOf(list) }
func (insider) AppliesTo(c Control, key string) bool { return c.appliesTo(key) }

// Claim is the mark of package unique beside the lock with that key.
func (insider) Claim(l *Locker, key string) claims.Claim { return claims.Of(l.runner(), key) }

// ClaimLock returns a lock for producers that change the task of that claim in several steps. Workers do
// not take it.
func (insider) ClaimLock(l *Locker, key string, options ...Option) *Lock {
	m := l.Semaphore(key, 1, options...)
	m.keys = []string{claims.Key(key) + ":lock"}
	return m
}

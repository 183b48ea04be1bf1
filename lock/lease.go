package lock

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/wire"
)

// Lease is the right of one holder to a lock, until a deadline. It is renewed in the
// background until Unlock, MaxHold or Locker.Close. A lease whose deadline passes without a
// renewal is lost, and stays lost. Safe for concurrent use.
type Lease struct {
	lock        *Lock
	token       string
	body        string           // token|owner|note, the member's name in Redis
	sent        exchange.Body    // body, as commands carry it
	asks        exchange.Counted // counts the copies of asks
	releases    exchange.Counted // counts the copies of releases
	consuming   atomic.Bool      // the value is to leave its pool, and no release has succeeded yet
	startCounts atomic.Bool      // its start counts for a Rate: releases do not refund it; see giveBack
	// cooldownEnd is until when each release closes the gate, on the local monotonic
	// clock; nil: releases do not change the gate. Set once, before the first release.
	cooldownEnd atomic.Pointer[time.Time]

	// These five are set before the lease is handed out. Then they never change, and are read
	// without the mutex.
	fence  int64          // 0: the lock was taken as a string
	parked time.Duration  // how long its note was parked; 0: it was not
	value  string         // what was taken out of a pool, escaped
	member wire.MemberArg // the member's name without its kind: body, or value|body in a pool
	// takenAt is when the lock was taken; without MaxHold and a grant, when the command was
	// sent that took it. Until then it is when the lease was made.
	takenAt time.Time

	// What follows is guarded by the renewer's mutex.
	state    leaseState
	deadline time.Time  // until when the lease is certainly held, on the local monotonic clock
	renewAt  time.Time  // when the next renewal is due; zero: never
	renewals int        // how many renewals are under way, at most maxRenewals
	bindings []binding  // contexts that end with the lease
	room     [1]binding // for the first of them
	pruneAt  int        // the len(bindings) at which Bind drops those that have ended

	renewedAt time.Time // when the latest renewal that succeeded was sent
	due       time.Time // when the renewer must next act on the lease
	place     int       // its place in the renewer's schedule, counted from 1; 0: not in it
}

// binding is one context made by Bind.
type binding struct {
	ctx    context.Context // to see whether it has ended by itself
	cancel context.CancelCauseFunc
}

// minBindings is how many bindings are too few to drop those that have ended.
const minBindings = 4

// endAll ends bound contexts. Callers do not hold the renewer's mutex.
func endAll(bound []binding, cause error) {
	for _, b := range bound {
		b.cancel(cause)
	}
}

type leaseKey struct{}

// FromContext returns the lease that [Lock.Do], [With] or [Lease.Bind] bound to ctx; of
// several, the one bound last. It returns nil and false if there is none. Use it to get the
// fence in a function that [Lock.Do] runs, or to end the lease there.
func FromContext(ctx context.Context) (*Lease, bool) {
	le, ok := ctx.Value(leaseKey{}).(*Lease)
	return le, ok
}

type leaseState uint8

const (
	leaseHeld leaseState = iota
	leaseReleased
	leaseLost
)

// Fence returns a number that grows from holder to holder of a mutex with the option [Fenced].
// Send it with each write, and have the receiver refuse a number lower than one that it has seen. For
// a semaphore the number only orders the grants. docs/guarantees.md lists the conditions.
//
// The number came with the grant: Fence does no I/O, and returns the same number after the lease has
// ended. ErrNotFenced: the lock was made without Fenced.
func (le *Lease) Fence() (int64, error) {
	if !le.lock.fenced {
		return 0, fmt.Errorf("%w: %q: make the lock with lock.Fenced(), or set Fence in the rule", ErrNotFenced, le.lock.name)
	}
	return le.fence, nil
}

// Token returns the text that identifies this lease. No two leases have the same token.
func (le *Lease) Token() string { return le.token }

// Deadline returns the time until which the lease is certainly held, on the local monotonic
// clock. Each renewal moves it. After the lease has ended Deadline returns the last one.
func (le *Lease) Deadline() time.Time {
	r := le.lock.locker.renewer
	r.mu.Lock()
	defer r.mu.Unlock()
	return le.deadline
}

// endErr returns nil while the lease is held, ErrLost after it was lost, by its deadline too,
// and ErrNotHeld after its owner ended it.
func (le *Lease) endErr() error {
	switch le.lock.locker.renewer.expire(le) {
	case leaseLost:
		return ErrLost
	case leaseReleased:
		return ErrNotHeld
	}
	return nil
}

// Bind returns a context derived from parent that ends when the lease does: with cause ErrLost
// if the lease is lost, and with context.Canceled if it is released. If the lease has ended
// already, so has the context. [FromContext] returns the lease of that context.
func (le *Lease) Bind(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, leaseKey{}, le))
	r := le.lock.locker.renewer
	r.expire(le)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch le.state {
	case leaseReleased:
		cancel(context.Canceled)
		return ctx
	case leaseLost:
		cancel(ErrLost)
		return ctx
	}
	// Keep the list short if a lease is bound often: when it has twice as many entries as
	// were left the last time, drop those that have ended. (A context.AfterFunc for each
	// would cost more than the rest of Bind.)
	if len(le.bindings) >= max(le.pruneAt, minBindings) {
		le.bindings = slices.DeleteFunc(le.bindings, func(b binding) bool { return b.ctx.Err() != nil })
		le.pruneAt = 2 * len(le.bindings)
	}
	if le.bindings == nil {
		le.bindings = le.room[:0]
	}
	le.bindings = append(le.bindings, binding{ctx, cancel})
	return ctx
}

// Held reports whether the lease is still held, by the local clock. It does no I/O.
func (le *Lease) Held() bool {
	r := le.lock.locker.renewer
	r.mu.Lock()
	defer r.mu.Unlock()
	return le.state == leaseHeld && time.Now().Before(le.deadline)
}

// Extend makes the lease last at least d from now. It never shortens the lease. d is more
// than 0 and at most ten years, and is rounded up to whole milliseconds.
//
// ErrNotHeld: the lease has ended. ErrBackend: it is not known whether Redis has extended the
// lease. ErrNotReplicated: too few replicas have the new deadline. After either of the last
// two this process keeps the old deadline, but Redis may keep the lock taken for d, or until
// Unlock. Extend also works after ctx has ended.
func (le *Lease) Extend(ctx context.Context, d time.Duration) error {
	if d <= 0 || d > inside.MaxTTL {
		return fmt.Errorf("lock: %q: Extend by %s: more than 0, at most %s", le.lock.name, d, inside.MaxTTL)
	}
	d = wholeMS(d)
	r := le.lock.locker.renewer
	if r.expire(le) != leaseHeld { // a lease that Held calls lost stays lost
		return fmt.Errorf("%w: %q cannot be extended", ErrNotHeld, le.lock.name)
	}
	held, err := le.lock.locker.extend(context.WithoutCancel(ctx), le, d, replicasWithin(le))
	if err == nil && !held {
		err = fmt.Errorf("%w: %q was lost before it could be extended", ErrNotHeld, le.lock.name)
	}
	return err
}

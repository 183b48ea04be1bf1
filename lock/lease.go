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

// Unlock releases the lock and ends the lease, whatever it returns:
//
//   - nil: the lock was held until now.
//   - ErrNotHeld: the lease had ended before: it was unlocked or lost. A later holder of the
//     lock is not affected.
//   - ErrBackend: Redis did not answer, or refused. Unlock is tried again in the background: at
//     once, after 0.25 s, 1 s, 5 s, and then less often for two minutes. The slot is free at
//     the lease's deadline at the latest.
//
// Unlock uses only the values of ctx, so it works after ctx has ended.
func (le *Lease) Unlock(ctx context.Context) error {
	_, err := le.Release(ctx)
	return err
}

// Release is [Lease.Unlock], and returns the number of slots that are free now. A slot that
// the release granted to a waiter is not free. After ErrBackend free is 0.
func (le *Lease) Release(ctx context.Context) (free int, err error) {
	return le.end(ctx, ending{})
}

// Held reports whether the lease is still held, by the local clock. It does no I/O.
func (le *Lease) Held() bool {
	r := le.lock.locker.renewer
	r.mu.Lock()
	defer r.mu.Unlock()
	return le.state == leaseHeld && time.Now().Before(le.deadline)
}

// endedByOwner reports whether the lease was released by its owner, whether or not Redis
// knows of it yet.
func (le *Lease) endedByOwner() bool { return le.lock.locker.renewer.stateOf(le) == leaseReleased }

// ending says how a lease ends. The zero value only releases its slot.
type ending struct {
	cooldown time.Time // close the gate until then; zero: leave the gate as it is
	consume  bool      // remove the value from its pool
	unused   bool      // refund the start to the rate
}

// end ends the lease. It returns the number of free slots, and the errors of Unlock.
func (le *Lease) end(ctx context.Context, e ending) (int, error) {
	now := time.Now()
	was, deadline := le.lock.locker.renewer.drop(le, now)
	if was == leaseReleased {
		return 0, fmt.Errorf("%w: %q was unlocked before", ErrNotHeld, le.lock.name)
	}
	le.lock.locker.parking.NoteHeld(le.lock.parked(), now.Sub(le.takenAt))
	if was == leaseLost {
		e.cooldown, e.consume = time.Time{}, false
	}
	if !e.cooldown.IsZero() {
		until := e.cooldown // or e would be allocated for every lease
		le.cooldownEnd.Store(&until)
	}
	le.consuming.Store(e.consume)
	le.startCounts.Store(!e.unused)
	free, held, err := le.releaseFirst(ctx, was, now)
	if err == nil {
		le.lock.locker.spawnReleaseLater(le)
	}
	switch {
	case err != nil:
		le.lock.locker.abandon(le)
		return 0, err
	case was == leaseLost:
		return free, fmt.Errorf("%w: %q: the lease was lost before", ErrNotHeld, le.lock.name)
	case held:
		return free, nil
	case le.releases.MayRunYet() && time.Now().Before(deadline):
		// The release was sent more than once, one copy got no reply, and the last reply is "absent" before
		// the deadline: that copy has released the lock.
		return free, nil
	}
	return free, fmt.Errorf("%w: %q: its deadline had passed, or the key was deleted", ErrNotHeld, le.lock.name)
}

// release runs the release script for this token, whatever the local state. held reports
// whether Redis still had the holder.
func (le *Lease) release(ctx context.Context) (free int, held bool, err error) {
	return le.releaseAt(ctx, time.Now())
}

func (le *Lease) releaseAt(ctx context.Context, now time.Time) (free int, held bool, err error) {
	s, args := le.lock.kind.release(le)
	return le.releaseBy(ctx, now, s, args)
}

func (le *Lease) releaseBy(ctx context.Context, now time.Time, s *exchange.Script, args []any) (free int, held bool, err error) {
	m := le.lock
	before := le.releases.Copies()
	reply, err := m.locker.conn.RunBounded(toItsEnd(ctx, now), s, m.keys, args)
	return le.noteRelease(before, reply, err, now)
}

// noteRelease handles the reply to a release that was sent at sent, or the error err; before is what
// releases.Copies returned then.
func (le *Lease) noteRelease(before int32, reply any, err error, sent time.Time) (free int, held bool, _ error) {
	m := le.lock
	le.releases.NoteReply(before, err)
	if err != nil || le.releases.MayRunYet() {
		m.locker.line.askAgainFor(m) // a lost reply may have named a grant
	}
	if err != nil {
		return 0, false, exchange.Failed("release", m.Key(), err)
	}
	if m.limit == 1 && reply != any(int64(1)) {
		m.locker.contended.note(m.keys[0]) // another holder has it now, or work is parked
	}
	reply, more := m.locker.line.handleGrants(reply)
	if more {
		m.locker.pruneOn(m)
	}
	n, ok := reply.(int64)
	if ok {
		m.locker.parking.NoteNothingParked(m.parked(), sent)
	} else {
		n, ok = m.locker.parking.HandleCalls(m.parked(), reply)
	}
	if !ok {
		return 0, false, exchange.Failed("release", m.Key(), wire.Unexpected(reply))
	}
	le.consuming.Store(false) // done: a later release is only for a late copy of an ask
	if n < 0 {
		return int(-1 - n), false, nil
	}
	return int(n), true, nil
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
	if l := le.lock.locker; l.replicas > 0 {
		held, err := l.extendReplicated(context.WithoutCancel(ctx), le, d, replicasWithin(le))
		if err == nil && !held {
			err = fmt.Errorf("%w: %q was lost before it could be extended", ErrNotHeld, le.lock.name)
		}
		return err
	}
	sent := time.Now()
	c := renewCall(le, d)
	reply, err := le.lock.locker.conn.RunBounded(toItsEnd(ctx, sent), wire.RenewScript, c.Keys, c.Args)
	if err != nil {
		return exchange.Failed("renew", le.lock.Key(), err)
	}
	renewed, err := wire.CodeOf(reply, wire.RenewRenewed)
	if err != nil {
		return exchange.Failed("renew", le.lock.Key(), err)
	}
	if renewed == wire.RenewLost {
		r.lose(le)
		return fmt.Errorf("%w: %q was lost before it could be extended", ErrNotHeld, le.lock.name)
	}
	if !r.noteRenewed(le, sent, d) {
		return fmt.Errorf("%w: %q ended while it was extended", ErrNotHeld, le.lock.name)
	}
	return nil
}

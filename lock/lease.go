package lock

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
)

// Lease is one holder's stay. Safe for concurrent use. It is renewed in the
// background until Unlock, MaxHold or Locker.Close, and lost when renewal did
// not succeed before its deadline; a lost lease is never taken back.
type Lease struct {
	lock      *Lock
	token     string
	body      string // token|owner|note, the member's name in Redis
	sent      exchange.Body
	asks      exchange.Counted // sent, in asks: copies, less those with a reply
	releases  exchange.Counted // sent, in releases: copies
	consuming atomic.Bool      // the value is to leave its pool, and Redis has not confirmed it
	used      atomic.Bool      // its caller ended it: its start counts; see GiveBack
	// cooldownEnd is until when each release closes the gate, on the local monotonic
	// clock; nil: it leaves the gate alone. Set once, before the first.
	cooldownEnd atomic.Pointer[time.Time]

	// What follows is guarded by the renewer's mutex. heldArg is set before the
	// lease is handed out and never changes.
	fence    int64 // 0: it was not asked for yet
	parked   time.Duration
	value    string // what was taken out of a pool, escaped
	heldArg  any    // a memberArg: the member's name without its kind: body, or value|body in a pool
	state    leaseState
	taken    time.Time // since when it is ours, for MaxHold
	deadline time.Time // until when we may believe it is ours, on the local monotonic clock
	renewAt  time.Time // when the next renewal is due; zero: never
	attempts int       // how many renewals are under way, attemptsMost at most
	bound    []binding // contexts that end with the lease
	crowd    int       // how many there are when those are looked for that have ended; at least crowdLeast

	renewedAt time.Time // when the latest renewal that succeeded was sent
	due       time.Time // when the renewer has to look at it
	place     int       // its place in the renewer's schedule, counted from 1; 0: not in it
}

// binding is one context made by Bind.
type binding struct {
	ctx    context.Context //nolint:containedctx // to see whether it has ended by itself
	cancel context.CancelCauseFunc
}

// crowdLeast bound contexts are few enough not to look which of them have ended.
const crowdLeast = 4

// endAll ends bound contexts; called without the renewer's mutex.
func endAll(bound []binding, cause error) {
	for _, b := range bound {
		b.cancel(cause)
	}
}

type leaseKey struct{}

// FromContext is the lease that ctx was bound to by [Lock.Do], [With] or
// [Lease.Bind]: for its fence, its token or an Extend. The innermost where
// there are several; false where there is none.
func FromContext(ctx context.Context) (*Lease, bool) {
	le, ok := ctx.Value(leaseKey{}).(*Lease)
	return le, ok
}

type leaseState uint8

const (
	held leaseState = iota
	released
	lost
)

// Fence returns a number that only grows from holder to holder of one mutex: hand it
// to whatever the work writes to, and have it refuse lower ones. For a
// semaphore it orders the grants. See docs/guarantees.md for its conditions.
//
// The first call may ask Redis, within ctx; later calls return the same number. Most
// work never asks, and then the fence costs nothing. ErrNotHeld: the lease is over, or
// Redis says that it is. ErrBackend: Redis could not be asked; the lease is as it was.
func (le *Lease) Fence(ctx context.Context) (int64, error) {
	m, r := le.lock, le.lock.locker.renewer
	r.mu.Lock()
	fence, isHeld := le.fence, le.state == held && time.Now().Before(le.deadline)
	r.mu.Unlock()
	switch {
	case fence > 0:
		return fence, nil
	case !isHeld:
		return 0, fmt.Errorf("%w: %q: the lease is over, and its fence was not asked for before", ErrNotHeld, m.name)
	}
	reply, err := m.locker.conn.Run(ctx, fenceScript, m.keys, []any{le.heldArg})
	if err == nil {
		fence, err = codeOf(reply, math.MaxInt64)
	}
	switch {
	case err != nil:
		return 0, backendError("fence", m.Key(), err)
	case fence == 0:
		r.lose(le)
		return 0, fmt.Errorf("%w: %q: its deadline had passed, or the key was deleted", ErrNotHeld, m.name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if le.fence == 0 { // else another call was told one meanwhile
		le.fence = fence
	}
	return le.fence, nil
}

// Token identifies this stay; no two have the same.
func (le *Lease) Token() string { return le.token }

// Deadline is the moment until which the lease is ours for certain, judged by
// the local monotonic clock; renewal moves it.
func (le *Lease) Deadline() time.Time {
	r := le.lock.locker.renewer
	r.mu.Lock()
	defer r.mu.Unlock()
	return le.deadline
}

// endErr returns nil while the lease is held, ErrLost after it was lost, by its deadline too,
// and ErrNotHeld after its owner ended it.
func (le *Lease) endErr() error {
	r := le.lock.locker.renewer
	r.expire(le)
	switch r.stateOf(le) {
	case lost:
		return ErrLost
	case released:
		return ErrNotHeld
	case held:
	}
	return nil
}

// Bind returns a context derived from parent that ends when the lease does:
// with cause ErrLost when it was lost, and with context.Canceled when it was
// released. On a lease that has ended, by its deadline too, the context has
// ended. [FromContext] finds the lease in it.
func (le *Lease) Bind(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, leaseKey{}, le))
	r := le.lock.locker.renewer
	r.expire(le)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch le.state {
	case released:
		cancel(context.Canceled)
		return ctx
	case lost:
		cancel(ErrLost)
		return ctx
	case held:
	}
	// Binding a long lease often does not grow it: whenever twice as many are bound
	// as were left the last time, those that have ended leave. (To hook each onto
	// its context's end costs more than all the rest of a Bind.)
	if len(le.bound) >= max(le.crowd, crowdLeast) {
		le.bound = slices.DeleteFunc(le.bound, func(b binding) bool { return b.ctx.Err() != nil })
		le.crowd = 2 * len(le.bound)
	}
	le.bound = append(le.bound, binding{ctx, cancel})
	return ctx
}

// Unlock gives the lock back. nil: it was ours until now. ErrNotHeld: it was
// not (unlocked before, or lost); a successor is left alone. ErrBackend: Redis
// could not be told; that is tried again, and the deadline frees the lock at
// the latest. In every case the lease is over.
//
// Unlock works on an ended ctx too: of ctx only the values are used.
func (le *Lease) Unlock(ctx context.Context) error {
	_, err := le.Release(ctx)
	return err
}

// Release is Unlock that also tells how many slots are free now; waiters that
// were granted one have been counted as holders.
func (le *Lease) Release(ctx context.Context) (free int, err error) {
	return le.end(ctx, ending{})
}

// Consume ends a lease of a pool for good: its value leaves the pool. The
// errors are those of Unlock; after ErrNotHeld the value is back in the pool or
// somebody else's, after ErrBackend consuming it is tried again.
func (le *Lease) Consume(ctx context.Context) error {
	if !le.lock.isPool() {
		return fmt.Errorf("lock: %q is no pool: there is nothing to consume; use Unlock", le.lock.name)
	}
	_, err := le.end(ctx, ending{consume: true})
	return err
}

// Value is what was taken out of a pool; empty for other locks.
func (le *Lease) Value() string { return unescape(le.value) }

// Held reports whether the lease is still ours, by the local clock.
func (le *Lease) Held() bool {
	r := le.lock.locker.renewer
	r.mu.Lock()
	defer r.mu.Unlock()
	return le.state == held && time.Now().Before(le.deadline)
}

// endedByOwner reports whether the lease was released, in whatever way; not whether
// Redis has heard of it.
func (le *Lease) endedByOwner() bool { return le.lock.locker.renewer.stateOf(le) == released }

// ending says how a lease ends. The zero value gives its slot back.
type ending struct {
	cooldown time.Time // until when the gate is closed; zero: it is left alone
	consume  bool      // the value leaves its pool
	unused   bool      // its start does not count for the rate
}

// end ends the lease.
func (le *Lease) end(ctx context.Context, e ending) (int, error) {
	was, deadline := le.lock.locker.renewer.drop(le)
	if was == released {
		return 0, fmt.Errorf("%w: %q was unlocked before", ErrNotHeld, le.lock.name)
	}
	le.lock.locker.parking.noteHold(le.lock, time.Since(le.taken))
	if was == lost {
		e.cooldown, e.consume = time.Time{}, false
	}
	if !e.cooldown.IsZero() {
		le.cooldownEnd.Store(&e.cooldown)
	}
	le.consuming.Store(e.consume)
	le.used.Store(!e.unused)
	free, held, err := le.release(ctx)
	if err == nil {
		le.lock.locker.spawnReleaseLater(le)
	}
	switch {
	case err != nil:
		le.lock.locker.abandon(le)
		return 0, err
	case was == lost:
		return free, fmt.Errorf("%w: %q: the lease was lost before", ErrNotHeld, le.lock.name)
	case held:
		return free, nil
	case le.releases.WasResent() && time.Now().Before(deadline):
		// The client sent the release more than once and the last answer is
		// "absent" although our time was not up: the first one did it.
		return free, nil
	}
	return free, fmt.Errorf("%w: %q: its deadline had passed, or the key was deleted", ErrNotHeld, le.lock.name)
}

// release runs the release script for this token, whatever the local state;
// held reports whether it still was.
func (le *Lease) release(ctx context.Context) (free int, held bool, err error) {
	m := le.lock
	s, args := m.kind.release(le)
	sent := time.Now()
	reply, err := m.locker.conn.Run(context.WithoutCancel(ctx), s, m.keys, args)
	return le.noteRelease(reply, err, sent)
}

// noteRelease handles the reply to a release that was sent at sent, or the error err.
func (le *Lease) noteRelease(reply any, err error, sent time.Time) (free int, held bool, _ error) {
	m := le.lock
	if err != nil || le.releases.WasResent() {
		m.locker.line.askAgainFor(m) // a lost reply may have named a grant
	}
	if err != nil {
		return 0, false, backendError("release", m.Key(), err)
	}
	if m.limit == 1 && reply != any(int64(1)) {
		m.locker.wanted.note(m.keys[0]) // others have it now, or are parked
	}
	reply, more := m.locker.line.handleGrants(reply)
	if more {
		m.locker.pruneOn(m)
	}
	n, ok := reply.(int64)
	if ok {
		m.locker.parking.noteReply(m, sent)
	} else {
		n, ok = m.locker.parking.handleCalls(m, reply)
	}
	if !ok {
		return 0, false, backendError("release", m.Key(), unexpected(reply))
	}
	le.consuming.Store(false) // done; what comes later is for an ask that comes late
	if n < 0 {
		return int(-1 - n), false, nil
	}
	return int(n), true, nil
}

// Extend makes the lease last at least d from now: never shorter than it was. d is
// rounded up to whole milliseconds.
// ErrNotHeld: it is over, and stays so. ErrBackend, ErrNotReplicated: not known,
// or not by enough replicas; the lease is believed in for no longer than it was,
// but Redis may keep the lock taken for d, until Unlock. It works on an ended ctx too.
func (le *Lease) Extend(ctx context.Context, d time.Duration) error {
	if d <= 0 || d > inside.MaxTTL {
		return fmt.Errorf("lock: %q: Extend by %s: more than 0, at most %s", le.lock.name, d, inside.MaxTTL)
	}
	d = wholeMS(d)
	r := le.lock.locker.renewer
	if state := r.stateOf(le); state != held {
		return fmt.Errorf("%w: %q cannot be extended", ErrNotHeld, le.lock.name)
	}
	if l := le.lock.locker; l.replicas > 0 {
		held, err := l.confirm(context.WithoutCancel(ctx), le, d, replicasWithin(le))
		if err == nil && !held {
			err = fmt.Errorf("%w: %q was lost before it could be extended", ErrNotHeld, le.lock.name)
		}
		return err
	}
	sent := time.Now()
	reply, err := le.lock.locker.conn.Run(context.WithoutCancel(ctx), renewScript, le.lock.keys, []any{le.heldArg, d.Milliseconds()})
	if err != nil {
		return backendError("renew", le.lock.Key(), err)
	}
	renewed, err := codeOf(reply, renewRenewed)
	if err != nil {
		return backendError("renew", le.lock.Key(), err)
	}
	if renewed == renewLost {
		r.lose(le)
		return fmt.Errorf("%w: %q was lost before it could be extended", ErrNotHeld, le.lock.name)
	}
	if !r.extended(le, sent, d) {
		return fmt.Errorf("%w: %q ended while it was extended", ErrNotHeld, le.lock.name)
	}
	return nil
}

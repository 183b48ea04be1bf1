package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/redisx"
)

// Lease is the right of one holder to a lock, until a deadline. It is renewed until it is released. A lease whose deadline passes
// without a renewal is lost, and stays lost. Safe for concurrent use.
type Lease struct {
	engine  *Engine
	request Request
	token   string
	body    string // token|owner|note, as Redis has it

	// These are set before the lease is handed out.
	fence   int64 // 0: the lock was taken by SET
	value   string
	takenAt time.Time
	thin    bool // it was taken as a word, and may still be one

	consumes bool // set before the release

	// Engine.mu guards the rest.
	entry
	state     state
	deadline  time.Time // until when the lease is certainly held, on the local monotonic clock
	renewAt   time.Time // when the next renewal is due; zero: never
	renewedAt time.Time // when the latest renewal that succeeded was sent
	renewals  int       // how many are under way, at most maxRenewals
	bindings  []binding // contexts that end with the lease
	pruneAt   int       // the len(bindings) at which Bind drops those that have ended
}

type state uint8

const (
	unheld state = iota
	held
	ended // by its owner
	lost
)

const (
	maxRenewals = 2
	// firstRenewal is how long after a grant to a waiter its lease is renewed at the latest.
	firstRenewal = 100 * time.Millisecond
	leastMargin  = 100 * time.Millisecond
)

// binding is one context made by Bind.
type binding struct {
	ctx    context.Context // to see whether it has ended by itself
	cancel context.CancelCauseFunc
}

// believe returns for how long after an ask or renewal for length was sent the lease can be relied on: a thousandth and 1 ms less than
// length, since clocks run at different speeds.
func believe(length time.Duration) time.Duration { return length - length/1000 - time.Millisecond }

// margin returns how long before a lease for length can be taken over it counts as lost here: a tenth of the TTL and at least 100 ms,
// but at most a fifth of the TTL. Work whose context ends has that time to stop. A shorter lease has the same share as its margin.
func (r *Request) margin(length time.Duration) time.Duration {
	margin := max(r.TTL/10, min(leastMargin, r.TTL/5))
	if length >= r.TTL {
		return margin
	}
	return time.Duration(float64(margin) * float64(length) / float64(r.TTL))
}

// hold makes le held for length from sent, by a command that was sent then.
func (e *Engine) hold(le *Lease, fence int64, value string, sent time.Time, length time.Duration, granted bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.holdLocked(le, fence, value, sent, length, granted)
}

func (e *Engine) holdLocked(le *Lease, fence int64, value string, sent time.Time, length time.Duration, granted bool) {
	le.fence, le.value, le.takenAt, le.state = fence, value, sent, held
	if granted || le.request.MaxHold > 0 {
		le.takenAt = time.Now() // the reply may have taken seconds
	}
	le.moveDeadline(sent, length)
	if granted && !le.request.NoRenew {
		le.renewAt = le.takenAt.Add(min(firstRenewal, le.deadline.Sub(le.takenAt)/3))
	}
	e.leases[le.token] = le
	e.planHold(le)
}

// moveDeadline sets the deadline to length after sent, less the margin, unless it is later already. The next renewal is due a third of
// length after sent, and of the TTL at most.
func (le *Lease) moveDeadline(sent time.Time, length time.Duration) {
	d := sent.Add(believe(length) - le.request.margin(length))
	moved := d.After(le.deadline)
	if moved {
		le.deadline = d
	}
	length = min(length, le.request.TTL)
	if at := sent.Add(believe(length) - length*2/3); !le.request.NoRenew && (moved || at.After(le.renewAt)) {
		le.renewAt = at
	}
}

// next is when the lease ends or is to be renewed.
func (le *Lease) next() time.Time {
	at := le.deadline
	if le.request.MaxHold > 0 {
		at = life.Earliest(at, le.takenAt.Add(le.request.MaxHold))
	}
	if le.renewals < maxRenewals && !le.engine.closed {
		at = life.Earliest(at, le.renewAt)
	}
	return at
}

// noteSent notes that a renewal is sent now. The next one is due if this one has no reply after a third of the time that is left: it
// may be stuck on its connection.
func (le *Lease) noteSent(now time.Time) {
	le.renewals++
	le.renewAt = now.Add(max(min(le.deadline.Sub(now), le.request.TTL)/3, together))
}

// endDue ends a lease whose deadline or MaxHold is over, and returns what tells its contexts; nil: it goes on. Callers hold mu, and call
// that without mu.
func (e *Engine) endDue(le *Lease, now time.Time) func() {
	cause := ErrLost
	if most := le.request.MaxHold; most > 0 && !now.Before(le.takenAt.Add(most)) {
		cause = fmt.Errorf("%w: %q was held for its MaxHold of %s", ErrLost, le.request.Key, most)
	} else if now.Before(le.deadline) {
		return nil
	}
	return e.endLocked(le, lost, cause)
}

// endLocked ends a lease that is held, and returns what tells its contexts.
func (e *Engine) endLocked(le *Lease, to state, cause error) func() {
	if le.state == held {
		delete(e.leases, le.token)
		e.holds.set(&le.entry, time.Time{})
		le.state = to
	}
	bound := le.bindings
	le.bindings = nil
	return func() {
		for _, b := range bound {
			b.cancel(cause)
		}
	}
}

// lose ends a lease that is no longer held.
func (e *Engine) lose(le *Lease, cause error) {
	e.mu.Lock()
	end := func() {}
	if le.state == held {
		end = e.endLocked(le, lost, cause)
	}
	e.mu.Unlock()
	end()
}

// drop ends a lease for its owner, and returns the state that it had.
func (e *Engine) drop(le *Lease) (was state) {
	e.mu.Lock()
	was = le.state
	if was == held && !time.Now().Before(le.deadline) {
		was = lost // the alarm has not rung yet
	}
	end := e.endLocked(le, ended, context.Canceled)
	le.state = ended
	e.mu.Unlock()
	end()
	return was
}

// sendRenewals renews a batch of leases in one pipeline. Of two renewals of one lease that are under way, each counts from when it was
// sent. A lease that is released meanwhile stays so.
func (e *Engine) sendRenewals(batch []*Lease) {
	sent := time.Now()
	calls := make([]*redisx.Call, len(batch))
	for i, le := range batch {
		calls[i] = renewCall(le, le.request.TTL, 2)
	}
	e.conn.Pipeline(context.Background(), calls)
	for i, le := range batch {
		err := calls[i].Err
		if err == nil {
			_, err = e.noteRenewal(context.Background(), le, calls[i].Reply, le.request.TTL, sent)
		}
		e.mu.Lock()
		le.renewals--
		switch {
		case err == nil && sent.After(le.renewedAt):
			le.renewedAt = sent
		case err != nil && !le.renewedAt.After(sent): // try again soon
			le.renewAt = life.Earliest(le.renewAt, time.Now().Add(jitter(min(max(le.request.TTL/20, 10*time.Millisecond), time.Second))))
		}
		if le.state == held {
			e.planHold(le)
		}
		e.mu.Unlock()
	}
}

func renewCall(le *Lease, length time.Duration, keys int) *redisx.Call {
	return &redisx.Call{Script: renewScript, Keys: le.request.keys()[:keys], Args: []any{le.body, length.Milliseconds()}}
}

// noteRenewal takes the reply to a renewal. If the keys of the lock last too short a time for it, it renews once more, with all keys.
func (e *Engine) noteRenewal(ctx context.Context, le *Lease, reply any, length time.Duration, sent time.Time) (isHeld bool, err error) {
	if reply == int64(2) {
		c := renewCall(le, length, len(le.request.keys()))
		if reply, err = e.conn.Run(ctx, c.Script, c.Keys, c.Args...); err != nil {
			return true, redisx.Failed("renew", le.request.Key, err)
		}
	}
	switch reply {
	case int64(0):
		e.lose(le, ErrLost)
		return false, nil
	case int64(1):
		e.mu.Lock()
		defer e.mu.Unlock()
		if le.state == held {
			le.moveDeadline(sent, length)
			e.planHold(le)
		}
		return le.state == held, nil
	}
	return true, redisx.Failed("renew", le.request.Key, unexpected(reply))
}

// Token identifies the lease.
func (le *Lease) Token() string { return le.token }

// Fence is a number that grows from holder to holder; 0 without Request.Fenced.
func (le *Lease) Fence() int64 { return le.fence }

// Value is what was taken out of a pool, escaped.
func (le *Lease) Value() string { return le.value }

// Deadline is until when the lease is certainly held, on the local monotonic clock.
func (le *Lease) Deadline() time.Time {
	le.engine.mu.Lock()
	defer le.engine.mu.Unlock()
	return le.deadline
}

// Held reports whether the lease is still held, by the local clock.
func (le *Lease) Held() bool {
	le.engine.mu.Lock()
	defer le.engine.mu.Unlock()
	return le.state == held && time.Now().Before(le.deadline)
}

// Extend makes the lease last at least length from now.
func (le *Lease) Extend(ctx context.Context, length time.Duration) error {
	if !le.Held() {
		return fmt.Errorf("%w: %q cannot be extended", ErrNotHeld, le.request.Key)
	}
	sent := time.Now()
	c := renewCall(le, length, 2)
	reply, err := le.engine.conn.Run(context.WithoutCancel(ctx), c.Script, c.Keys, c.Args...)
	if err != nil {
		return redisx.Failed("renew", le.request.Key, err)
	}
	isHeld, err := le.engine.noteRenewal(context.WithoutCancel(ctx), le, reply, length, sent)
	if err == nil && !isHeld {
		err = fmt.Errorf("%w: %q was lost before it could be extended", ErrNotHeld, le.request.Key)
	}
	return err
}

// CloseGate lets nobody start for a time. The holder goes on.
func (le *Lease) CloseGate(ctx context.Context, length time.Duration) error {
	reply, err := le.engine.conn.Run(context.WithoutCancel(ctx), closeScript, le.request.keys(), le.body, length.Milliseconds())
	switch {
	case err != nil:
		return redisx.Failed("close", le.request.Key, err)
	case reply == int64(0):
		return fmt.Errorf("%w: %q was lost before its gate could be closed", ErrNotHeld, le.request.Key)
	}
	return nil
}

// Bind returns a context derived from parent that ends when the lease does: with cause ErrLost if it is lost, with context.Canceled if
// it is released.
func (le *Lease) Bind(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	e := le.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case le.state == ended:
		cancel(context.Canceled)
	case le.state != held || !time.Now().Before(le.deadline):
		cancel(ErrLost)
	default:
		// Keep the list short if a lease is bound often: when it has twice as many entries as were left the last time, drop those that
		// have ended. (A context.AfterFunc for each would cost more than the rest of Bind.)
		if len(le.bindings) >= max(le.pruneAt, 4) {
			le.bindings = slices.DeleteFunc(le.bindings, func(b binding) bool { return b.ctx.Err() != nil })
			le.pruneAt = 2 * len(le.bindings)
		}
		le.bindings = append(le.bindings, binding{ctx, cancel})
	}
	return ctx
}

// Ending says how a lease ends.
type Ending struct {
	Cooldown time.Duration // nobody gets the lock for so long
	Consume  bool          // its value leaves the pool
}

// Release gives the lock back, and returns how many slots are free then. One that was sent twice, and finds nothing before the deadline,
// is a success: the first one has run, or the lock was broken meanwhile. It ends the lease whatever it returns: ErrNotHeld if the lease
// had ended before, an error of Redis if the release is tried again in the background while the lease lasts. Only the values of ctx count.
func (le *Lease) Release(ctx context.Context, how Ending) (free int, err error) {
	e := le.engine
	was := e.drop(le)
	if was == ended {
		return 0, fmt.Errorf("%w: %q was released before", ErrNotHeld, le.request.Key)
	}
	ctx = context.WithoutCancel(ctx)
	le.consumes = how.Consume && was == held
	body, mayHaveRun := &redisx.Counted{Text: le.body}, false
	if was != held {
		how.Cooldown = 0
	} else if le.thin && how.Cooldown == 0 && !e.contended.has(le.request.Key) {
		deleted, err := e.conn.DeleteIfEqual(ctx, dropScript, le.request.Key, body)
		if err == nil && deleted {
			return e.limit(&le.request.Ref), nil
		}
		mayHaveRun = body.Resent() || err != nil && !redisx.IsNotRun(err)
	}
	back, err := e.sendRelease(ctx, le, body, how.Cooldown)
	switch {
	case err != nil:
		e.life.Spawn(func() { e.releaseUntil(le, le.deadline) })
		return 0, err
	case was == lost:
		return back.free, fmt.Errorf("%w: %q: the lease was lost before", ErrNotHeld, le.request.Key)
	case !back.held && (mayHaveRun || body.Resent()) && time.Now().Before(le.deadline): // the first one gave it back
	case !back.held:
		return back.free, fmt.Errorf("%w: %q: its deadline had passed, or the lock was broken or deleted", ErrNotHeld, le.request.Key)
	}
	if back.free < e.limit(&le.request.Ref) {
		e.contended.note(le.request.Key)
	}
	return back.free, nil
}

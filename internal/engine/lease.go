package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/redisx"
)

// Lease is a lock.Lease, renewed until it is released. Safe for concurrent use.
type Lease struct {
	engine  *Engine
	request Request
	token   string
	keyArg  any            // request.Key, boxed once
	ttlMS   int64          // request.TTL
	body    redisx.Counted // token|owner|note, as Redis has it; its count is the command's under way

	// OnEnd is called by each Release, with its error; nil: nothing is. It is set before others have the lease.
	OnEnd func(err error)

	// set before the lease is handed out:
	fence   int64 // 0: the lock was taken by SET
	value   string
	takenAt time.Time
	thin    atomic.Bool // it may still be a word

	every, spare time.Duration // the rate that its last ask gave; who asks owns them

	parked, sinceCall time.Duration // see Parked and SinceCall

	// an Outcome, set before the lease ends; read by each release, also in the background
	outcome atomic.Int32

	// set before the first release:
	consumes    bool      // the value leaves its pool
	cooldownEnd time.Time // the gate is closed until then; zero: as it is

	// Engine.mu guards the rest.
	entry
	state     state
	deadline  time.Time  // on the local monotonic clock
	renewAt   time.Time  // zero: never
	renewedAt time.Time  // when the latest renewal that succeeded was sent
	renewals  int        // under way, at most maxRenewals
	bindings  []binding  // what is told of the lease's end
	room      [2]binding // for the first of them
	pruneAt   int        // at this len(bindings), Bind drops those that have ended
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
	// from a grant to a waiter until its first renewal, at most
	firstRenewal = 100 * time.Millisecond
	leastMargin  = 100 * time.Millisecond
)

type binding struct {
	ctx    context.Context // nil: of WhenEnds
	cancel context.CancelCauseFunc
}

// believe returns for how long after an ask or renewal was sent its lease can be relied on: clocks run at different
// speeds.
func believe(length time.Duration) time.Duration { return length - length/1000 - time.Millisecond }

// margin returns how long before it can be taken over a lease counts as lost here, so that its work has time to stop: a
// tenth of the TTL; below a TTL of a second 100 ms; below one of half a second a fifth of it. Of a lease shorter than
// the TTL it is the same share.
func (r *Request) margin(length time.Duration) time.Duration {
	margin := max(r.TTL/10, min(leastMargin, r.TTL/5))
	if length >= r.TTL {
		return margin
	}
	return time.Duration(float64(margin) * float64(length) / float64(r.TTL))
}

// hold makes le held, by an ask sent then; granted: by a message, for a short while, so it is renewed soon. Callers
// hold mu.
func (e *Engine) hold(le *Lease, fence int64, value string, sent time.Time, granted bool) {
	length := le.request.TTL
	if granted {
		length = le.request.grant()
	}
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

// HoldFor has the lease lost after most from now, however it is renewed.
func (le *Lease) HoldFor(most time.Duration) {
	le.engine.mu.Lock()
	defer le.engine.mu.Unlock()
	if le.state == held {
		le.request.MaxHold, le.takenAt = most, time.Now()
		le.engine.planHold(le)
	}
}

// moveDeadline sets the deadline to length after sent, less the margin, unless it is later already. The next renewal
// is due a third of length, or of the TTL, after sent.
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

// Callers of ends hold mu.
func (le *Lease) ends() time.Time {
	if most := le.request.MaxHold; most > 0 {
		return life.Earliest(le.deadline, le.takenAt.Add(most))
	}
	return le.deadline
}

// Callers of isHeld hold mu.
func (le *Lease) isHeld() bool { return le.state == held && time.Now().Before(le.ends()) }

func (le *Lease) next() time.Time {
	at := le.ends()
	if le.renewals < maxRenewals && le.engine.life.Closing.Err() == nil {
		at = life.Earliest(at, le.renewAt)
	}
	return at
}

// sawSent: a renewal is sent now, and may be stuck. The next is due after a third of the time left.
func (le *Lease) sawSent(now time.Time) {
	le.renewals++
	le.renewAt = now.Add(max(min(le.deadline.Sub(now), le.request.TTL)/3, together))
}

// endDue ends a lease that is over, and returns what tells its contexts, to be called without mu; nil: it goes on.
// Callers hold mu.
func (e *Engine) endDue(le *Lease, now time.Time) func() {
	if now.Before(le.ends()) {
		return nil
	}
	cause := ErrLost
	if most := le.request.MaxHold; most > 0 && !now.Before(le.takenAt.Add(most)) {
		cause = fmt.Errorf("%w: %q was held for its MaxHold of %s", ErrLost, le.request.Key, most)
	}
	bound := e.endLocked(le, lost)
	return func() { endAll(bound, cause) }
}

// endLocked ends a lease if it is held, and returns the contexts for endAll, without mu.
func (e *Engine) endLocked(le *Lease, to state) (bound []binding) {
	if le.state == held {
		delete(e.leases, le.token)
		e.holds.set(&le.entry, time.Time{})
		le.state = to
	}
	bound, le.bindings = le.bindings, nil
	return bound
}

func endAll(bound []binding, cause error) {
	for _, b := range bound {
		b.cancel(cause)
	}
}

func (e *Engine) lose(le *Lease, cause error) {
	e.mu.Lock()
	bound := e.endLocked(le, lost)
	e.mu.Unlock()
	endAll(bound, cause)
}

// drop ends a lease for its owner, and returns its state before.
func (e *Engine) drop(le *Lease) (was state) {
	e.mu.Lock()
	was = le.state
	if was == held && !le.isHeld() {
		was = lost // before the alarm
	}
	bound := e.endLocked(le, ended)
	le.state = ended
	e.mu.Unlock()
	endAll(bound, context.Canceled)
	return was
}

// sendRenewals renews leases in one pipeline. Of two renewals under way, each counts from when it was sent. A released
// lease stays so.
func (e *Engine) sendRenewals(batch []*Lease) {
	sent := time.Now()
	calls := make([]*redisx.Call, len(batch))
	within := ReplicasWithin
	for i, le := range batch {
		calls[i] = e.renewCall(le, le.request.TTL)
		within = min(within, le.request.TTL/4)
	}
	e.renew(context.Background(), batch, calls, within)
	for i, le := range batch {
		_, err := e.sawRenewal(le, calls[i], le.request.TTL, sent)
		e.mu.Lock()
		le.renewals--
		switch {
		case err == nil && sent.After(le.renewedAt):
			le.renewedAt = sent
		case err != nil && !le.renewedAt.After(sent): // try again soon
			le.renewAt = life.Earliest(le.renewAt, time.Now().Add(jitter(min(max(le.request.TTL/20, 10*time.Millisecond),
				time.Second))))
		}
		if le.state == held {
			e.planHold(le)
		}
		e.mu.Unlock()
	}
}

// renewCall has few keys, so that it runs while a Cluster moves the slot.
func (e *Engine) renewCall(le *Lease, length time.Duration) *redisx.Call {
	keys := []string{le.request.Key}
	if !le.thin.Load() {
		keys = le.request.keys()[:2]
	}
	return &redisx.Call{Script: renewScript, Keys: keys, Args: []any{&le.body.Text, length.Milliseconds()}}
}

// moreKeys are the keys to renew le with after a reply 2.
func (le *Lease) moreKeys(keys []string) []string {
	le.thin.Store(false)
	if len(keys) == 1 {
		return le.request.keys()[:2]
	}
	return le.request.keys()
}

// ReplicasWithin is how long replicas have to acknowledge; a quarter of the TTL, if that is less.
const ReplicasWithin = time.Second

// renew runs renewals, again with more keys where the reply says so, and waits for replicas. The script always writes,
// WAIT covers what its connection wrote last, and replication keeps the order: so acknowledgements prove that the
// replicas have this deadline, and the grant. If too few acknowledge, the lease keeps its old deadline here; Redis may
// keep the lock for longer, which is safe.
func (e *Engine) renew(ctx context.Context, leases []*Lease, calls []*redisx.Call, within time.Duration) {
	for again := calls; len(again) > 0; {
		switch c := again[0]; {
		case e.o.Replicas > 0:
			e.conn.Confirm(ctx, again, int64(1), e.o.Replicas, within)
		case len(again) == 1:
			c.Reply, c.Err = e.conn.Run(ctx, c.Script, c.Keys, c.Args...)
		default:
			e.conn.Pipeline(ctx, again)
		}
		again = nil
		for i, c := range calls {
			if c.Err == nil && c.Reply == int64(2) {
				c.Keys = leases[i].moreKeys(c.Keys)
				again = append(again, c)
			}
		}
	}
	for _, c := range calls {
		var few *redisx.TooFew
		if errors.As(c.Err, &few) {
			c.Err = fmt.Errorf("%w: %q: %d of the %d of MinReplicas acknowledged within %s: "+
				"see that its master's replicas are connected and keep up (INFO replication), or ask for fewer",
				ErrNotReplicated, c.Keys[0], few.Got, few.Want, few.Within.Round(time.Millisecond))
		}
	}
}

// replicate has enough replicas know of a lease just taken, or gives it back.
func (e *Engine) replicate(ctx context.Context, le *Lease) error {
	if e.o.Replicas == 0 {
		return nil
	}
	err := e.extend(ctx, le, le.request.TTL, ErrNotReplicated)
	if err != nil {
		e.giveBack(le)
	}
	return err
}

// extend makes le last for length, on enough replicas. If le was lost, the error Is lost; on another le is unchanged.
func (e *Engine) extend(ctx context.Context, le *Lease, length time.Duration, lost error) error {
	within := min(ReplicasWithin, le.request.TTL/4)
	if end, ok := ctx.Deadline(); ok {
		within = min(within, max(time.Until(end), redisx.AnswerGrace))
	}
	sent := time.Now()
	c := e.renewCall(le, length)
	e.renew(ctx, []*Lease{le}, []*redisx.Call{c}, within)
	isHeld, err := e.sawRenewal(le, c, length, sent)
	if err == nil && !isHeld {
		err = fmt.Errorf("%w: %q was gone, as after a failover that forgot it", lost, le.request.Name)
	}
	return err
}

func (e *Engine) sawRenewal(le *Lease, c *redisx.Call, length time.Duration, sent time.Time) (isHeld bool, err error) {
	switch {
	case errors.Is(c.Err, ErrNotReplicated):
		return true, c.Err
	case c.Err != nil:
		return true, redisx.Failed("renew", le.request.Key, c.Err)
	case c.Reply == int64(0):
		e.lose(le, ErrLost)
		return false, nil
	case c.Reply == int64(1):
		e.mu.Lock()
		defer e.mu.Unlock()
		if isHeld = le.isHeld(); isHeld { // else it is lost, and stays so
			le.moveDeadline(sent, length)
			e.planHold(le)
		}
		return isHeld, nil
	}
	return true, wrongReply("renew", le.request.Key, c.Reply)
}

// Token identifies the lease.
func (le *Lease) Token() string { return le.token }

// Fence is a number that grows from holder to holder; ErrNotFenced without Request.Fenced.
func (le *Lease) Fence() (int64, error) {
	if !le.request.Fenced {
		return 0, fmt.Errorf("%w: %q: make the lock with lock.Fenced(), or set Fence in the rule", ErrNotFenced,
			le.request.Name)
	}
	return le.fence, nil
}

// Value is what was taken out of a pool, escaped.
func (le *Lease) Value() string { return le.value }

// Deadline is lock.Lease.Deadline.
func (le *Lease) Deadline() time.Time {
	le.engine.mu.Lock()
	defer le.engine.mu.Unlock()
	return le.ends()
}

// Held reports whether the lease is still held, by the local clock.
func (le *Lease) Held() bool { return le.Err() == nil }

// Err is nil while the lease is held, ErrLost after it was lost, by its deadline too, and ErrNotHeld after its owner
// ended it.
func (le *Lease) Err() error {
	le.engine.mu.Lock()
	defer le.engine.mu.Unlock()
	switch {
	case le.state == ended:
		return ErrNotHeld
	case !le.isHeld():
		return ErrLost
	}
	return nil
}

// SinceCall is how long before it came the lease's note was called; below 0: it was not.
func (le *Lease) SinceCall() time.Duration { return le.sinceCall }

// Parked is how long the lease's note was in line before it got the lock, if it was parked.
func (le *Lease) Parked() time.Duration { return le.parked }

// Extend is lock.Lease.Extend.
func (le *Lease) Extend(ctx context.Context, length time.Duration) error {
	e, r := le.engine, &le.request
	if err := le.check("Extend by", length); err != nil {
		return err
	}
	if left := time.Until(le.takenAt.Add(r.MaxHold)); r.MaxHold > 0 && left < length {
		length = min(length, left+r.TTL) // so that the slot is free then
	}
	return e.extend(context.WithoutCancel(ctx), le, WholeMS(length), ErrNotHeld)
}

// CloseGate closes the gate of the lock as automutex.CloseGate does, also on a context that has ended.
func (le *Lease) CloseGate(ctx context.Context, length time.Duration) error {
	e, r := le.engine, &le.request
	if err := le.check("CloseGate for", length); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	reply, err := e.conn.Run(ctx, closeScript, r.keys(), &le.body.Text, WholeMS(length).Milliseconds())
	switch {
	case err != nil:
		return redisx.Failed("close the gate", r.Key, err)
	case reply == int64(0):
		e.lose(le, ErrLost)
		return fmt.Errorf("%w: %q was lost before CloseGate", ErrNotHeld, r.Name)
	case reply != int64(1):
		return wrongReply("close the gate", r.Key, reply)
	case e.o.Replicas == 0:
		return nil
	}
	return e.extend(ctx, le, time.Millisecond, ErrNotHeld) // never shortens the lease
}

// Bind is lock.Lease.Bind.
func (le *Lease) Bind(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	le.bind(binding{ctx, cancel})
	return ctx
}

// WhenEnds calls f when the lease ends, once, with the cause that a bound context has. f must not block.
func (le *Lease) WhenEnds(f func(cause error)) { le.bind(binding{cancel: f}) }

func (le *Lease) bind(b binding) {
	le.engine.mu.Lock()
	defer le.engine.mu.Unlock()
	switch {
	case le.state == ended:
		b.cancel(context.Canceled)
	case !le.isHeld():
		b.cancel(ErrLost)
	default:
		// Of a lease that is bound often, drop the ended ones when the list has doubled. A context.AfterFunc for each
		// costs more.
		if len(le.bindings) >= max(le.pruneAt, 4) {
			le.bindings = slices.DeleteFunc(le.bindings, func(b binding) bool { return b.ctx != nil && b.ctx.Err() != nil })
			le.pruneAt = 2 * len(le.bindings)
		}
		if le.bindings == nil {
			le.bindings = le.room[:0]
		}
		le.bindings = append(le.bindings, b)
	}
}

// Ending says how a lease ends.
type Ending struct {
	Cooldown time.Duration // nobody gets the lock for so long; ten years at most. A pool has none
	Consume  bool          // its value leaves the pool
}

// Release is lock.Lease.Release. One that was sent before the deadline, and again, and finds nothing is a success.
func (le *Lease) Release(ctx context.Context, how Ending) (free int, err error) {
	e := le.engine
	was := e.drop(le)
	if was == ended {
		return 0, fmt.Errorf("%w: %q was unlocked before", ErrNotHeld, le.request.Name)
	}
	if le.OnEnd != nil {
		defer func() { le.OnEnd(err) }()
	}
	ctx = e.conn.Whole(ctx)
	if le.consumes = how.Consume && was == held; how.Cooldown > 0 && was == held && !le.request.Pool {
		le.cooldownEnd = time.Now().Add(min(WholeMS(how.Cooldown), inside.MaxTTL))
	}
	began := time.Now()
	back, err := e.sendRelease(ctx, le)
	switch {
	case err != nil:
		e.life.Spawn(func() { e.releaseUntil(le, le.deadline) })
		if was == lost {
			err = fmt.Errorf("%w: %q: the lease was lost before; and: %w", ErrNotHeld, le.request.Name, err)
		}
		return 0, err
	case was == lost:
		return back.free, fmt.Errorf("%w: %q: the lease was lost before", ErrNotHeld, le.request.Name)
	case !back.held && back.resent && began.Before(le.deadline):
		// the first one gave it back, or came when nobody had it any more
	case !back.held:
		return back.free, fmt.Errorf("%w: %q: its deadline had passed, or the key was deleted", ErrNotHeld, le.request.Name)
	}
	if int64(back.free) < e.limit(&le.request.Ref) {
		e.contended.saw(le.request.Key, 1)
	}
	return back.free, nil
}

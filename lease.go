package automutex

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/engine/workers"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// A lease belongs to its delivery before a function of the user can learn of it: keepLease gets each one at once, and
// release, which run defers, ends all.

type holding struct {
	leases  []*heldLease    // in the order taken
	room    [1]*heldLease   // for the lease of a task with one key
	first   heldLease       // the first one
	without map[string]bool // Allow: the keys without whose locks the task runs
	// Of one run of the handler, which release ends:
	started time.Time // zero: the handler has not started
	running *handlerRun
}

type heldLease struct {
	of           *facts
	outer        *heldLease // what the handler's context has beside it: the lease taken before; nil for the first
	target       *target
	lease        *engine.Lease
	shown        lock.Lease // the same, for handlers
	takenAt      time.Time
	waited       time.Duration // in line before, also parked
	lossReported sync.Once
	lostAfter    time.Duration   // set when the loss is reported; 0: it is not
	lender       *workers.Lender // whose workers it may have borrowed; nil: nobody's

	// Set by release.
	endedBefore error         // Err of the lease before release; nil: it was held
	heldFor     time.Duration // from taken to release
	releaseErr  error
}

// keepLease adds the engine's lease to the delivery's, or makes the engine's error one of the Guard.
func (d *delivery) keepLease(t *target, lease *engine.Lease, err error) error {
	if err != nil {
		return d.toBusyError(t, err)
	}
	if d.leases == nil {
		d.leases = d.room[:0]
	}
	h := &d.first
	if h.lease != nil {
		h = &heldLease{}
	}
	h.of, h.target, h.lender, h.lease, h.takenAt = &d.facts, t, d.wish.Lender, lease, time.Now()
	*inside.At(&h.shown) = lease
	d.leases = append(d.leases, h)
	return nil
}

// lost finds a lease that ended while the task waited for another lock or for Redis.
func (held *holding) lost() *obstacle {
	for _, h := range held.leases {
		if err := h.lease.Err(); err != nil {
			return &obstacle{why: decide.LeaseLost, target: h.target,
				err: fmt.Errorf("automutex: rule %q: key %q was lost before the handler began: %w", h.target.rule.Name,
					h.target.key, err)}
		}
	}
	return nothing
}

// release ends all leases, the last one first, and then reports them. met is why the task failed. It also runs while
// a panic unwinds, and after d.ctx has ended: releases use only its values.
func (d *delivery) release(decision decide.Decision, met *obstacle) {
	if d.running != nil {
		d.running.end()
		d.running = nil
	}
	leases, without, began := d.leases, d.without, !d.started.IsZero()
	d.leases, d.without, d.staying = nil, nil, ""
	for _, h := range slices.Backward(leases) {
		h.endedBefore = h.lease.Err()
		h.heldFor = time.Since(h.takenAt)
		for _, s := range d.steps {
			s.end(ending{decision: decision, met: met, began: began, lease: h})
		}
		ending := engine.Ending{}
		if cooldown := h.target.rule.Cooldown; began && decision.What == decide.Done && cooldown > 0 {
			ending.Cooldown = cooldown - time.Since(d.started) // none if it is over already
		}
		if h.lender != nil {
			h.lender.Runs(h.target.key, h.target.limit, -1) // before its release calls the next ones
		}
		_, h.releaseErr = h.lease.Release(d.ctx, ending)
	}
	for _, h := range slices.Backward(leases) {
		h.reportReleased(began)
	}
	d.recordRuns(d.started, leases, without, decision)
	d.started = time.Time{}
}

// handlerContext makes the handler's context. It ends with the task's, with cause ErrReplaced when another task asks
// this one to stop, and with cause lock.ErrLost when a lease is lost.
func (d *delivery) handlerContext() context.Context {
	run := &handlerRun{Context: d.ctx, facts: &d.facts, innermost: innermostLease(d.ctx), leases: d.leases}
	if d.stop != nil {
		ctx, cancel := context.WithCancelCause(d.ctx)
		unhook := context.AfterFunc(d.stop, func() { cancel(ErrReplaced) })
		run.Context, run.ends = ctx, func() { unhook(); cancel(nil) }
	}
	ctx := context.Context(run)
	for _, h := range d.leases {
		if most := h.target.rule.MaxHold; most > 0 {
			h.lease.HoldFor(most) // not before: the task may have waited for its next lock
		}
		h.outer = run.innermost
		ctx, run.innermost = h.lease.Bind(ctx), h
		h.lease.WhenEnds(h.ended)
	}
	// The timer may outlive the handler, and does nothing then.
	run.unwatch = context.AfterFunc(d.ctx, func() { time.AfterFunc(overdueGrace, run.reportOverdue) })
	d.running = run
	return ctx
}

// handlerRun is part of its handler's context.
type handlerRun struct {
	context.Context
	*facts

	innermost *heldLease
	leases    []*heldLease
	ends      func() // the context; nil: that is the task's
	unwatch   func() bool
	returned  atomic.Bool
}

func (r *handlerRun) Value(key any) any {
	if key == (runKey{}) {
		return r
	}
	return r.Context.Value(key)
}

func (r *handlerRun) end() {
	r.unwatch()
	if r.returned.Store(true); r.ends != nil {
		r.ends()
	}
}

type runKey struct{} // finds the handlerRun

// running returns the facts of the handler with that context; nil: it is none's.
func running(ctx context.Context) *facts {
	if run, _ := ctx.Value(runKey{}).(*handlerRun); run != nil {
		return run.facts
	}
	return nil
}

// overdueGrace is how long after the end of its context a handler may return without being reported as overdue.
const overdueGrace = 100 * time.Millisecond

// reportOverdue reports a handler that outlives its task's context.
func (r *handlerRun) reportOverdue() {
	if r.returned.Load() {
		return
	}
	r.worker.leave() // asynq has given it to another task
	cause := context.Cause(r.ctx)
	for _, h := range r.leases {
		r.guard.log.Warn("automutex: the handler still runs although its task's context has ended; the key stays taken "+
			"until it returns", r.about(h.target, "cause", cause)...)
		r.observe(h.target, Event{Kind: EventOverdue, Held: time.Since(h.takenAt), Err: cause})
	}
}

// ended is called when the lease ends. What reports a loss calls the user's functions, and so has a goroutine.
func (h *heldLease) ended(cause error) {
	if errors.Is(cause, lock.ErrLost) {
		after := time.Since(h.takenAt)
		go h.reportLost(cause, after)
	}
}

func (h *heldLease) reportLost(cause error, after time.Duration) {
	h.lossReported.Do(func() {
		h.lostAfter = after
		h.of.guard.log.Warn("automutex: the lease was lost before the handler returned",
			h.of.about(h.target, "cause", cause)...)
		h.of.observe(h.target, Event{Kind: EventLost, Held: after, Err: cause})
	})
}

// reportReleased reports the end of a lease: one EventReleased for each EventAcquired.
func (h *heldLease) reportReleased(began bool) {
	err := h.releaseErr
	switch {
	case !began && errors.Is(err, lock.ErrNotHeld):
	case errors.Is(h.endedBefore, lock.ErrLost):
		h.reportLost(h.endedBefore, h.heldFor) // does nothing if ended has reported it
	case errors.Is(err, lock.ErrNotHeld) && h.endedBefore == nil:
		// The key was deleted or evicted, and nobody noticed before.
		h.reportLost(fmt.Errorf("%w: %w", lock.ErrLost, err), h.heldFor)
	case errors.Is(err, lock.ErrBackend):
		h.of.guard.log.Warn("automutex: the key could not be released yet; this is tried until its deadline",
			h.of.about(h.target, "ttl", h.target.rule.TTL, "error", err)...)
		h.of.observe(h.target, Event{Kind: EventBackendError, Err: err})
	}
	h.of.observe(h.target, Event{Kind: EventReleased, Held: h.heldFor})
}

func innermostLease(ctx context.Context) *heldLease {
	if run, _ := ctx.Value(runKey{}).(*handlerRun); run != nil {
		return run.innermost
	}
	return nil
}

// Lease returns the lease of the handler whose context is ctx; of several leases, the one taken last. It returns nil
// and false outside of a guarded handler, and in a handler that runs without a lease under the policy [Allow].
func Lease(ctx context.Context) (*lock.Lease, bool) {
	if h := innermostLease(ctx); h != nil {
		return &h.shown, true
	}
	return nil, false
}

// LeaseOf is [Lease] for the rule with that name. Rules whose keys are equal for a task share one lease.
func LeaseOf(ctx context.Context, ruleName string) (*lock.Lease, bool) {
	for h := innermostLease(ctx); h != nil; h = h.outer {
		if h.target.isFor(ruleName) {
			return &h.shown, true
		}
	}
	return nil, false
}

// Fence returns the fence of [Lease]: a number that grows from run to run of the same key. Send it with each write of
// the handler, and have the receiver refuse lower numbers. The rule needs [Rule].Fence; otherwise the error Is
// [lock.ErrNotFenced]. Without a lease it Is [lock.ErrNotHeld]. Fence does no I/O.
func Fence(ctx context.Context) (int64, error) {
	lease, ok := Lease(ctx)
	if !ok {
		return 0, fmt.Errorf("automutex: Fence: %w: pass the context that a guarded handler got; under the policy Allow "+
			"it may have no lease", lock.ErrNotHeld)
	}
	return lease.Fence()
}

// holds: this delivery, or an outer Middleware of the same Guard.
func (d *delivery) holds(key string) bool {
	for _, h := range d.leases {
		if h.target.key == key {
			return true
		}
	}
	for h := innermostLease(d.ctx); h != nil; h = h.outer {
		if h.of.guard == d.guard && h.target.key == key {
			return true
		}
	}
	return false
}

// unheld are the locks that the task needs and does not hold yet.
func (d *delivery) unheld() iter.Seq[*target] {
	return func(yield func(*target) bool) {
		for i := range d.targets {
			if t := &d.targets[i]; !d.holds(t.key) && !yield(t) {
				return
			}
		}
	}
}

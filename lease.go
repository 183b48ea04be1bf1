package automutex

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// A lease belongs to its delivery as soon as it exists, before a function of the user can
// learn of it: every lease that the engine returns goes to keepLease at once. release,
// which run defers, releases all of them. So an Observe that
// panics costs its task an attempt, but leaves no lease behind.

// holding is what a delivery has taken.
type holding struct {
	leases  []*heldLease    // in the order taken
	room    [1]*heldLease   // for the lease of a task with one key
	without map[string]bool // Allow: the keys without whose locks the task runs
	// The next two are those of one run of the handler, which release ends.
	started time.Time     // zero: the handler has not started
	ended   chan struct{} // made when the handler starts; release closes it
}

// heldLease is one lease of a delivery.
type heldLease struct {
	guard            *Guard
	outer            *heldLease // what the handler's context has beside it: the lease taken before; nil for the first
	target           target
	lease            *engine.Lease
	shown            lock.Lease // the same, for handlers
	takenAt          time.Time
	waited           time.Duration // in line before, also parked
	lossReported     sync.Once
	stopWatching     func() bool // nil: the handler has not started
	acquiredObserved bool        // EventAcquired was observed, or Observe panicked on it

	// Set by release.
	endedBefore error         // Err of the lease before release; nil: it was held
	heldFor     time.Duration // from taken to release
	releaseErr  error
}

// keepLease adds the lease that the engine returned to those of the
// delivery. It turns an error of the engine into one of the Guard.
func (d *delivery) keepLease(t target, lease *engine.Lease, err error) error {
	if err != nil {
		return d.toBusyError(t, err)
	}
	if d.leases == nil {
		d.leases = d.room[:0]
	}
	h := &heldLease{guard: d.guard, target: t, lease: lease, takenAt: time.Now()}
	*inside.At(&h.shown) = lease
	d.leases = append(d.leases, h)
	return nil
}

// takeBackLast removes the lease that was taken last from those of the delivery. The
// caller releases it.
func (d *delivery) takeBackLast() *engine.Lease {
	last := len(d.leases) - 1
	lease := d.leases[last].lease
	d.leases = d.leases[:last]
	return lease
}

// observeAcquired observes that the lease that was taken last is held.
func (d *delivery) observeAcquired(t target) {
	h := d.leases[len(d.leases)-1]
	h.acquiredObserved = true
	waited, parked := h.takenAt.Sub(d.line.came), h.lease.Parked()
	h.waited = max(waited, parked)
	d.observe(Event{Kind: EventAcquired, Rule: t.rule.Name, Key: t.key, Waited: waited, Parked: parked})
}

// lostBeforeStart finds a lease that ended before the handler started, while the task waited for
// another lock or for Redis.
func (d *delivery) lostBeforeStart() obstacle {
	for _, h := range d.leases {
		if err := h.lease.Err(); err != nil {
			return d.report(obstacle{why: decide.LeaseLost, target: h.target,
				err: fmt.Errorf("automutex: rule %q: key %q was lost before the handler began: %w", h.target.rule.Name, h.target.key, err)})
		}
	}
	return obstacle{why: decide.Nothing}
}

// release ends all leases, the last one taken first, and then reports them. decision is what
// happens to the task. It also runs while a panic unwinds, and after d.ctx has ended: releases use
// only its values. A second call does nothing, unless the task has taken locks again.
func (d *delivery) release(decision decide.Decision) {
	if d.ended != nil {
		close(d.ended)
		d.ended = nil
	}
	leases, without, started := d.leases, d.without, !d.started.IsZero()
	d.leases, d.without, d.staying = nil, nil, false
	for _, h := range slices.Backward(leases) {
		if h.stopWatching != nil {
			h.stopWatching()
		}
		h.endedBefore = h.lease.Err()
		h.heldFor = time.Since(h.takenAt)
		if cooldown := h.target.rule.Cooldown; started && decision.What == decide.Done && cooldown > 0 {
			// It counts from the start of the handler. If it is over already, Cooldown only releases.
			_, h.releaseErr = h.lease.Release(d.ctx, engine.Ending{Cooldown: cooldown - time.Since(d.started)})
		} else {
			if !started {
				d.endUnrun(h, decision)
			}
			_, h.releaseErr = h.lease.Release(d.ctx, engine.Ending{})
		}
	}
	d.recordRuns(leases, without, decision)
	d.forgetArrivals(decision) // under Replace
	d.reportReleased(leases, started)
	d.started = time.Time{}
}

// handlerContext makes the context of the handler. It ends as replaceableContext does,
// and with cause lock.ErrLost when a lease is lost.
//
// Each lease has a watcher, which package context starts on a goroutine of its own when
// the handler's context ends, and not before. release stops those that have not started;
// the others end when the handler returns.
func (d *delivery) handlerContext() context.Context {
	c := &handlerContext{Context: d.replaceableContext(), delivery: &d.facts, innermost: innermostLease(d.ctx)}
	done := make(chan struct{}) // a late watcher of this run must not read the channel of the next
	d.ended = done
	for _, h := range d.leases {
		bound := h.lease.Bind(c.Context)
		h.stopWatching = context.AfterFunc(bound, func() { d.watch(bound, h, done) })
		h.outer = c.innermost
		c.Context, c.innermost = bound, h
	}
	return c
}

// handlerContext is the context of a handler, with what the Guard finds in it.
type handlerContext struct {
	context.Context // it is one

	delivery  *facts
	innermost *heldLease
}

// Value implements context.Context.
func (c *handlerContext) Value(key any) any {
	switch key.(type) {
	case leaseKey:
		return c.innermost
	case guardedKey:
		return guarded{c.delivery.guard, c.delivery.task}
	case lastAttemptKey:
		return c.delivery.place.isLast(c.delivery)
	}
	return c.Context.Value(key)
}

type lastAttemptKey struct{}

// LastAttempt reports whether asynq archives the task of the handler whose context is ctx if the handler fails; of an ErrorHandler, whether
// that was its last attempt. A task of a [Client] has one retry more by asynq.GetMaxRetry than it was enqueued with; LastAttempt goes by what was asked for.
func LastAttempt(ctx context.Context) bool {
	if last, ok := ctx.Value(lastAttemptKey{}).(bool); ok {
		return last
	}
	retried, ok := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	return ok && retried >= most
}

// overdueGrace is how long after the end of its context a handler may return without
// being reported as overdue.
const overdueGrace = 100 * time.Millisecond

// watch runs from the end of the handler's context until the handler returns. It reports the
// loss of the lease, and a handler that runs past the end of its task's context. Either may
// come first, or neither: the loss of another lease also ends the handler's context. The
// cause of bound, the handler's context with this lease, says why the lease was lost.
func (d *delivery) watch(bound context.Context, h *heldLease, handlerDone <-chan struct{}) {
	own := h.lease.Bind(context.WithoutCancel(d.ctx)) // ends with the lease and nothing else
	leaseEnded, taskEnded := own.Done(), d.ctx.Done()
	grace := time.NewTimer(time.Hour)
	grace.Stop()
	defer grace.Stop()
	for {
		select {
		case <-handlerDone:
			return // release reports a loss that was not reported yet
		case <-leaseEnded:
			leaseEnded = nil
			cause := context.Cause(own)
			if why := context.Cause(bound); errors.Is(why, lock.ErrLost) {
				cause = why // it may say more, such as that an operator broke the lock
			}
			if errors.Is(h.lease.Err(), lock.ErrLost) {
				d.reportLost(d.observeSafely, h, cause)
			}
		case <-taskEnded:
			taskEnded = nil
			grace.Reset(overdueGrace)
		case <-grace.C:
			select {
			case <-handlerDone:
				return
			default:
				d.reportOverdue(h)
			}
		}
	}
}

// reportOverdue logs and observes a handler that does not return although its task's
// context has ended.
func (d *delivery) reportOverdue(h *heldLease) {
	cause := context.Cause(d.ctx)
	d.guard.log.Warn("automutex: the handler still runs although its task's context has ended; the key stays taken until it returns",
		"rule", h.target.rule.Name, "key", h.target.key, "task", d.note, "cause", cause)
	d.observeSafely(Event{Kind: EventOverdue, Rule: h.target.rule.Name, Key: h.target.key, Held: time.Since(h.takenAt), Err: cause})
}

// reportLost logs and observes the loss of a lease, once. observe is d.observe on the
// worker's goroutine, d.observeSafely on others.
func (d *delivery) reportLost(observe func(Event), h *heldLease, cause error) {
	h.lossReported.Do(func() {
		d.guard.log.Warn("automutex: lease lost while the handler runs; its context is cancelled",
			"rule", h.target.rule.Name, "key", h.target.key, "task", d.note, "cause", cause)
		observe(Event{Kind: EventLost, Rule: h.target.rule.Name, Key: h.target.key, Held: time.Since(h.takenAt), Err: cause})
	})
}

// reportReleased logs and observes the end of leases, the last one taken first. When
// Observe panics for one lease, the others are still reported.
func (d *delivery) reportReleased(leases []*heldLease, started bool) {
	if len(leases) == 0 {
		return
	}
	h := leases[len(leases)-1]
	defer d.reportReleased(leases[:len(leases)-1], started)
	if h.acquiredObserved {
		// Exactly one for each EventAcquired, whatever else is reported.
		defer d.observe(Event{Kind: EventReleased, Rule: h.target.rule.Name, Key: h.target.key, Held: h.heldFor})
	}
	switch {
	case !started && errors.Is(h.releaseErr, lock.ErrNotHeld):
	case errors.Is(h.endedBefore, lock.ErrLost):
		d.reportLost(d.observe, h, h.endedBefore) // does nothing if the watcher has reported it
	case errors.Is(h.releaseErr, lock.ErrNotHeld) && h.endedBefore == nil:
		// The key was deleted or evicted, and nobody noticed before.
		d.reportLost(d.observe, h, fmt.Errorf("%w: %w", lock.ErrLost, h.releaseErr))
	case errors.Is(h.releaseErr, lock.ErrBackend):
		d.guard.log.Warn("automutex: the key could not be released; it frees itself at its deadline",
			"rule", h.target.rule.Name, "key", h.target.key, "task", d.note, "ttl", h.target.rule.TTL, "error", h.releaseErr)
		d.observe(Event{Kind: EventBackendError, Rule: h.target.rule.Name, Key: h.target.key, Err: h.releaseErr})
	}
}

type leaseKey struct{}

// innermostLease returns the lease taken last of those in ctx, or nil.
func innermostLease(ctx context.Context) *heldLease {
	h, _ := ctx.Value(leaseKey{}).(*heldLease)
	return h
}

// Lease returns the lease of the handler whose context is ctx; of several leases, the one
// taken last. It returns nil and false outside of a guarded handler, and in a handler that
// runs without a lease under the policy [Allow].
func Lease(ctx context.Context) (*lock.Lease, bool) {
	if h := innermostLease(ctx); h != nil {
		return &h.shown, true
	}
	return nil, false
}

// LeaseOf is [Lease] for the rule with that name. Rules whose keys are equal for a task share
// one lease.
func LeaseOf(ctx context.Context, ruleName string) (*lock.Lease, bool) {
	for h := innermostLease(ctx); h != nil; h = h.outer {
		if h.target.isFor(ruleName) {
			return &h.shown, true
		}
	}
	return nil, false
}

// Fence returns the fence of [Lease]: a number that grows from run to run of the same key.
// Send it with each write of the handler, and have the receiver refuse lower numbers. The rule
// needs [Rule].Fence; otherwise the error Is [lock.ErrNotFenced]. Without a lease it Is
// [lock.ErrNotHeld]. Fence does no I/O.
func Fence(ctx context.Context) (int64, error) {
	lease, ok := Lease(ctx)
	if !ok {
		return 0, fmt.Errorf("automutex: Fence: %w: pass the context that a guarded handler got; under the policy Allow it may have no lease", lock.ErrNotHeld)
	}
	return lease.Fence()
}

// holds reports whether the task holds the key: this delivery, or an outer Middleware of the same
// Guard, whose handler must not wait for itself.
func (d *delivery) holds(key string) bool {
	for _, h := range d.leases {
		if h.target.key == key {
			return true
		}
	}
	for h := innermostLease(d.ctx); h != nil; h = h.outer {
		if h.guard == d.guard && h.target.key == key {
			return true
		}
	}
	return false
}

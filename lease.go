package automutex

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/automutex/automutex/lock"
)

// stay is one lease of an attempt.
type stay struct {
	target target
	lease  *lock.Lease
	taken  time.Time
	alone  context.Context //nolint:containedctx // ends with the lease and nothing else
	lost   sync.Once       // the loss was told of
	unhook []func() bool   // stops the watchers
	told   bool            // EventAcquired was observed, or Observe panicked on it

	// Set by release.
	open  bool          // the lease had not ended before
	held  time.Duration // from taken to release
	ended error         // what the release answered
}

// A lease belongs to its attempt from the moment it exists, before any function
// of the user hears of it: own is the only way from a call of package lock to a
// lease, and release, which is deferred around the whole attempt, gives back
// whatever own was given. So an Observe that panics, on whichever event, costs
// its task an attempt and leaves no lease behind.

// own keeps the lease that a call of package lock returned, or makes the error
// the Guard's.
func (a *attempt) own(t target, lease *lock.Lease, err error) (*lock.Lease, error) {
	if err != nil {
		return nil, a.explain(t, err)
	}
	a.stays = append(a.stays, &stay{target: t, lease: lease, taken: time.Now(), alone: lease.Bind(context.WithoutCancel(a.ctx))})
	return lease, nil
}

// disown is for a lease, the last one taken, that the caller gives back itself.
func (a *attempt) disown() { a.stays = a.stays[:len(a.stays)-1] }

// tellAcquired observes that the last lease that was taken is held.
func (a *attempt) tellAcquired(t target, waited time.Duration) {
	s := a.stays[len(a.stays)-1]
	s.told = true
	a.observe(Event{Kind: EventAcquired, Rule: t.rule.Name, Key: t.key, Waited: waited, Parked: s.lease.Parked()})
}

// lostEarly is a lease that ended before the handler began, while the task was
// waiting for another or for Redis' answer: it has no turn. nil when there is none.
func (a *attempt) lostEarly() *stay {
	for _, s := range a.stays {
		if s.alone.Err() != nil {
			return s
		}
	}
	return nil
}

func (s *stay) loss() error {
	return fmt.Errorf("automutex: rule %q: key %q was lost before the handler began: %w",
		s.target.rule.Name, s.target.key, context.Cause(s.alone))
}

// bind makes the handler's context: it ends as replaceable does, and with cause
// lock.ErrLost when a lease is lost. Two watchers run for each lease, on
// goroutines of the context package that only exist once it has something to
// say; release unhooks them. The loss of a lease is watched by itself: it is
// told of also when the task's context, or another lease, ended before.
func (a *attempt) bind() context.Context {
	ctx := context.WithValue(a.replaceable(), passedKey{a.guard}, a.task)
	a.returned = make(chan struct{})
	for _, s := range a.stays {
		ctx = context.WithValue(s.lease.Bind(ctx), heldKey{}, &holding{guard: a.guard, stay: s, outer: held(ctx)})
		s.unhook = append(s.unhook,
			context.AfterFunc(s.alone, func() {
				if cause := context.Cause(s.alone); errors.Is(cause, lock.ErrLost) {
					a.tellLostBeside(s, cause)
				}
			}),
			context.AfterFunc(a.ctx, func() { a.tellOverdue(s) }))
	}
	return ctx
}

// overdueGrace is how long a handler may take to notice that its context ended
// before that is worth telling.
const overdueGrace = 100 * time.Millisecond

// tellOverdue logs and observes a handler that does not return although its
// task's context has ended. Its goroutine ends when the handler returns, or
// after the grace.
func (a *attempt) tellOverdue(s *stay) {
	grace := time.NewTimer(overdueGrace)
	defer grace.Stop()
	select {
	case <-a.returned:
		return
	case <-grace.C:
	}
	cause := context.Cause(a.ctx)
	a.guard.log.Warn("automutex: the handler runs past its task's end; the key stays taken until it returns",
		"rule", s.target.rule.Name, "key", s.target.key, "task", a.note, "cause", cause)
	a.observeBeside(Event{Kind: EventOverdue, Rule: s.target.rule.Name, Key: s.target.key, Held: time.Since(s.taken), Err: cause})
}

// tellLost logs and observes the loss of a lease, once.
func (a *attempt) tellLost(s *stay, cause error) { a.tellLostTo(a.observe, s, cause) }

// tellLostBeside is tellLost on a goroutine of the Guard's own.
func (a *attempt) tellLostBeside(s *stay, cause error) { a.tellLostTo(a.observeBeside, s, cause) }

func (a *attempt) tellLostTo(observe func(Event), s *stay, cause error) {
	s.lost.Do(func() {
		a.guard.log.Warn("automutex: lease lost while the handler runs; its context is cancelled",
			"rule", s.target.rule.Name, "key", s.target.key, "task", a.note, "cause", cause)
		observe(Event{Kind: EventLost, Rule: s.target.rule.Name, Key: s.target.key, Held: time.Since(s.taken), Err: cause})
	})
}

// tellReleased logs and observes the end of leases, last taken first. One on
// which Observe panics does not keep the others from being told.
func (a *attempt) tellReleased(stays []*stay) {
	if len(stays) == 0 {
		return
	}
	s := stays[len(stays)-1]
	defer a.tellReleased(stays[:len(stays)-1])
	if s.told {
		// Exactly one for each EventAcquired, whatever else there is to tell.
		defer a.observe(Event{Kind: EventReleased, Rule: s.target.rule.Name, Key: s.target.key, Held: s.held})
	}
	s.ended = hintClient(s.ended)
	switch {
	case errors.Is(s.ended, lock.ErrNotHeld) && s.open && !a.began.IsZero():
		// Found out only now: the key was deleted or evicted. (Not open:
		// told of before, or the handler unlocked the lease itself.)
		a.tellLost(s, fmt.Errorf("%w: %w", lock.ErrLost, s.ended))
	case errors.Is(s.ended, lock.ErrBackend):
		a.guard.log.Warn("automutex: the key could not be released; it frees itself at its deadline",
			"rule", s.target.rule.Name, "key", s.target.key, "task", a.note, "ttl", s.target.rule.TTL, "error", s.ended)
		a.observe(Event{Kind: EventBackendError, Rule: s.target.rule.Name, Key: s.target.key, Err: s.ended})
	}
}

// holding is what a handler's context knows of a lease.
type holding struct {
	guard *Guard
	stay  *stay
	outer *holding
}

type heldKey struct{}

func held(ctx context.Context) *holding {
	h, _ := ctx.Value(heldKey{}).(*holding)
	return h
}

// Lease is the lease that the handler of ctx runs under: the one taken last
// where there are several. false outside a guarded handler, or when the policy
// Allow let it run without.
func Lease(ctx context.Context) (*lock.Lease, bool) {
	if h := held(ctx); h != nil {
		return h.stay.lease, true
	}
	return nil, false
}

// LeaseOf is the lease of the rule with that name. Rules whose keys are equal
// for this task share one lease.
func LeaseOf(ctx context.Context, ruleName string) (*lock.Lease, bool) {
	for h := held(ctx); h != nil; h = h.outer {
		if h.stay.target.serves(ruleName) {
			return h.stay.lease, true
		}
	}
	return nil, false
}

// Fence is the fence of [Lease]: a number that grows from run to run of the
// same key. Hand it to what the handler writes to, and have it refuse lower
// ones.
func Fence(ctx context.Context) (int64, bool) {
	lease, ok := Lease(ctx)
	if !ok {
		return 0, false
	}
	return lease.Fence(), true
}

package automutex

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/automutex/automutex/lock"
)

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

// release gives back what is held, last taken first, and observes it when all is
// given back. It runs on the way out of a panic as well.
func (a *attempt) release() {
	if a.returned != nil {
		close(a.returned)
	}
	stays := a.stays
	a.stays = nil
	for _, s := range slices.Backward(stays) {
		for _, stop := range s.unhook {
			stop()
		}
		s.open = s.alone.Err() == nil
		s.held = time.Since(s.taken)
		if rest := s.target.rule.Cooldown - time.Since(a.began); a.succeeded && s.target.rule.Cooldown > 0 {
			s.ended = s.lease.Cooldown(a.ctx, rest)
		} else {
			s.ended = s.lease.Unlock(a.ctx)
		}
	}
	a.leaveArrivals()
	a.tellReleased(stays)
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

// observe completes an event and hands it to Config.Observe.
func (a *attempt) observe(e Event) {
	if a.guard.cfg.Observe == nil {
		return
	}
	e.Task, e.Queue, e.TaskID = a.task.Type(), a.queue, a.id
	a.guard.cfg.Observe(a.ctx, e)
}

// observeBeside is observe for goroutines of the Guard's own, where a panic of
// Observe would end the program: asynq, which turns panics into failed attempts,
// is not there. It is logged instead.
func (a *attempt) observeBeside(e Event) {
	defer func() {
		if p := recover(); p != nil {
			a.guard.log.Error("automutex: Config.Observe panicked", "event", string(e.Kind), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	a.observe(e)
}

package automutex

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"time"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
)

// replacement is the step of tasks under the policy Replace.
type replacement struct {
	*facts

	arrivals map[string]arrival // by key
	began    bool               // the task's handler has, in this delivery or an earlier attempt
	unwatch  func()
}

// arrival is when a task first came to a lock.
type arrival struct {
	ref  engine.Ref // of the lock
	note string     // under which the arrival is stored
	at   int64      // in us of Redis' clock; a later arrival has a higher number
}

func newReplacement(f *facts) step {
	if !slices.ContainsFunc(f.rules, func(c *compiledRule) bool { return c.Busy == Replace }) {
		return nil
	}
	f.mayStop()
	return &replacement{facts: f, arrivals: make(map[string]arrival, 1), began: f.retried > 0}
}

// request: the engine asks to stop on a goroutine of its own.
func (r *replacement) request(its *engine.Request, t *target) {
	if arrived, ok := r.arrivals[t.key]; ok {
		its.Arrival, its.OnStop = arrived.at, func() { r.askToStop(&wanted{t}) }
	}
}

func (r *replacement) look(at moment, t *target, _ error) *obstacle {
	switch {
	case at == begins:
		r.began = true
	case t == nil || t.rule.Busy != Replace:
	case at == comes:
		return r.arrive(t)
	case at == tries:
		r.askOlderToStop(t, r.arrivals[t.key])
	case at == stands:
		r.watch(t)
	case at == stood:
		r.unwatch()
	case at == takes: // a newer task may have come, and be done, since this one came
		if met := r.arrive(t); met.stops() || !r.isToStop() {
			return met
		}
		return &obstacle{why: decide.NoAnswer, target: t, err: ErrReplaced}
	case at == leaves: // it may have come in time before; at an error its next arrival is old
		_ = r.guard.engine.Forget(r.whole(), engine.Ref{Key: t.key}, r.note, 0, false)
	}
	return nothing
}

// arrive stores in Redis that the task has come: its age counts from then.
func (r *replacement) arrive(t *target) *obstacle {
	a, known := r.arrivals[t.key]
	if !known {
		a = arrival{ref: engine.Ref{Key: t.key, Limit: t.limit}, note: cmp.Or(r.note, rand.Text())}
	}
	at, overtaken, err := r.guard.engine.Arrive(r.whole(), a.ref, a.note)
	if err != nil {
		return &obstacle{why: decide.NoAnswer, target: t, err: err}
	}
	a.at = at
	if r.arrivals[t.key] = a; overtaken {
		r.askToStop(&wanted{t})
	}
	return nothing
}

// askOlderToStop does so if this task is among the newest, as many as hold the lock at once; else it stops this one.
// An error is ignored: the wait that follows asks the same Redis.
func (r *replacement) askOlderToStop(t *target, arrived arrival) {
	if overtaken, err := r.guard.engine.Stop(r.ctx, arrived.ref, arrived.at); err == nil && overtaken {
		r.askToStop(&wanted{t})
	}
}

// A waiting task repeats askOlderToStop, since a holder may just have taken the lock: first after askSoon, then ever
// later.
const (
	askSoon  = 50 * time.Millisecond
	askEvery = time.Second
)

// watch repeats askOlderToStop, since messages get lost and holders change. unwatch ends its goroutine, and does not
// wait for a request under way, since the deadline may be near: the engine's Close does.
func (r *replacement) watch(t *target) {
	arrived := r.arrivals[t.key] // not read by the goroutine: the worker writes the map
	ctx, cancel := context.WithCancel(r.ctx)
	r.unwatch = cancel
	go func() {
		interval := askSoon
		timer := time.NewTimer(interval)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			r.askOlderToStop(t, arrived)
			interval = min(2*interval, askEvery)
			timer.Reset(interval)
		}
	}()
}

// end tells Redis that the task has ended: a later one with its ID is new. If its handler has begun, it goes on to
// overtake older ones. The locks are released, so that no task waits for this.
func (r *replacement) end(e ending) {
	// At a shutdown asynq ends the context of a task too, and requeues it.
	requeued := e.decision.What == decide.Leave && r.guard.life.Closing.Err() != nil
	comesBack := r.note != "" && r.outer == nil && (requeued || !e.decision.Final(r.last))
	if e.lease != nil || comesBack {
		return
	}
	for _, a := range r.arrivals {
		_ = r.guard.engine.Forget(r.whole(), a.ref, a.note, a.at, r.began)
	}
}

package automutex

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/lock"
)

// replaceState belongs to the worker's goroutine, but for stopRequested, replacedAt and requestStop.
type replaceState struct {
	arrivals map[string]arrival // by key
	began    bool               // the task's handler has, in this delivery or an earlier attempt

	// stopRequested ends, with cause ErrReplaced, when a newer task first asks this one to stop, or has overtaken it.
	// It has no parent, so it need not be cancelled. replacedAt is that lock: set before, read only after.
	stopRequested context.Context // a signal
	cancel        context.CancelCauseFunc
	once          sync.Once
	replacedAt    target
}

// arrival is when a task first came to a lock.
type arrival struct {
	ref  engine.Ref // of the lock
	note string     // under which the arrival is stored
	at   int64      // in us of Redis' clock; a later arrival has a higher number
}

func newReplaceState(began bool) *replaceState {
	s := &replaceState{arrivals: make(map[string]arrival, 1), began: began}
	s.stopRequested, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// arrive stores in Redis that the task has come, for each lock under Replace: its age counts from then.
func (d *delivery) arrive() obstacle {
	for _, t := range d.targets {
		if t.rule.Busy.kind != policyReplace || d.holds(t.key) {
			continue
		}
		if err := d.arriveAt(t); err != nil {
			return d.report(d.refused(t, err))
		}
	}
	return nothing
}

func (d *delivery) arriveAt(t target) error {
	if d.replacing == nil {
		d.replacing = newReplaceState(d.retried > 0)
	}
	a, known := d.replacing.arrivals[t.key]
	if !known {
		a = arrival{ref: engine.Ref{Key: t.key, Limit: t.limit}, note: cmp.Or(d.note, rand.Text())}
	}
	at, overtaken, err := d.guard.engine.Arrive(d.whole(), a.ref, a.note)
	if err != nil {
		return err
	}
	a.at = at
	if d.replacing.arrivals[t.key] = a; overtaken {
		d.replacing.requestStop(t)
	}
	return nil
}

func (s *replaceState) stopBy(r *engine.Request, t target) {
	if arrived, ok := s.arrivals[t.key]; ok {
		r.Arrival, r.OnStop = arrived.at, func() { s.requestStop(t) }
	}
}

// The engine calls requestStop on a goroutine of its own, and the delivery when Redis reports a newer task.
func (s *replaceState) requestStop(t target) {
	s.once.Do(func() {
		s.replacedAt = t
		s.cancel(ErrReplaced)
	})
}

func (d *delivery) isReplaced() bool {
	return d.replacing != nil && d.replacing.stopRequested.Err() != nil
}

// replace asks older tasks to stop and waits in line. After an error, isReplaced reports whether a newer task has
// come.
func (d *delivery) replace(t target) error {
	err := d.ask(d.ctx, t, d.request(t))
	var busy *BusyError
	if errors.As(err, &busy) {
		w, notNow := d.waitOf(t), busy.SameTask || busy.Reason == lock.ReasonPaused
		switch {
		case notNow && !w.stays:
			return err
		case !notNow: // also of a closed gate: it may open too late for this task to stand in line
			if d.askOlderToStop(t, d.replacing.arrivals[t.key]); d.isReplaced() {
				return busy
			}
		}
		err = d.wait(t, w)
	}
	if err != nil {
		return err
	}
	// A newer task may have come, and be done, since this one came: then this one releases the lock.
	if err = d.arriveAt(t); err == nil && !d.isReplaced() {
		return nil
	}
	last := len(d.leases) - 1
	h := d.leases[last]
	d.leases = d.leases[:last]
	if _, failed := h.lease.Release(d.ctx, engine.Ending{}); errors.Is(failed, lock.ErrBackend) {
		d.backendError(t, failed) // the lease ends at its deadline
	}
	return cmp.Or(err, ErrReplaced)
}

// askOlderToStop does so if this task is among the newest, as many as hold the lock at once; else it stops this one.
// An error is ignored: the wait that follows asks the same Redis.
func (d *delivery) askOlderToStop(t target, arrived arrival) {
	if overtaken, err := d.guard.engine.Stop(d.ctx, arrived.ref, arrived.at); err == nil && overtaken {
		d.replacing.requestStop(t)
	}
}

// A waiting task repeats askOlderToStop after askFirst, since a holder may just have taken the lock, then ever later.
const (
	askFirst = 50 * time.Millisecond
	askEvery = time.Second
)

// watchWhileWaiting calls giveUp when a newer task asks this one to stop. Under Replace it repeats askOlderToStop,
// since messages get lost and holders change. stop ends its goroutine, and does not wait for a request under way,
// since the deadline may be near: the engine's Close does.
func (d *delivery) watchWhileWaiting(t target, giveUp func()) (stop func()) {
	if d.replacing == nil {
		return func() {}
	}
	unhook := context.AfterFunc(d.replacing.stopRequested, giveUp)
	arrived, replaces := d.replacing.arrivals[t.key] // not read by the goroutine: the worker writes the map
	if !replaces {
		return func() { unhook() } // t has another policy; a lock taken before has Replace
	}
	stopped := make(chan struct{}) // closed by stop
	go func() {
		interval := askFirst
		timer := time.NewTimer(interval)
		defer timer.Stop()
		for {
			select {
			case <-stopped:
				return
			case <-timer.C:
			}
			d.askOlderToStop(t, arrived)
			interval = min(2*interval, askEvery)
			timer.Reset(interval)
		}
	}()
	return func() {
		unhook()
		close(stopped)
	}
}

// replaceableContext is the parent of the handler's context. It ends with the task's, and with cause ErrReplaced when
// a newer task asks this one to stop.
func (d *delivery) replaceableContext() (ctx context.Context, end func()) {
	if d.replacing == nil {
		return d.ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(d.ctx)
	unhook := context.AfterFunc(d.replacing.stopRequested, func() { cancel(ErrReplaced) })
	return ctx, func() { unhook(); cancel(nil) }
}

func (d *delivery) revokeReplaced(met obstacle) error {
	e, at, name := Event{Kind: EventReplaced}, target{key: d.claim.key}, d.task.Type()
	if !d.claim.superseded {
		at = d.replacing.replacedAt
		e.Policy, name = at.rule.Busy, at.rule.Name
	}
	var err error
	if met.ran {
		err, e.Held = met.err, met.held
	} else {
		e.Waited = time.Since(d.arrived)
	}
	d.observe(at, e)
	text := fmt.Errorf("rule %q: key %q: %w", name, at.key, ErrReplaced)
	if err != nil {
		text = fmt.Errorf("%w: %w", text, err)
	}
	return &verdict{guard: d.guard, kind: revoked, err: text}
}

// forgetArrivals tells Redis that the task has ended: a later one with its ID is new. If its handler has begun, it
// goes on to overtake older ones. release calls it after the locks are released, so that no task waits for it.
func (d *delivery) forgetArrivals(decision decide.Decision) {
	if d.replacing == nil {
		return
	}
	d.replacing.began = d.replacing.began || !d.started.IsZero()
	// At a shutdown asynq ends the context of a task too, and requeues it.
	requeued := decision.What == decide.Leave && d.guard.life.Closing.Err() != nil
	if !decision.Final(d.last) || requeued {
		return
	}
	for _, a := range d.replacing.arrivals {
		_ = d.guard.engine.Forget(d.whole(), a.ref, a.note, a.at, d.replacing.began)
	}
}

package lock

import (
	"context"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/wire"
)

// The newest wins: a newer arrival at a lock may ask older holders and waiters to stop. The
// request is only a message: a holder keeps its lease until it releases it, and the newer
// one waits for that.
//
//	arrival, _, err := locker.Mutex("index:7", Note("edit 1042")).arrive(ctx)
//	m := locker.Mutex("index:7", Note("edit 1042"), onStop(arrival, cancel))
//	standing, err := m.askOlderToStop(ctx) // again each second while m.Lock waits

// arrivalKept is how long Redis stores an arrival after the last arrive with its note.
const arrivalKept = time.Hour

// onStop has f called when a newer arrival asks the holders and waiters of this handle to
// stop, see [Lock.askOlderToStop]. arrival is the handle's own, as arrive returned it. f
// usually cancels the context of the work. It may be called several times, and also just
// after the lease or the wait has ended. It runs on the goroutine that receives the messages
// for all locks of the Locker: it must neither block nor call the Locker. While the handle
// holds or waits, its Locker has a subscription.
func onStop(arrival int64, f func()) Option {
	return func(m *Lock) {
		if arrival <= 0 || f == nil {
			m.err = fmt.Errorf("lock: %q: OnStop(%d, f) wants an arrival, as Arrive gives it, and a function", m.name, arrival)
			return
		}
		m.arrival, m.onStop = arrival, f
	}
}

// arrive returns when the work with this handle's Note first came to this lock, and stores
// that on the first call. A later arrival has a higher number, and no two notes have the
// same. first is true if this call stored it. (If go-redis had to send the command twice,
// first is false.) Redis keeps the arrival until [Lock.forget], or for an hour after the
// last call, so that work that comes back keeps its age.
//
// The handle needs a Note of its own. After an error (ErrBackend) the arrival may be stored
// or not.
func (m *Lock) arrive(ctx context.Context) (arrival int64, first bool, err error) {
	reply, err := m.atArrivals(ctx, wire.ArriveScript, m.note, arrivalKept.Milliseconds())
	if err != nil {
		return 0, false, err
	}
	if arrival, first, err = wire.ParseArrive(reply); err != nil {
		return 0, false, exchange.Failed("arrive", m.arrivals(), err)
	}
	return arrival, first, nil
}

// goAway is arrive for work that will not come for that time: its arrival is stored for an hour after
// that. With onlyKnown it stores nothing for work that has no arrival. known is false then. A command that
// is sent twice has the effect, and the answer, of one.
func (m *Lock) goAway(ctx context.Context, away time.Duration, onlyKnown bool) (known bool, err error) {
	args := []any{m.note, arrivalKept.Milliseconds(), away.Milliseconds(), 0}
	if onlyKnown {
		args[3] = 1
	}
	reply, err := m.atArrivals(ctx, wire.ArriveScript, args...)
	if err != nil {
		return false, err
	}
	if known, err = wire.ParseAway(reply); err != nil {
		return false, exchange.Failed("arrive", m.arrivals(), err)
	}
	return known, nil
}

// forget deletes the arrival of this handle's Note: if the work comes again it is new. After
// an error (ErrBackend) the arrival may stay for an hour.
func (m *Lock) forget(ctx context.Context) error {
	reply, err := m.atArrivals(ctx, wire.ForgetScript, m.note)
	if err != nil {
		return err
	}
	if _, err := wire.CodeOf(reply, 1); err != nil {
		return exchange.Failed("forget", m.arrivals(), err)
	}
	return nil
}

// askOlderToStop asks older holders and waiters to stop, as many as must stop so that the
// handle is among the newest N, the slots of the lock. It returns how the handle stands. It
// asks nobody while a slot is free, if the handle is a holder itself, or if the handle is
// not among the newest. It never asks holders and waiters without OnStop. While nobody may
// start, since the gate is closed or the lock is paused, it asks waiters only.
//
// The request is a message, which may be lost, and new holders may come. So while the handle
// waits, call askOlderToStop about once a second. It needs OnStop. After an error
// (ErrBackend) some may have been asked.
func (m *Lock) askOlderToStop(ctx context.Context) (inside.Standing, error) {
	if m.err == nil && m.onStop == nil {
		return inside.First, fmt.Errorf("lock: %q: Stop without OnStop: nobody is older than what has no arrival", m.name)
	}
	if m.err != nil {
		return inside.First, m.err
	}
	n, err := m.locker.runner().Code(ctx, wire.StopScript, m.keys, []any{m.slots(), m.arrival}, int64(inside.BehindWaiters))
	return inside.Standing(n), err
}

// arrivals returns the Redis key of the arrivals at this lock, in the Cluster slot of the
// lock. It is a key of its own: the lock's key does not exist while the lock is idle.
func (m *Lock) arrivals() string { return m.keys[0] + ":arrivals" }

// atArrivals is operate on the key of the arrivals.
func (m *Lock) atArrivals(ctx context.Context, s *exchange.Script, args ...any) (any, error) {
	if m.err == nil && m.note == "" {
		return nil, fmt.Errorf("lock: %q: an arrival needs a Note, by which it is known again", m.name)
	}
	at := *m
	at.keys = []string{m.arrivals()}
	return at.operate(ctx, s, args)
}

// listen subscribes to messages if the lock has OnStop. Callers have added the lease to the
// renewer, which keeps the subscription for as long as it has the lease.
func (m *Lock) listen() {
	if m.onStop != nil {
		m.locker.wake.listen()
	}
}

// stoppable reports whether any lease has OnStop.
func (r *renewer) stoppable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.withOnStop > 0
}

// stop calls the function of OnStop of the waiter or holder with that token. A waiter that
// becomes a holder is both for a moment, so stop looks among the waiters first. It misses
// only a waiter that is not in the line yet. Callers hold nothing.
func (n *line) stop(token string) {
	n.mu.Lock()
	w := n.waiters[token]
	n.mu.Unlock()
	if w != nil {
		w.lease.lock.callOnStop()
		return
	}
	if le := n.locker.renewer.find(token); le != nil {
		le.lock.callOnStop()
	}
}

func (m *Lock) callOnStop() {
	if m.onStop != nil {
		life.CallUser(m.locker.log, "OnStop", m.onStop)
	}
}

// find returns the lease with that token, or nil.
func (r *renewer) find(token string) *Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leases[token]
}

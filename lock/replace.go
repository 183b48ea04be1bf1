package lock

import (
	"context"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
)

// The newest wins: whoever comes to a lock may ask those who came earlier to
// stop. Nobody is made to: a holder that is asked keeps its lease until it gives
// it back, and only then is there a slot for the newer one.
//
//	arrival, _, err := locker.Mutex("index:7", Note("edit 1042")).arrive(ctx)
//	m := locker.Mutex("index:7", Note("edit 1042"), onStop(arrival, cancel))
//	standing, err := m.askOlderToStop(ctx) // again each second while m.Lock waits

// arrivalKept is how long an arrival is known after it was last seen.
const arrivalKept = time.Hour

// onStop lets those who arrive after arrival ask holders and waiters of this
// handle to stop, see [Lock.askOlderToStop]: f is called then. It may be called several
// times, also when the lease or the wait is just over, on the goroutine that
// hears for all locks of the Locker: it must not block, nor call the Locker. What
// it does is up to it; cancelling the context of the work is the usual thing.
// While the handle holds or waits, its Locker has a subscription.
func onStop(arrival int64, f func()) Option {
	return func(m *Lock) {
		if arrival <= 0 || f == nil {
			m.err = fmt.Errorf("lock: %q: OnStop(%d, f) wants an arrival, as Arrive gives it, and a function", m.name, arrival)
			return
		}
		m.arrival, m.onStop = arrival, f
	}
}

// arrive tells when the one with this handle's Note first came to this lock: a
// number that is higher the later that was, and never the same for two notes.
// first is true when it came just now. It is known until [Lock.forget], or for
// an hour after it last arrived, so that whoever comes back keeps its place in
// time. (The client sends a call whose reply was lost again: then first is false.)
//
// The handle needs a Note that is its own. After an error (ErrBackend) the
// arrival may have been noted or not.
func (m *Lock) arrive(ctx context.Context) (arrival int64, first bool, err error) {
	reply, err := m.atArrivals(ctx, arriveScript, m.note, arrivalKept.Milliseconds())
	if err != nil {
		return 0, false, err
	}
	f := listOf(reply)
	arrival, first = f.num(0), f.num(1) == 1
	if err := f.err(reply); err != nil || arrival <= 0 {
		return 0, false, backendError("arrive", m.arrivals(), unexpected(reply))
	}
	return arrival, first, nil
}

// forget ends what arrive began: should the one with this note come again, it
// is new. On an error (ErrBackend) it may be known for an hour more.
func (m *Lock) forget(ctx context.Context) error {
	reply, err := m.atArrivals(ctx, forgetScript, m.note)
	if err != nil {
		return err
	}
	if _, err := codeOf(reply, 1); err != nil {
		return backendError("forget", m.arrivals(), err)
	}
	return nil
}

// askOlderToStop asks those who arrived earlier than the handle to stop, holders and
// waiters alike, as far as the handle needs it to be among the newest that hold
// (one of a mutex, N of a semaphore), and tells how it stands. Nobody is asked
// while a slot is free, nor when the handle is a holder itself or not among
// the newest. Holders and waiters without OnStop are left alone. While nobody may
// start, since the gate is closed or the lock is paused, only waiters are asked.
//
// Those who are asked hear of it by a message that may be lost, and others may
// come to hold: while the handle waits, call it about once a second. It needs
// OnStop. After an error (ErrBackend) some may have been asked.
func (m *Lock) askOlderToStop(ctx context.Context) (inside.Standing, error) {
	if m.err == nil && m.onStop == nil {
		return inside.First, fmt.Errorf("lock: %q: Stop without OnStop: nobody is older than what has no arrival", m.name)
	}
	n, err := m.operateCode(ctx, stopScript, []any{m.slots(), m.arrival}, int64(inside.BehindWaiters))
	return inside.Standing(n), err
}

// arrivals is the key of what Arrive notes, in one Cluster slot with the lock;
// not in the lock's own key, which is no key at all while the lock is idle.
func (m *Lock) arrivals() string { return m.keys[0] + ":arrivals" }

// atArrivals is operate on the arrivals.
func (m *Lock) atArrivals(ctx context.Context, s *exchange.Script, args ...any) (any, error) {
	if m.err == nil && m.note == "" {
		return nil, fmt.Errorf("lock: %q: an arrival needs a Note, by which it is known again", m.name)
	}
	at := *m
	at.keys = []string{m.arrivals()}
	return at.operate(ctx, s, args)
}

// listen makes sure that a lease that can be asked to stop hears of it. Called
// when the lease is with the renewer: the subscription lasts as long as that.
func (m *Lock) listen() {
	if m.onStop != nil {
		m.locker.wake.listen()
	}
}

// stoppable reports whether there is any lease that can be asked to stop.
func (r *renewer) stoppable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked > 0
}

// stop calls OnStop's function of the holder or waiter with that token: somebody newer
// asks it to stop. Callers hold nothing. A waiter that becomes a holder is both for a
// moment, so looking here first and there then misses it only before its first reply.
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
		m.locker.beside("OnStop", m.onStop)
	}
}

// find is the lease with that token, or nil.
func (r *renewer) find(token string) *Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leases[token]
}

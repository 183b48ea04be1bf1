package lock

import (
	"context"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/life"
)

// releaseAgainAfter is how long after it was abandoned a token is released again. The kernel
// goes on sending what was written to a closed socket, at growing intervals and on Linux for
// about two minutes. So after a network partition an ask can take the lock for work that
// ended long ago. (An ask that carries its own expiry would need a clock that client and
// server agree on.)
//
// The first two steps are for a token whose release failed: waiters for its slot would otherwise
// stand still for seconds after Redis is back. Other tokens begin at stepReleased.
var releaseAgainAfter = [...]time.Duration{
	time.Second / 4, time.Second, exchange.Timeout, 15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute,
}

// stepReleased is the first step of a token whose release succeeded.
const stepReleased = 2

// maxAbandoned is how many tokens wait for later releases at most. Beyond that, abandoned
// drops one that was released most often: its deadline frees what it may take.
const maxAbandoned = 1 << 14

// abandoned releases, again and again, tokens of which a copy of an ask may yet run: it was
// written and never replied to. It needs no goroutine while none is due: an alarm rings for
// the next one, and releases that are due at the same time share pipelines. Close releases
// each token a last time.
type abandoned struct {
	locker *Locker
	alarm  life.Alarm

	mu     sync.Mutex // guards the fields below; never held across I/O
	steps  [len(releaseAgainAfter)][]abandonedLease
	count  int // len of all steps together
	closed bool
}

// abandonedLease waits in the queue of its step. All entries of a queue wait for the same
// time, so the first is due first.
type abandonedLease struct {
	lease  *Lease
	since  time.Time
	step   int
	failed bool // its last release failed
}

func (e abandonedLease) due() time.Time { return e.since.Add(releaseAgainAfter[e.step]) }

func newAbandoned(l *Locker) *abandoned {
	a := &abandoned{locker: l}
	a.alarm.Ring = a.ring
	return a
}

// add has the token of le released later. failed means that its last release failed.
// Callers are counted in (see Life.Enter).
func (a *abandoned) add(le *Lease, failed bool) {
	e := abandonedLease{lease: le, since: time.Now(), failed: failed}
	if !failed {
		e.step = stepReleased
	}
	a.mu.Lock()
	closed := a.closed
	if !closed {
		a.queue(e)
	}
	a.mu.Unlock()
	switch {
	case !closed:
		a.alarm.Set(e.due())
	case !failed: // the last release, which Close waits for; not after a failure: Redis may be away
		_, _, _ = le.release(context.Background())
	}
}

// queue adds e to the queue of its step. Callers hold mu.
func (a *abandoned) queue(e abandonedLease) {
	if a.count == maxAbandoned {
		for i := len(a.steps) - 1; i >= 0; i-- {
			if len(a.steps[i]) > 0 {
				a.steps[i] = a.steps[i][1:]
				a.count--
				break
			}
		}
	}
	a.steps[e.step] = append(a.steps[e.step], e)
	a.count++
}

// takeDue removes the leases that are due at now, and returns when the next one is due.
func (a *abandoned) takeDue(now time.Time) (due []abandonedLease, next time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, queue := range a.steps {
		n := 0
		for n < len(queue) && !queue[n].due().After(now) {
			n++
		}
		due = append(due, queue[:n]...)
		if a.steps[i] = queue[n:]; n < len(queue) {
			next = life.Earliest(next, queue[n].due())
		} else {
			a.steps[i] = nil
		}
	}
	a.count -= len(due)
	return due, next
}

// ring releases the tokens that are due. The alarm calls it.
func (a *abandoned) ring() {
	if a.locker.life.Enter() != nil {
		return // close releases the rest
	}
	defer a.locker.life.Done()
	due, next := a.takeDue(time.Now())
	a.alarm.Set(next)
	exchange.InBatches(a.locker.conn, a.locker.life.Branch, due, abandonedLease.key, func(batch []abandonedLease) {
		a.release(batch)
		for _, e := range batch {
			if e.step++; !e.failed {
				e.step = max(e.step, stepReleased)
			}
			if e.step < len(releaseAgainAfter) {
				a.requeue(e)
			}
		}
	})
}

func (e abandonedLease) key() string { return e.lease.lock.Key() }

// requeue queues e for its next step, unless the Locker was closed meanwhile.
func (a *abandoned) requeue(e abandonedLease) {
	a.mu.Lock()
	if !a.closed {
		a.queue(e)
	}
	a.mu.Unlock()
	a.alarm.Set(e.due())
}

// release releases a batch, and sets failed in its entries.
func (a *abandoned) release(batch []abandonedLease) {
	places := map[*exchange.Script][]int{} // indexes in batch; pools have another script, so another pipeline
	calls := map[*exchange.Script][]*exchange.Call{}
	for i, e := range batch {
		s, args := e.lease.lock.kind.release(e.lease)
		places[s] = append(places[s], i)
		calls[s] = append(calls[s], &exchange.Call{Keys: e.lease.lock.keys, Args: args})
	}
	before := make([]int32, len(batch))
	for i, e := range batch {
		before[i] = e.lease.releases.Copies()
	}
	for s, calls := range calls {
		sent := time.Now()
		a.locker.conn.Pipeline(context.Background(), s, calls)
		for i, c := range calls {
			place := places[s][i]
			e := &batch[place]
			_, _, err := e.lease.noteRelease(before[place], c.Reply, c.Err, sent)
			e.failed = err != nil
		}
	}
}

// close releases each token a last time, on goroutines that Close waits for. It leaves out
// those whose last release failed, so that Close does not wait again for a Redis that is away.
func (a *abandoned) close() {
	a.mu.Lock()
	a.closed = true
	var last []abandonedLease
	for i, queue := range a.steps {
		for _, e := range queue {
			if !e.failed {
				last = append(last, e)
			}
		}
		a.steps[i] = nil
	}
	a.count = 0
	a.mu.Unlock()
	exchange.InBatches(a.locker.conn, a.locker.life.Branch, last, abandonedLease.key, a.release)
}

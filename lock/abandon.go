package lock

import (
	"context"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/exchange"
)

// laterReleases is when an abandoned token is released again, after it was given
// up. The kernel goes on sending what was written to a closed socket, in growing
// intervals and on Linux for about two minutes: after a partition an ask can take
// the lock for a task that is long done. (An ask that carries its own expiry would
// need a clock that client and server agree on.)
var laterReleases = [...]time.Duration{exchange.Timeout, 15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute}

// abandonedMost is how many tokens wait for later releases at most. With more, the
// ones that were released most often go: the deadline frees what they may take.
const abandonedMost = 1 << 14

// abandoned releases tokens of which a copy of an ask may yet run: it was written,
// and never answered. It needs no goroutine while none is due: an alarm rings for
// the next, and releases that are due together travel in pipelines. Close ends it
// with a last release of each.
type abandoned struct {
	locker *Locker
	alarm  alarm

	mu     sync.Mutex // guards the fields below; never held across I/O
	steps  [len(laterReleases)][]abandonedLease
	count  int // in all steps
	closed bool
}

// abandonedLease waits in the queue of its step. All in a queue wait for the same
// length, so the first is due first.
type abandonedLease struct {
	lease  *Lease
	since  time.Time
	step   int
	failed bool // its last release failed
}

func (e abandonedLease) due() time.Time { return e.since.Add(laterReleases[e.step]) }

func newAbandoned(l *Locker) *abandoned {
	a := &abandoned{locker: l}
	a.alarm.ring = a.ring
	return a
}

// add has a token released later. Callers are counted in.
func (a *abandoned) add(le *Lease, failed bool) {
	e := abandonedLease{lease: le, since: time.Now(), failed: failed}
	a.mu.Lock()
	closed := a.closed
	if !closed {
		a.queue(e)
	}
	a.mu.Unlock()
	switch {
	case !closed:
		a.alarm.set(e.due())
	case !failed: // Close waits for this one, and not twice for a Redis that is away
		_, _, _ = le.release(context.Background())
	}
}

// queue puts e into the queue of its step. Callers hold mu.
func (a *abandoned) queue(e abandonedLease) {
	if a.count == abandonedMost {
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

// take removes those that are due at now, and tells when the next is.
func (a *abandoned) take(now time.Time) (due []abandonedLease, next time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, queue := range a.steps {
		n := 0
		for n < len(queue) && !queue[n].due().After(now) {
			n++
		}
		due = append(due, queue[:n]...)
		if a.steps[i] = queue[n:]; n < len(queue) {
			next = earliest(next, queue[n].due())
		} else {
			a.steps[i] = nil
		}
	}
	a.count -= len(due)
	return due, next
}

func (a *abandoned) ring() {
	if a.locker.enter() != nil {
		return // close has the rest
	}
	defer a.locker.work.Done()
	due, next := a.take(time.Now())
	a.alarm.set(next)
	exchange.InBatches(a.locker.conn, a.locker.branch, due, abandonedLease.key, func(batch []abandonedLease) {
		a.release(batch)
		for _, e := range batch {
			if e.step++; e.step < len(laterReleases) {
				a.again(e)
			}
		}
	})
}

func (e abandonedLease) key() string { return e.lease.lock.Key() }

// again queues e for its next step, unless the Locker was closed meanwhile.
func (a *abandoned) again(e abandonedLease) {
	a.mu.Lock()
	if !a.closed {
		a.queue(e)
	}
	a.mu.Unlock()
	a.alarm.set(e.due())
}

// release releases a batch, and notes in it which failed.
func (a *abandoned) release(batch []abandonedLease) {
	places := map[*exchange.Script][]int{} // a pool has a script of its own, and so a pipeline
	calls := map[*exchange.Script][]*exchange.Call{}
	for i, e := range batch {
		s, args := e.lease.lock.kind.release(e.lease)
		places[s] = append(places[s], i)
		calls[s] = append(calls[s], &exchange.Call{Keys: e.lease.lock.keys, Args: args})
	}
	for s, calls := range calls {
		sent := time.Now()
		a.locker.conn.Pipeline(context.Background(), s, calls)
		for i, c := range calls {
			e := &batch[places[s][i]]
			_, _, err := e.lease.noteRelease(c.Reply, c.Err, sent)
			e.failed = err != nil
		}
	}
}

// close releases each a last time, on goroutines that Close waits for; not those
// whose last release failed, for Close shall not wait twice for a Redis that is away.
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
	exchange.InBatches(a.locker.conn, a.locker.branch, last, abandonedLease.key, a.release)
}

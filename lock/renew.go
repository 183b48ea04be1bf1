package lock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/wire"
)

// renewer renews all leases of a Locker, and decides which are lost. It needs no goroutine
// while nothing is due: an alarm rings for the earliest renewal or deadline. Renewals that
// are due at the same time share a pipeline.
//
// Lease.deadline is when a lease counts as lost. It counts from just before the ask or
// renewal was sent that moved it. So it is never later than the deadline that Redis stores
// or, with MinReplicas, that the replicas have. A renewal is due after a third of the
// lease's length, or firstRenewal after a grant. An extended lease is renewed each third of
// its TTL too: the renewal does not shorten the lease, and it notices that the lease was lost.
// After an error it is tried again until the deadline; then the lease is lost for good.
//
// A renewal without a reply may be stuck on its connection. A second one is then sent on
// another connection while the first is under way: see noteSent.
type renewer struct {
	locker *Locker
	alarm  life.Alarm

	mu         sync.Mutex        // guards the fields below and those of every Lease; never held across I/O
	leases     map[string]*Lease // by token
	schedule   schedule          // the same leases, by when each is due
	withOnStop int               // how many of them have OnStop
	closed     bool
}

func newRenewer(l *Locker) *renewer {
	r := &renewer{locker: l, leases: make(map[string]*Lease)}
	r.alarm.Ring = r.ring
	return r
}

// believe returns for how long after an ask or renewal for length was sent the lease can be
// relied on: a thousandth and 1 ms less than length, since clocks run at different speeds.
func believe(length time.Duration) time.Duration {
	return length - length/1000 - time.Millisecond
}

// add adds a lease that lasts for length from sent. MaxHold counts from now, since the reply
// may have taken seconds. value is what was taken out of a pool. A lease that a release has
// granted to a waiter lasts for maxGrant at most, so its first renewal is due soon: firstRenewal
// from now, or after a third of what is left of the lease if that is less.
func (r *renewer) add(le *Lease, fence int64, value string, sent time.Time, length time.Duration, granted bool) {
	r.mu.Lock()
	le.fence, le.value, le.takenAt = fence, value, sent
	if granted || le.lock.maxHold > 0 {
		le.takenAt = time.Now()
	}
	if le.member == "" {
		le.member = wire.MemberArg(le.body)
		if value != "" {
			le.member = wire.MemberArg(value + "|" + le.body)
		}
	}
	r.moveDeadline(le, sent, length)
	if granted && le.lock.renew {
		le.renewAt = le.takenAt.Add(min(firstRenewal, le.deadline.Sub(le.takenAt)/3))
	}
	if !le.isScheduled() {
		r.leases[le.token] = le
		if le.lock.onStop != nil {
			r.withOnStop++
		}
	}
	next := r.reschedule(le)
	r.mu.Unlock()
	r.alarm.Set(next)
}

// moveDeadline sets the lease's deadline to length after sent, less its margin, unless it is
// later already. The next renewal is due a third of length after sent, and of the TTL at
// most. A reply that did not move the deadline makes no renewal earlier: another one may have
// been sent since. Callers hold mu.
func (r *renewer) moveDeadline(le *Lease, sent time.Time, length time.Duration) {
	d := sent.Add(believe(length) - le.lock.marginOf(length))
	moved := d.After(le.deadline)
	if moved {
		le.deadline = d
	}
	length = min(length, le.lock.ttl)
	if at := sent.Add(believe(length) - length*2/3); le.lock.renew && (moved || at.After(le.renewAt)) {
		le.renewAt = at
	}
}

// nextDue returns when the renewer must next act on the lease. Callers hold mu.
func (r *renewer) nextDue(le *Lease) time.Time {
	t := le.deadline
	if le.lock.maxHold > 0 {
		t = life.Earliest(t, le.takenAt.Add(le.lock.maxHold))
	}
	if le.renewals < maxRenewals && !r.closed {
		t = life.Earliest(t, le.renewAt)
	}
	return t
}

// noteSent notes that a renewal of the lease is sent now. The next one is due if this one
// has no reply after a third of the time that is left, or of the TTL if that is less. go-redis
// sends that one on another connection, because this one's is in use. Callers hold mu.
func (r *renewer) noteSent(le *Lease, now time.Time) {
	le.renewals++
	le.renewAt = now.Add(max(min(le.deadline.Sub(now), le.lock.ttl)/3, renewTogether))
}

// reschedule puts a held lease into the schedule, at nextDue, and returns that time. Callers
// hold mu.
func (r *renewer) reschedule(le *Lease) time.Time {
	le.due = r.nextDue(le)
	r.schedule.set(le)
	return le.due
}

// drop ends a lease because its owner releases it now. It returns the state and the deadline
// that the lease had.
func (r *renewer) drop(le *Lease, now time.Time) (was leaseState, deadline time.Time) {
	r.mu.Lock()
	was, deadline = le.state, le.deadline
	if was == leaseHeld && !now.Before(deadline) {
		was = leaseLost // the alarm has not rung yet
	}
	le.state = leaseReleased
	r.remove(le)
	bound := le.bindings
	le.bindings = nil
	r.mu.Unlock()
	endAll(bound, context.Canceled)
	return was, deadline
}

// lose ends a lease because it is no longer held.
func (r *renewer) lose(le *Lease) {
	r.mu.Lock()
	bound := r.loseLocked(le)
	r.mu.Unlock()
	endAll(bound, ErrLost)
}

// expire ends a lease whose deadline has passed, but whose alarm has not rung yet: the reply
// to the ask came late, or the program was stopped for a while. A caller that learns that
// the lease is lost relies on it: no Extend takes it back. expire returns the state then.
func (r *renewer) expire(le *Lease) leaseState {
	r.mu.Lock()
	var bound []binding
	if !time.Now().Before(le.deadline) {
		bound = r.loseLocked(le)
	}
	state := le.state
	r.mu.Unlock()
	endAll(bound, ErrLost)
	return state
}

// loseBroken ends the lease with that token: somebody broke the lock.
func (r *renewer) loseBroken(token string) {
	r.mu.Lock()
	var bound []binding
	if le := r.leases[token]; le != nil {
		bound = r.loseLocked(le)
	}
	r.mu.Unlock()
	endAll(bound, fmt.Errorf("%w: it was broken", ErrLost))
}

func (r *renewer) loseLocked(le *Lease) []binding {
	if le.state != leaseHeld {
		return nil
	}
	le.state = leaseLost
	r.remove(le)
	bound := le.bindings
	le.bindings = nil
	return bound
}

// remove removes a lease from leases and schedule, if it is there. Callers hold mu.
func (r *renewer) remove(le *Lease) {
	if !le.isScheduled() {
		return
	}
	if le.lock.onStop != nil {
		r.withOnStop--
	}
	delete(r.leases, le.token)
	r.schedule.remove(le)
}

func (r *renewer) stateOf(le *Lease) leaseState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return le.state
}

// noteRenewed notes a renewal that succeeded. It returns false if the lease ended meanwhile.
func (r *renewer) noteRenewed(le *Lease, sent time.Time, length time.Duration) bool {
	r.mu.Lock()
	var bound []binding
	if !time.Now().Before(le.deadline) {
		bound = r.loseLocked(le) // Held has said so; the alarm has not rung yet
	}
	ok := le.state == leaseHeld
	var next time.Time
	if ok {
		r.moveDeadline(le, sent, length)
		next = r.reschedule(le)
	}
	r.mu.Unlock()
	endAll(bound, ErrLost)
	r.alarm.Set(next)
	return ok
}

const (
	// firstRenewal is how long after a grant the lease is renewed for the first time. A
	// holder that releases before needs no renewal, and so two commands in all.
	firstRenewal = 100 * time.Millisecond
	// maxRenewals is how many renewals of one lease are under way at most, so that one may
	// be stuck on a connection that hangs.
	maxRenewals = 2
	// renewTogether: renewals that are due within this time of each other share a pipeline.
	renewTogether = 20 * time.Millisecond
)

// overstayed reports whether the lease's MaxHold has passed.
func (le *Lease) overstayed(now time.Time) bool {
	return le.lock.maxHold > 0 && !now.Before(le.takenAt.Add(le.lock.maxHold))
}

// takeDue returns what is due: leases that have ended, which it has set to lost, with the
// contexts to end; and leases to renew. next is when to ring again.
func (r *renewer) takeDue(now time.Time) (ended map[*Lease][]binding, due []*Lease, next time.Time) {
	soon := now.Add(renewTogether)
	var early []*Lease // due within renewTogether, but with nothing to do yet: put back below
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.schedule) > 0 && r.schedule[0].due.Before(soon) {
		le := r.schedule[0]
		switch {
		case le.overstayed(now) || !now.Before(le.deadline):
			if ended == nil {
				ended = make(map[*Lease][]binding)
			}
			ended[le] = r.loseLocked(le)
		case !r.closed && le.renewals < maxRenewals && !le.renewAt.IsZero() && le.renewAt.Before(soon):
			r.noteSent(le, now)
			r.reschedule(le)
			due = append(due, le)
		case r.reschedule(le).Before(soon):
			r.schedule.remove(le)
			early = append(early, le)
		}
	}
	for _, le := range early {
		r.schedule.set(le)
	}
	if len(r.schedule) > 0 {
		next = r.schedule[0].due
	}
	return ended, due, next
}

// ring handles what is due: it ends leases that are lost, and renews others. The alarm calls
// it.
func (r *renewer) ring() {
	now := time.Now()
	ended, due, next := r.takeDue(now)
	r.alarm.Set(next)
	for le, bound := range ended {
		cause := ErrLost
		if le.overstayed(now) {
			cause = fmt.Errorf("%w: %q was held for its MaxHold of %s", ErrLost, le.lock.name, le.lock.maxHold)
		}
		endAll(bound, cause)
	}
	if len(due) > 0 && r.locker.life.Enter() == nil {
		defer r.locker.life.Done()
		exchange.InBatches(r.locker.conn, r.locker.life.Branch, due, func(le *Lease) string { return le.lock.Key() }, r.renew)
	}
}

// renew renews a batch of leases in one pipeline. If a lease is released meanwhile, its reply
// is ignored, and the script cannot bring the holder back. Of two renewals of one lease that
// are under way, each counts from when it was sent itself, in whatever order Redis runs
// them. If either finds that the holder is gone, the lease is lost.
func (r *renewer) renew(batch []*Lease) {
	sent := time.Now()
	calls := r.locker.sendRenewals(batch)
	for i, le := range batch {
		switch c := calls[i]; {
		case c.Err == nil && c.Reply == int64(wire.RenewLost):
			r.lose(le)
		case c.Err == nil && c.Reply == int64(wire.RenewRenewed):
			r.mu.Lock()
			le.renewals--
			if sent.After(le.renewedAt) {
				le.renewedAt = sent
			}
			r.mu.Unlock()
			r.noteRenewed(le, sent, le.lock.ttl)
		default: // an error, or an unexpected reply: try again
			r.retrySoon(le, sent)
		}
	}
}

// retrySoon has a failed renewal tried again soon, with jitter, until the deadline. It does
// nothing if a renewal that was sent later has succeeded.
func (r *renewer) retrySoon(le *Lease, sent time.Time) {
	pause := min(max(le.lock.ttl/20, 10*time.Millisecond), time.Second)
	pause += rand.N(pause) //nolint:gosec // jitter, no secret
	r.mu.Lock()
	le.renewals--
	if !le.renewedAt.After(sent) {
		le.renewAt = life.Earliest(le.renewAt, time.Now().Add(pause))
	}
	var next time.Time
	if le.state == leaseHeld {
		next = r.reschedule(le)
	}
	r.mu.Unlock()
	r.alarm.Set(next)
}

// close stops renewing. The alarm still rings at deadlines, so that contexts bound to leases
// that outlive the Locker end when the leases do.
func (r *renewer) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
}

// leastMargin is the least margin where the TTL allows it.
const leastMargin = 100 * time.Millisecond

// marginOf returns how long before a lease for length can be taken over it counts as lost
// here: a tenth of the TTL and at least 100 ms, but at most a fifth of the TTL. A lease that
// cannot be renewed ends that much before its deadline in Redis: the context of [Lease.Bind]
// and [Lock.Do] is cancelled with ErrLost then, and the work has that time to stop.
//
// Renewal is first tried after a third of the TTL, so a lease that is renewed in time never
// notices its margin. A lease that lasts less than the TTL, as one that was granted to a
// waiter does for its first 100 ms, has the same share of its own length as its margin.
func (m *Lock) marginOf(length time.Duration) time.Duration {
	margin := max(m.ttl/10, min(leastMargin, m.ttl/5))
	if length >= m.ttl {
		return margin
	}
	return time.Duration(float64(margin) * float64(length) / float64(m.ttl))
}

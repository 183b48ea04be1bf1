package lock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/exchange"
)

// renewer keeps all leases of a Locker alive, and says which are lost. It needs
// no goroutine while nothing is due: an alarm rings for the earliest renewal or
// deadline, and renewals that are due together travel in one pipeline.
//
// Who may believe what: a lease is ours until deadline, which counts from the
// moment before the ask or renewal that moved it was sent, so it is never later
// than the one Redis stores, nor, with MinReplicas, than the one they know. A
// renewal is due after a third of that length, and firstRenewal after a grant.
// Errors are tried again until the deadline; then the lease is lost for good.
//
// A renewal that is not answered may be stuck on its connection, so a second one
// follows on another while the first is still under way: see attempt.
type renewer struct {
	locker *Locker
	alarm  alarm

	mu       sync.Mutex        // guards the fields below and those of every Lease; never held across I/O
	leases   map[string]*Lease // by token
	schedule schedule          // the same ones
	asked    int               // leases among them that can be asked to stop
	closed   bool
}

func newRenewer(l *Locker) *renewer {
	r := &renewer{locker: l, leases: make(map[string]*Lease)}
	r.alarm.ring = r.ring
	return r
}

// believe is how long after sending an ask or renewal for length we may rely
// on it: a thousandth less, for clocks that do not run alike.
func believe(length time.Duration) time.Duration {
	return length - length/1000 - time.Millisecond
}

// add takes charge of a lease for length, counted from sent. MaxHold counts from
// now: sent may be long before a grant. value is what was taken out of a pool.
func (r *renewer) add(le *Lease, fence int64, value string, sent time.Time, length time.Duration) {
	r.take(le, fence, value, sent, length, false)
}

// addGranted is add for a lease that a release gave to a waiter. Such a lease
// lasts maxGrant at most, so its first renewal is due soon: firstRenewal from
// now, or after a third of what is left of it if that is less.
func (r *renewer) addGranted(le *Lease, fence int64, value string, sent time.Time, length time.Duration) {
	r.take(le, fence, value, sent, length, true)
}

func (r *renewer) take(le *Lease, fence int64, value string, sent time.Time, length time.Duration, granted bool) {
	r.mu.Lock()
	le.fence, le.value, le.heldArg = fence, value, memberArg(le.lock.kind.member(le.body, value))
	le.taken = time.Now()
	r.reach(le, sent, length)
	if granted && le.lock.renew {
		le.renewAt = le.taken.Add(min(firstRenewal, le.deadline.Sub(le.taken)/3))
	}
	if r.leases[le.token] == nil && le.lock.onStop != nil {
		r.asked++
	}
	r.leases[le.token] = le
	next := r.plan(le)
	r.mu.Unlock()
	r.alarm.set(next)
}

// reach moves the lease's deadline out to length after sent, less its margin.
// Callers hold mu.
func (r *renewer) reach(le *Lease, sent time.Time, length time.Duration) {
	margin := le.lock.marginOf(length)
	d := sent.Add(believe(length) - margin)
	if !d.After(le.deadline) {
		// Extended far beyond meanwhile: nothing is due before it nears its end.
		end := le.deadline.Add(le.lock.marginOf(le.lock.ttl))
		if at := end.Add(-le.lock.ttl * 2 / 3); le.lock.renew && at.After(le.renewAt) {
			le.renewAt = at
		}
		return
	}
	le.deadline = d
	if le.lock.renew {
		// A third of the way through its length, but never more than two
		// thirds of a TTL before its end: an extended lease rests. The margin
		// takes nothing from the first third.
		le.renewAt = d.Add(margin - min(length, le.lock.ttl)*2/3)
	}
}

// next is when the lease needs looking at. Callers hold mu.
func (r *renewer) next(le *Lease) time.Time {
	t := le.deadline
	if le.lock.maxHold > 0 {
		t = earliest(t, le.taken.Add(le.lock.maxHold))
	}
	if le.attempts < attemptsMost && !r.closed {
		t = earliest(t, le.renewAt)
	}
	return t
}

// attempt notes that a renewal of the lease is sent now. The next one is due when
// this one is unanswered after a third of what is left. go-redis sends that one
// on another connection, because this one's is in use. Callers hold mu.
func (r *renewer) attempt(le *Lease, now time.Time) {
	le.attempts++
	le.renewAt = now.Add(max(le.deadline.Sub(now)/3, together))
}

// plan notes in the schedule when a lease that is ours needs looking at next, and
// returns that time. Callers hold mu.
func (r *renewer) plan(le *Lease) time.Time {
	le.due = r.next(le)
	r.schedule.set(le)
	return le.due
}

// drop ends a lease because its owner releases it; it tells what it was.
func (r *renewer) drop(le *Lease) (was leaseState, deadline time.Time) {
	r.mu.Lock()
	was, deadline = le.state, le.deadline
	if was == held && !time.Now().Before(deadline) {
		was = lost // the alarm has only not rung yet
	}
	le.state = released
	r.remove(le)
	bound := le.bound
	le.bound = nil
	r.mu.Unlock()
	endAll(bound, context.Canceled)
	return was, deadline
}

// lose ends a lease because it is no longer ours.
func (r *renewer) lose(le *Lease) {
	r.mu.Lock()
	bound := r.loseLocked(le)
	r.mu.Unlock()
	endAll(bound, ErrLost)
}

// expire ends a lease whose deadline has passed and whose alarm has only not rung
// yet: the answer to the ask came late, or the program was stopped. Who is told
// that a lease is lost has to be right for good: no Extend takes it back.
func (r *renewer) expire(le *Lease) {
	r.mu.Lock()
	var bound []binding
	if !time.Now().Before(le.deadline) {
		bound = r.loseLocked(le)
	}
	r.mu.Unlock()
	endAll(bound, ErrLost)
}

// broken ends the lease with that token, which somebody took away.
func (r *renewer) broken(token string) {
	r.mu.Lock()
	var bound []binding
	if le := r.leases[token]; le != nil {
		bound = r.loseLocked(le)
	}
	r.mu.Unlock()
	endAll(bound, fmt.Errorf("%w: it was broken", ErrLost))
}

func (r *renewer) loseLocked(le *Lease) []binding {
	if le.state != held {
		return nil
	}
	le.state = lost
	r.remove(le)
	bound := le.bound
	le.bound = nil
	return bound
}

// remove takes a lease off the list; it may be off already. Callers hold mu.
func (r *renewer) remove(le *Lease) {
	if r.leases[le.token] != nil && le.lock.onStop != nil {
		r.asked--
	}
	delete(r.leases, le.token)
	r.schedule.remove(le)
}

func (r *renewer) stateOf(le *Lease) leaseState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return le.state
}

// fenceOf is the fence of a lease, 0 when it was not granted yet.
func (r *renewer) fenceOf(le *Lease) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return le.fence
}

// extended notes a renewal that Redis confirmed; false when the lease ended
// meanwhile.
func (r *renewer) extended(le *Lease, sent time.Time, length time.Duration) bool {
	r.mu.Lock()
	ok := le.state == held
	var next time.Time
	if ok {
		r.reach(le, sent, length)
		next = r.plan(le)
	}
	r.mu.Unlock()
	r.alarm.set(next)
	return ok
}

const (
	// firstRenewal is how long after a grant the lease is renewed for the first
	// time. A turn that is shorter is never renewed, and so costs two commands.
	firstRenewal = 100 * time.Millisecond
	// attemptsMost is how many renewals of one lease are under way at most. One
	// connection that hangs takes one of them.
	attemptsMost = 2
	// Renewals due within together of each other share a pipeline.
	together = 20 * time.Millisecond
)

// overstayed reports whether the lease's MaxHold has passed.
func (le *Lease) overstayed(now time.Time) bool {
	return le.lock.maxHold > 0 && !now.Before(le.taken.Add(le.lock.maxHold))
}

// collect takes what is due from the schedule: leases at their end, which are lost
// with it, and leases to renew. next is when to ring again.
func (r *renewer) collect(now time.Time) (ended map[*Lease][]binding, due []*Lease, next time.Time) {
	soon := now.Add(together)
	var early []*Lease // due within together, and nothing to do yet: they end then
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
		case !r.closed && le.attempts < attemptsMost && !le.renewAt.IsZero() && le.renewAt.Before(soon):
			r.attempt(le, now)
			r.plan(le)
			due = append(due, le)
		case r.plan(le).Before(soon):
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

// ring handles what is due: leases at their end are lost, others are renewed.
func (r *renewer) ring() {
	now := time.Now()
	ended, due, next := r.collect(now)
	r.alarm.set(next)
	for le, bound := range ended {
		cause := ErrLost
		if le.overstayed(now) {
			cause = fmt.Errorf("%w: %q was held for its MaxHold of %s", ErrLost, le.lock.name, le.lock.maxHold)
		}
		endAll(bound, cause)
	}
	if len(due) > 0 && r.locker.enter() == nil {
		defer r.locker.work.Done()
		exchange.InBatches(r.locker.conn, r.locker.branch, due, func(le *Lease) string { return le.lock.Key() }, r.renew)
	}
}

// renew sends one pipeline and notes what came of each lease. A lease in the
// batch may be released meanwhile: the answer is then ignored, and the script
// cannot bring it back, for its member is gone. Of two attempts that are under
// way each counts from when it was sent itself, in whatever order Redis runs
// them and the answers come; and a lease that either finds gone is gone for good.
func (r *renewer) renew(batch []*Lease) {
	calls := make([]*exchange.Call, len(batch))
	for i, le := range batch {
		calls[i] = &exchange.Call{Keys: le.lock.keys, Args: []any{le.heldArg, le.lock.ttlArg}}
	}
	sent := time.Now()
	r.locker.renewals(batch, calls)
	for i, le := range batch {
		switch c := calls[i]; {
		case c.Err == nil && c.Reply == int64(renewLost):
			r.lose(le)
		case c.Err == nil && c.Reply == int64(renewRenewed):
			r.mu.Lock()
			le.attempts--
			if sent.After(le.renewedAt) {
				le.renewedAt = sent
			}
			r.mu.Unlock()
			r.extended(le, sent, le.lock.ttl)
		default: // an error, or a reply that is neither: only Redis' own word counts
			r.later(le, sent)
		}
	}
}

// later tries a failed renewal again soon, with jitter, until the deadline; not
// when one that was sent after it has succeeded meanwhile.
func (r *renewer) later(le *Lease, sent time.Time) {
	pause := min(max(le.lock.ttl/20, 10*time.Millisecond), time.Second)
	pause += rand.N(pause) //nolint:gosec // jitter, no secret
	r.mu.Lock()
	le.attempts--
	if !le.renewedAt.After(sent) {
		le.renewAt = earliest(le.renewAt, time.Now().Add(pause))
	}
	var next time.Time
	if le.state == held {
		next = r.plan(le)
	}
	r.mu.Unlock()
	r.alarm.set(next)
}

// close stops renewing. Deadlines are still watched, so that contexts bound to
// leases that outlive the Locker end when the leases do.
func (r *renewer) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
}

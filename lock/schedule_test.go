package lock

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// Whatever is added, extended and dropped: the schedule has the leases that are
// held, each once, and the first of them is due first.
func TestScheduleHasTheEarliestLeaseFirst(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	r := l.renewer
	var held []*Lease
	for range 3000 {
		at := rand.N(len(held) + 1)
		switch {
		case at == len(held) || rand.N(3) == 0:
			le := l.Mutex("x", TTL(time.Hour+rand.N(time.Hour))).newLease()
			r.add(le, 1, "", time.Now(), le.lock.ttl, false)
			held = append(held, le)
		case rand.N(2) == 0:
			r.noteRenewed(held[at], time.Now(), rand.N(4*time.Hour))
		default:
			r.drop(held[at], time.Now())
			held[at] = held[len(held)-1]
			held = held[:len(held)-1]
		}
		redistest.Must(t, misplaced(r, held))
	}
}

// misplaced tells what is wrong with r's schedule where it has the leases that are held.
func misplaced(r *renewer, held []*Lease) error {
	r.mu.Lock()
	defer r.mu.Unlock() // before a failed test ends: Close needs it
	if len(r.schedule) != len(held) || len(r.leases) != len(held) {
		return fmt.Errorf("%d leases are held, %d known, %d scheduled", len(held), len(r.leases), len(r.schedule))
	}
	for _, le := range held {
		if r.schedule[le.place-1] != le || le.due.Before(r.schedule[0].due) || !le.due.Equal(r.nextDue(le)) {
			return fmt.Errorf("a lease due at %v is at place %d, after one due at %v", r.nextDue(le), le.place, r.schedule[0].due)
		}
	}
	return nil
}

// A lease that ends a moment from now does not keep the renewer from those that
// are due after it.
func TestRingPassesOverWhatIsNotDueYet(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	r := l.renewer
	ends, renews := l.Mutex("a", NoRenew()).newLease(), l.Mutex("b").newLease()
	for _, le := range []*Lease{ends, renews} {
		r.add(le, 1, "", time.Now(), le.lock.ttl, false)
	}
	now := time.Now()
	r.mu.Lock()
	ends.deadline, renews.renewAt = now.Add(time.Millisecond), now.Add(2*time.Millisecond)
	r.reschedule(ends)
	r.reschedule(renews)
	r.mu.Unlock()
	ended, due, next := r.takeDue(now)
	if len(ended) != 0 || len(due) != 1 || due[0] != renews || !next.Equal(ends.deadline) {
		t.Errorf("%d leases ended, %d to renew, next in %s", len(ended), len(due), next.Sub(now))
	}
}

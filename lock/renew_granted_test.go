package lock

import (
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// A granted lease lasts for seconds at most, so its first renewal is due within 150 ms,
// or after a third of what is left if that is less.
func TestRule08_FirstRenewalIsSoonAfterAGrant(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	l.renewer.close() // no renewal is sent, which would set when the next one is due
	for _, length := range []time.Duration{maxGrant, 240 * time.Millisecond} {
		le := l.Mutex(redistest.Name(t), TTL(time.Minute)).newLease()
		le.lock.locker.renewer.add(le, 7, "", time.Now(), length, true)
		l.renewer.mu.Lock()
		due, after := !le.renewAt.IsZero(), le.renewAt.Sub(le.takenAt)
		l.renewer.mu.Unlock()
		if most := min(150*time.Millisecond, length/3); !due || after > most {
			t.Errorf("the first renewal of a lease that was granted for %s is due after %s, want %s at most", length, after, most)
		}
	}
}

// Redis hangs for 4 s shortly after the grant, which is longer than a granted
// lease lasts before its first renewal.
func TestRule08_GrantedLeaseSurvivesAStall(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	const stall = 4 * time.Second
	s := redistest.StartReal(t)
	m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(30*time.Second))
	warm(t, m)
	first := mustTry(t, m)
	w := inLine(t, m, 1)
	calm(t, m.locker, 1)
	mustUnlock(t, first)
	le := w.got(t)
	ctx := le.Bind(t.Context())
	granted := time.Now()
	redistest.Eventually(t, soon, func() bool {
		return time.Until(le.Deadline()) > 2*maxGrant || time.Since(granted) >= maxGrant/3
	}, "the first renewal, which comes before a third of the grant is over")
	s.Pause(t)
	stopped := time.Now()
	redistest.Eventually(t, soon, func() bool { return time.Since(stopped) >= stall }, "the stall")
	s.Resume(t)
	if !le.Held() || ctx.Err() != nil {
		t.Fatalf("a lease of 30 s is lost after a stall of %s", stall)
	}
	mustUnlock(t, le)
}

// The connection that takes the first renewal of a granted lease hangs. A second
// renewal goes over another one in time.
func TestRule08_GrantedLeaseSurvivesAHangingConnection(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := far.Mutex(redistest.Name(t), TTL(30*time.Second))
		warm(t, m)
		first := mustTry(t, handle(near, m))
		w := inLine(t, m, 1)
		calm(t, far, 1)
		hung := p.Hold(isScript(wire.RenewScript, m), 1)
		defer hung.Release()
		mustUnlock(t, first)
		le := w.got(t)
		ctx := le.Bind(t.Context())
		redistest.Eventually(t, soon, func() bool { return time.Until(le.Deadline()) > 2*maxGrant || ctx.Err() != nil }, "a renewal")
		if hung.Count() == 0 {
			t.Fatal("no renewal met the connection that hangs")
		}
		if !le.Held() || ctx.Err() != nil {
			t.Fatal("a connection that hangs lost a lease of 30 s")
		}
		hung.Release()
		mustUnlock(t, le)
	})
}

// With every renewal of a lease under way unanswered, no third one is sent.
func TestRule08_AtMostTwoRenewalsAreUnderWay(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	le := l.Mutex("x", TTL(9*time.Second)).newLease()
	now := time.Now()
	r := l.renewer
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moveDeadline(le, now, 9*time.Second)
	r.noteSent(le, le.renewAt)
	if again := le.renewAt.Sub(now); again < 4*time.Second || again > 5*time.Second {
		t.Errorf("the second renewal is due %s after the lease began, want a third of what is left: 5 s", again)
	}
	r.noteSent(le, le.renewAt)
	if next := r.nextDue(le); !next.Equal(le.deadline) {
		t.Errorf("a third renewal is due %s before the deadline while two are under way", le.deadline.Sub(next))
	}
}

// Short turns of several waiters cost two commands each: nobody renews.
func TestRule08_ShortTurnsInLineAreNotRenewed(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		k := newTap(rdb)
		m := newLocker(t, rdb).Mutex(redistest.Name(t))
		warm(t, m)
		held := mustTry(t, m)
		waiters := make([]*attempt, 5)
		for i := range waiters {
			waiters[i] = inLine(t, m, i+1)
		}
		k.reset()
		late := 0
		for _, w := range waiters {
			mustUnlock(t, held)
			held = w.got(t)
			if time.Since(held.takenAt) > firstRenewal/2 {
				late++ // a busy machine
			}
		}
		mustUnlock(t, held)
		if n := k.count(wire.RenewScript); n > late {
			t.Errorf("%d renewals in %d turns, of which %d were long", n, len(waiters)+1, late)
		}
	})
}

// A renewal fails after one that was sent later has succeeded: nothing is due
// because of it.
func TestRule08_FailureOfAnOlderRenewalChangesNothing(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	m := l.Mutex(redistest.Name(t), TTL(30*time.Second))
	le := mustTry(t, m)
	r := l.renewer
	first := time.Now()
	r.mu.Lock()
	r.noteSent(le, first)
	r.noteSent(le, first)
	r.mu.Unlock()
	r.renew([]*Lease{le}) // the second attempt, which succeeds
	r.retrySoon(le, first)
	r.mu.Lock()
	defer r.mu.Unlock()
	if due := time.Until(le.renewAt); due < 5*time.Second || le.renewals != 0 {
		t.Errorf("due in %s with %d attempts under way, want about 10 s and none", due, le.renewals)
	}
}

package lock

import (
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

func TestMarginOfALease(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	for _, c := range []struct{ ttl, length, want time.Duration }{
		{30 * time.Second, 30 * time.Second, 3 * time.Second},
		{30 * time.Second, time.Hour, 3 * time.Second}, // extended
		{30 * time.Second, maxGrant, 300 * time.Millisecond},
		{600 * time.Millisecond, 600 * time.Millisecond, 100 * time.Millisecond},
		{inside.MinTTL, inside.MinTTL, 20 * time.Millisecond},
	} {
		if got := l.Mutex("x", TTL(c.ttl)).marginOf(c.length); got != c.want {
			t.Errorf("a lease of %s at a TTL of %s has a margin of %s, want %s", c.length, c.ttl, got, c.want)
		}
	}
}

// A lease that cannot be renewed ends here while Redis keeps it for others' sake.
func TestWorkHasTheMarginToStop(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(2*time.Second), NoRenew())
		le := mustTry(t, m)
		stored, _ := holds(t, le)
		ctx := le.Bind(t.Context())
		left := stored.Sub(serverNow(t, m)) - time.Until(le.Deadline())
		if want := m.marginOf(m.ttl); left < want-50*time.Millisecond {
			t.Errorf("the context ends %s before the lease does in Redis, want %s", left, want)
		}
		ends(t, ctx)
	})
}

// The margin does not move renewals: they are due after a third.
func TestMarginLeavesRenewalsAlone(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	le := l.Mutex("x", TTL(30*time.Second)).newLease()
	now := time.Now()
	l.renewer.mu.Lock()
	defer l.renewer.mu.Unlock()
	l.renewer.moveDeadline(le, now, 30*time.Second)
	if due := le.renewAt.Sub(now); (due - 10*time.Second).Abs() > 100*time.Millisecond {
		t.Errorf("the renewal is due after %s", due)
	}
}

package lock

import (
	"strings"
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
	for _, d := range []time.Duration{-1, 11 * time.Second} {
		if err := l.Mutex("x", TTL(30*time.Second), Margin(d)).err; err == nil || !strings.Contains(err.Error(), "Margin") {
			t.Errorf("Margin(%s): %v", d, err)
		}
	}
	for _, d := range []time.Duration{0, 10 * time.Second} {
		if m := l.Mutex("x", TTL(30*time.Second), Margin(d)); m.err != nil || m.marginOf(m.ttl) != d {
			t.Errorf("Margin(%s): %s, %v", d, m.marginOf(m.ttl), m.err)
		}
	}
}

// A lease that cannot be renewed ends here while Redis keeps it for others' sake.
func TestWorkHasTheMarginToStop(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, margin := range []time.Duration{unset, 500 * time.Millisecond} {
			m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(2*time.Second), NoRenew(), Margin(margin))
			le := mustTry(t, m)
			stored, _ := holds(t, le)
			ctx := le.Bind(t.Context())
			left := stored.Sub(serverNow(t, m)) - time.Until(le.Deadline())
			if want := m.marginOf(m.ttl); left < want-50*time.Millisecond {
				t.Errorf("the context ends %s before the lease does in Redis, want %s", left, want)
			}
			endsWithin(t, ctx, soon)
		}
	})
}

// The margin does not move renewals: they are due after a third.
func TestMarginLeavesRenewalsAlone(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	for _, margin := range []time.Duration{0, unset, 10 * time.Second} {
		le := l.Mutex("x", TTL(30*time.Second), Margin(margin)).newLease()
		now := time.Now()
		l.renewer.mu.Lock()
		l.renewer.reach(le, now, 30*time.Second)
		if due := le.renewAt.Sub(now); (due - 10*time.Second).Abs() > 100*time.Millisecond {
			t.Errorf("with a margin of %s the renewal is due after %s", margin, due)
		}
		l.renewer.mu.Unlock()
	}
}

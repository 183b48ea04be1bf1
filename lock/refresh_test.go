package lock

import (
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// A lease that was waited for through several refreshes is released once: each
// refresh has its answer, so no copy of an ask can run later.
func TestRefreshIsCountedAsAnswered(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		a := inLine(t, m, 1)
		last := func() (at time.Time) {
			l.line.mu.Lock()
			defer l.line.mu.Unlock()
			for _, w := range l.line.waiters {
				at = askedAt(w)
			}
			return at
		}
		for range 3 {
			before := last()
			redistest.Eventually(t, soon, func() bool { return last().After(before) }, "a refresh")
		}
		mustUnlock(t, held)
		le := a.got(t)
		if n := le.asks.Copies(); n != 0 {
			t.Errorf("%d asks count as unanswered after each was answered", n)
		}
		mustUnlock(t, le)
		l.abandoned.mu.Lock()
		defer l.abandoned.mu.Unlock()
		if n := l.abandoned.count; n != 0 || le.releases.MayRunYet() {
			t.Errorf("%d leases are released again later", n)
		}
	})
}

// A release after which no slot is free calls nobody: neither one that finds its
// token gone, nor one that leaves a cooldown behind.
func TestReleaseWithoutAFreeSlotCallsNobody(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t), func(o *Options) { o.call = answers(nil).call }).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		parkAll(t, m, "a", "b", "c")
		called := func(after string, want bool) {
			t.Helper()
			info, err := m.inspectAll(t.Context())
			redistest.Must(t, err)
			if (info.Called > 0) != want {
				t.Errorf("after %s %d are called", after, info.Called)
			}
		}
		_, wasHeld, err := m.newLease().release(t.Context())
		if err != nil || wasHeld {
			t.Fatal(wasHeld, err)
		}
		called("a release of a token that is gone", false)
		redistest.Must(t, held.Cooldown(t.Context(), time.Hour))
		called("a release with a cooldown", false)
		if _, err := m.BreakAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		held = mustTry(t, m)
		mustUnlock(t, held)
		called("a release that frees the slot", true)
		redistest.Must(t, m.Delete(t.Context()))
	})
}

package lock

import (
	"slices"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// A look while the slots are taken repeats calls and makes none: they would come
// in vain. When a slot is free it calls.
func TestALookCallsNobodyWhileTheSlotsAreTaken(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		look := func(want ...string) {
			t.Helper()
			if got := runs(t, m, wire.CallScript, []any{m.limit, 2, 10_000, "", 0}); !slices.Equal(got, want) {
				t.Errorf("called are %q, want %q; %s", got, want, dump(m))
			}
		}
		held := mustTry(t, m)
		parkAll(t, m, "a", "b")
		look()
		if called := releases(t, held, 1, time.Hour); !slices.Equal(called, []string{"a"}) {
			t.Errorf("the release calls %q", called)
		}
		le, err := m.TryLock(t.Context()) // overtakes it
		redistest.Must(t, err)
		look("a")
		releases(t, le, 0, time.Hour)
		look("a", "b")

		// As many as slots are free.
		m = newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 3)
		leases := []*Lease{mustTry(t, m), mustTry(t, m), mustTry(t, m)}
		parkAll(t, m, "c", "d", "e", "f")
		for _, le := range leases {
			releases(t, le, 0, time.Hour)
		}
		look("c", "d", "e")
	})
}

package lock_test

import (
	"sync/atomic"
	"testing"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// arrives makes a task that has arrived at a lock where the newest win, and counts who asks it to stop.
func arrives(t testing.TB, l *lock.Locker, name, note string) (m *lock.Lock, asked *atomic.Int32) {
	t.Helper()
	at, _, err := insiders.Arrive(t.Context(), l.Mutex(name, lock.Note(note)))
	redistest.Must(t, err)
	asked = new(atomic.Int32)
	return l.Mutex(name, lock.Note(note), insiders.OnStop(at, func() { asked.Add(1) })), asked
}

func stands(t testing.TB, m *lock.Lock, want inside.Standing) {
	t.Helper()
	if got, err := insiders.AskOlderToStop(t.Context(), m); err != nil || got != want {
		t.Fatalf("AskOlderToStop: %d, %v; want %d; %s", got, err, want, dump(m))
	}
}

// A newer one asks the holder, which keeps the lock for as long as it likes and is succeeded, and a waiter. An older one asks nobody.
// Who is asked when there are more, or the gate is closed, is in the engine's stories.
func TestNewest(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		near, far := twoProcesses(t, s)
		name := redistest.Name(t)
		old, oldAsked := arrives(t, near, name, "old")
		le := mustTry(t, old)
		middle, middleAsked := arrives(t, near, name, "middle")
		waits := inLine(t, middle, 1)
		young, youngAsked := arrives(t, far, name, "young")
		redistest.Eventually(t, soon, func() bool { // a subscription may not be there yet
			stands(t, young, inside.First)
			return oldAsked.Load() > 0 && middleAsked.Load() > 0
		}, "both asked to stop")
		if !le.Held() || !waits.pending() {
			t.Error("to be asked ended the lease, or the wait")
		}
		w := inLine(t, young, 2)
		stands(t, middle, inside.BehindWaiters)
		waits.cancel()
		wantBusy(t, waits.failed(t))
		mustUnlock(t, le)
		le = w.got(t)
		stands(t, old, inside.BehindHolders)
		if youngAsked.Load() > 0 {
			t.Error("the newest was asked")
		}
		mustUnlock(t, le)
		redistest.Must(t, insiders.Forget(t.Context(), old))
		if _, first, err := insiders.Arrive(t.Context(), old); !first || err != nil {
			t.Errorf("after Forget it is not new: %v", err)
		}
		free(t, old)
	})
}

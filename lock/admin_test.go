package lock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
)

func TestDelete(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, b := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		m := a.Mutex(redistest.Name(t), TTL(time.Minute))
		le := mustTry(t, m)
		ctx := le.Bind(t.Context())
		var waiters []*attempt
		for i := range 4 {
			waiters = append(waiters, inLine(t, handle([]*Locker{a, b}[i%2], m), i+1))
		}
		heard(t, m)
		calm(t, a, 2)
		calm(t, b, 2)
		redistest.Must(t, m.Delete(t.Context()))
		if n, err := raw(m).Exists(t.Context(), m.Key()).Result(); n != 0 || err != nil {
			t.Fatalf("Delete left the key: %d, %v; %s", n, err, dump(m))
		}
		ends(t, ctx)
		if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock of a deleted lock: %v, want ErrNotHeld", err)
		}

		// The next refresh, a second after the last, brings all of them back.
		for _, l := range []*Locker{a, b} {
			l.line.askAll()
		}
		for range waiters {
			redistest.Eventually(t, soon, func() bool {
				return slices.ContainsFunc(waiters, func(w *attempt) bool { return !w.pending() })
			}, "a waiter that comes back; %s", stringer(func() string { return dump(m) }))
			i := slices.IndexFunc(waiters, func(w *attempt) bool { return !w.pending() })
			mustUnlock(t, waiters[i].got(t))
			waiters = slices.Delete(waiters, i, i+1)
		}
		free(t, m, soon)
		if err := m.Delete(t.Context()); err != nil {
			t.Errorf("Delete of an idle lock: %v", err)
		}
	})
}

// Nothing but time brings the waiters of a deleted lock back.
func TestDeleteCostsWaitersAboutASecond(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		mustTry(t, m)
		w := inLine(t, handle(newLocker(t, s.Client(t)), m), 1)
		deleted := time.Now()
		redistest.Must(t, m.Delete(t.Context()))
		mustUnlock(t, w.got(t))
		if late := time.Since(deleted); late > turn.RefreshEvery+3*time.Second {
			t.Errorf("the waiter had the lock %s after the Delete", late)
		}
	})
}

func TestExistsAndWaiting(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		is := func(what string, exists bool, waiters int) {
			t.Helper()
			got, err1 := m.existsNow(t.Context())
			n, err2 := m.Waiting(t.Context())
			if got != exists || n != waiters || err1 != nil || err2 != nil {
				t.Errorf("%s: exists %v, %d waiting (%v, %v); want %v, %d", what, got, n, err1, err2, exists, waiters)
			}
		}
		is("idle", false, 0)
		le := mustTry(t, m)
		is("held", true, 0)
		w := inLine(t, m, 1)
		w2 := inLine(t, m, 2)
		is("waited for", true, 2)
		w2.cancel()
		w2.failed(t)
		mustUnlock(t, le)
		le = w.got(t)
		is("granted", true, 0)
		redistest.Must(t, le.Cooldown(t.Context(), 200*time.Millisecond))
		is("cooling down", true, 0)
		redistest.Eventually(t, soon, func() bool { ok, _ := m.existsNow(t.Context()); return !ok }, "the end of the cooldown")
		is("idle again", false, 0)
		// A waiter alone, as after a holder's deadline.
		holder, waiter := m.newLease(), m.newLease()
		mustAsk(t, m, holder, 0)
		mustAsk(t, m, waiter, time.Hour)
		if n := raw(m).ZRem(t.Context(), m.Key(), "h:"+holder.body).Val(); n != 1 {
			t.Fatal(dump(m))
		}
		is("only waited for", true, 1)

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := m.existsNow(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("Exists with an ended context: %v", err)
		}
	})
}

// A live semaphore grows and shrinks; nobody who holds it is hurt. Each caller goes by its own limit.
func TestChangingNOfALiveSemaphore(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, b := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		name := redistest.Name(t)
		two, four, one := a.Semaphore(name, 2), b.Semaphore(name, 4), b.Semaphore(name, 1)
		leases := []*Lease{mustTry(t, two), mustTry(t, two)}
		mustBeBusy(t, two)
		leases = append(leases, mustTry(t, four), mustTry(t, four)) // up
		var waiters []*attempt
		for i := range 3 {
			waiters = append(waiters, inLine(t, two, i+1))
		}
		if n, err := two.Available(t.Context()); n != 0 || err != nil {
			t.Errorf("Available: %d, %v", n, err)
		}
		if busy := mustBeBusy(t, four); busy.Place != 3 {
			t.Errorf("a newcomer is behind %d: %+v", busy.Place, busy)
		}
		// Down: nobody is granted until fewer are left than the waiter's own limit.
		for i, le := range leases {
			if free, err := leaseOf(le, one).Release(t.Context()); free != 0 || err != nil {
				t.Errorf("release %d: %d free, %v", i, free, err)
			}
			if n, want := band(t, one, "h:"), []int{3, 2, 2, 2}[i]; n != want {
				t.Errorf("%d holders after release %d, want %d; %s", n, i, want, dump(one))
			}
		}
		first, second := waiters[0].got(t), waiters[1].got(t)
		mustUnlock(t, first)
		mustUnlock(t, waiters[2].got(t))
		mustUnlock(t, second)
		free(t, two, soon)
	})
}

// leaseOf makes a lease release as a caller with m's limit does.
func leaseOf(le *Lease, m *Lock) *Lease {
	r := le.lock.locker.renewer
	r.mu.Lock() // the renewer looks at all leases, whoever made them
	defer r.mu.Unlock()
	le.lock = handle(le.lock.locker, m)
	return le
}

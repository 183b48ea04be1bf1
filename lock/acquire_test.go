package lock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

func TestRule01_AtMostNHolders(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 3)
		var leases []*Lease
		for range 3 {
			leases = append(leases, mustTry(t, m))
		}
		mustBeBusy(t, m)
		if n := band(t, m, "h:"); n != 3 {
			t.Fatalf("%d holders are stored, want 3; %s", n, dump(m))
		}

		// A set, not a count: what is released twice frees one slot.
		mustUnlock(t, leases[0])
		if err := leases[0].Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("second Unlock: %v, want ErrNotHeld", err)
		}
		if _, held, err := leases[0].release(t.Context()); held || err != nil {
			t.Errorf("a release sent twice: held %v, %v", held, err)
		}
		mustTry(t, m)
		mustBeBusy(t, m)
	})
}

func TestRule01_LoweringNTakesEffectAsHoldersLeave(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		three, one := l.Semaphore(name, 3), l.Semaphore(name, 1)
		var leases []*Lease
		for range 3 {
			leases = append(leases, mustTry(t, three))
		}
		w := inLine(t, one, 1)
		for _, le := range leases[:2] {
			if free, err := leaseOf(le, one).Release(t.Context()); free != 0 || err != nil {
				t.Fatalf("Release with N lowered to 1: %d free, %v; want 0", free, err)
			}
			if !w.pending() {
				t.Fatalf("a waiter with N = 1 got the lock beside another holder")
			}
			mustBeBusy(t, one)
		}
		mustUnlock(t, leases[2])
		mustUnlock(t, w.got(t))
	})
}

// A waiter goes by the N that it gave. One with a higher N stands behind those that came before it.
func TestRule01_RaisingNCountsForThoseWhoGiveIt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		one, three := l.Mutex(name), l.Semaphore(name, 3)
		held := mustTry(t, one)
		first, second, third := inLine(t, one, 1), inLine(t, three, 2), inLine(t, three, 3)
		mustBeBusy(t, three)
		if n := band(t, one, "h:"); n != 1 {
			t.Fatalf("%d holders beside a waiter with N = 1, want 1; %s", n, dump(one))
		}
		if free, err := leaseOf(held, three).Release(t.Context()); free != 0 || err != nil {
			t.Fatalf("Release: %d free, %v", free, err)
		}
		for _, w := range []*attempt{first, second, third} {
			w.got(t)
		}
		mustBeBusy(t, three)
	})
}

// Ask and join are one script: when the busy answer is there, so is the entry.
func TestRule04_AskAndJoinAreOneScript(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		k := newTap(rdb)
		m := newLocker(t, rdb).Mutex(redistest.Name(t))
		warm(t, m)
		holder, waiter := m.newLease(), m.newLease()
		if a := mustAsk(t, m, holder, turn.EntryLifetime); !a.Yours {
			t.Fatalf("the first ask is answered %+v", a)
		}
		k.reset()
		if a := mustAsk(t, m, waiter, turn.EntryLifetime); a.Yours || a.Place != 0 {
			t.Fatalf("the second ask is answered %+v", a)
		}
		if _, ok := stored(t, m)["e:"+waiter.body]; !ok || k.count(wire.AskScript) != 1 {
			t.Fatalf("after one ask (%d calls) the asker is not in line; %s", k.count(wire.AskScript), dump(m))
		}
	})
}

// Lock joins with its first ask, not only with a later one.
func TestRule04_LockJoinsWithItsFirstAsk(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		m := newLocker(t, rdb).Mutex(redistest.Name(t))
		warm(t, m)
		mustTry(t, m)
		k := newTap(rdb)
		inLine(t, m, 1)
		k.mu.Lock()
		defer k.mu.Unlock()
		if first := k.first["ask"]; len(first) != 3 || first[2] != turn.EntryLifetime.Milliseconds() {
			t.Errorf("the first ask of Lock is %v, want one that stays for %s", first, turn.EntryLifetime)
		}
	})
}

// Release and grant are one script: when the release is answered, the waiter is
// the holder, though its own process has not stirred.
func TestRule04_ReleaseAndGrantAreOneScript(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		holder, waiter := m.newLease(), m.newLease()
		mustAsk(t, m, holder, turn.EntryLifetime)
		mustAsk(t, m, waiter, turn.EntryLifetime)
		if free, held, err := holder.release(t.Context()); !held || free != 0 || err != nil {
			t.Fatalf("release: held %v, %d free, %v", held, free, err)
		}
		if _, ok := holds(t, waiter); !ok || band(t, m, "e:") != 0 || band(t, m, "d:") != 0 {
			t.Fatalf("the release did not grant; %s", dump(m))
		}
		audit(t, m)
	})
}

// mustAsk runs one ask and nothing else: what is behind it does not stir. lifetime is
// that of its line entry; 0: it does not join the line.
func mustAsk(t testing.TB, m *Lock, le *Lease, lifetime time.Duration) wire.Answer {
	t.Helper()
	if lifetime == 0 {
		a, err := m.ask(t.Context(), le, turn.Try)
		redistest.Must(t, err)
		audit(t, m)
		return a
	}
	a := mustJoin(t, m, le, lifetime)
	audit(t, m)
	return a
}

// mustJoin joins the line of m with an entry that lives for lifetime.
func mustJoin(t testing.TB, m *Lock, le *Lease, lifetime time.Duration) wire.Answer {
	t.Helper()
	s, args := m.kind.ask(le, turn.Join)
	args[2] = lifetime.Milliseconds()
	reply, err := m.locker.conn.Run(t.Context(), s, m.keys, args)
	redistest.Must(t, err)
	a, err := m.parseAnswer(reply)
	redistest.Must(t, err)
	return a
}

func TestBusyErrorTellsWhoHolds(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		a, b := newLocker(t, rdb, owner("alice:1")), newLocker(t, rdb)
		m := a.Mutex(redistest.Name(t), Note("task 17"), TTL(10*time.Second))
		mustTry(t, m)
		busy := mustBeBusy(t, handle(b, m))
		if busy.Name != m.name || busy.Holder != "alice:1" || busy.Note != "task 17" || busy.Waited != 0 {
			t.Errorf("busy: %+v", busy)
		}
		if busy.ExpiresIn <= 0 || busy.ExpiresIn > 10*time.Second+time.Millisecond {
			t.Errorf("busy expires in %s, want about 10s", busy.ExpiresIn)
		}
		for _, part := range []string{m.name, "alice:1"} {
			if !strings.Contains(busy.Error(), part) {
				t.Errorf("%q does not name %q", busy.Error(), part)
			}
		}
		inLine(t, handle(b, m), 1)
		if busy := mustBeBusy(t, handle(b, m)); busy.Place != 1 {
			t.Errorf("with one in line: place %d, want 1", busy.Place)
		}
	})
}

// Among several holders the one with the asker's own note is named.
func TestBusyErrorNamesTheHolderWithOurNote(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		notes := []string{"a", "b|%\n", "c"}
		for _, note := range notes {
			mustTry(t, l.Semaphore(name, 3, Note(note)))
		}
		for _, note := range notes {
			if busy := mustBeBusy(t, l.Semaphore(name, 3, Note(note))); busy.Note != note {
				t.Errorf("asked with note %q, told of %q", note, busy.Note)
			}
		}
	})
}

func TestLockWithAnEndedContext(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := m.Lock(ended)
		if wantBusy(t, err); !errors.Is(err, context.Canceled) {
			t.Errorf("Lock: %v, want it to be context.Canceled too", err)
		}
		if _, err := m.TryLock(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("TryLock: %v, want context.Canceled", err)
		}
		if err := m.Do(ended, func(context.Context) error { t.Error("Do ran its function"); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("Do: %v, want context.Canceled", err)
		}
		free(t, m, soon)
	})
}

func TestLockThatRunsOutOfTime(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t), owner("bob")).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		err := outOfTime(t, m, func(ctx context.Context) error { return second(m.Lock(ctx)) })
		busy := wantBusy(t, err)
		if !errors.Is(err, context.DeadlineExceeded) || busy.Holder != "bob" || busy.Waited <= 0 {
			t.Errorf("Lock: %v (%+v)", err, busy)
		}
		if n, _ := m.Waiting(t.Context()); n != 0 {
			t.Errorf("%d still in line; %s", n, dump(m))
		}
		mustUnlock(t, held)
		free(t, m, soon)
	})
}

package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/controls"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/parking"
	"github.com/automutex/automutex/internal/redistest"
)

// ownPrefix gives Lockers a prefix of the test's own: controls are shared by all of one.
func ownPrefix(t testing.TB) func(*Options) {
	prefix := redistest.Name(t)
	return func(o *Options) { o.Prefix = prefix }
}

// ownServer is for Lockers with the prefix of all tests, on a server of the test's own.
func ownServer(o *Options) { o.onControls = func([]Control) {} }

// knows waits until l obeys exactly those targets.
func knows(t testing.TB, l *Locker, targets ...string) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool {
		var known []string
		for _, c := range l.Controls().inForce() {
			known = append(known, c.Target)
		}
		return slices.Equal(known, targets)
	}, "controls for %q in force", targets)
}

func pause(t testing.TB, l *Locker, target string, until time.Time, why string) {
	t.Helper()
	if err := l.Controls().Pause(t.Context(), target, until, why); err != nil {
		t.Fatalf("Pause: %v", err)
	}
}

// pauseFor pauses it for that long at least: for longer if the machine was too busy to order that before its end.
func pauseFor(t testing.TB, l *Locker, target string, d time.Duration) (end time.Time) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool {
		end = time.Now().Add(d)
		d *= 2
		return l.Controls().Pause(t.Context(), target, end, "") == nil
	}, "a pause whose end is ahead")
	return end
}

func resume(t testing.TB, l *Locker, target string) {
	t.Helper()
	if err := l.Controls().Resume(t.Context(), target); err != nil {
		t.Fatalf("Resume: %v", err)
	}
}

func setLimit(t testing.TB, l *Locker, target string, n int) {
	t.Helper()
	if err := l.Controls().SetLimit(t.Context(), target, n, "a test"); err != nil {
		t.Fatalf("SetLimit: %v", err)
	}
}

// A paused target gives its lock to nobody; who holds it keeps it, its release grants
// nobody, and the line is served in order once it is resumed.
func TestControls_pause(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		operator := newLocker(t, s.Client(t), prefix, owner("alice"))
		l := newLocker(t, s.Client(t), prefix)
		m, other := l.Mutex("report", Parts("acme")), l.Mutex("mail", Parts("acme"))
		held := mustTry(t, m)
		first, second := inLine(t, m, 1), inLine(t, m, 2)

		pause(t, operator, "report", time.Time{}, "its data is repaired")
		knows(t, l, "report")
		if err := held.Extend(t.Context(), time.Minute); err != nil {
			t.Errorf("the holder lost its lease: %v", err)
		}
		mustUnlock(t, held)
		if holders, err := m.Holders(t.Context()); err != nil || len(holders) > 0 {
			t.Errorf("the release granted %v, %v; want nobody while paused", holders, err)
		}
		err := wantBusy(t, mustNotTry(t, m))
		if err.Reason != ReasonPaused || err.Pause == nil || err.Pause.By != "alice" || err.Pause.Why != "its data is repaired" || time.Since(err.Pause.Since) > time.Minute {
			t.Errorf("TryLock: %+v, want who paused it, why and since when", err)
		}
		for _, part := range []string{"paused until somebody resumes it", "alice", "its data is repaired"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("TryLock: %q does not say %q", err, part)
			}
		}
		if n, err := m.Available(t.Context()); n != 0 || err != nil {
			t.Errorf("Available is %d, %v while paused", n, err)
		}
		mustUnlock(t, mustTry(t, other))

		resume(t, operator, "report")
		mustUnlock(t, first.got(t))
		mustUnlock(t, second.got(t))
		free(t, m, soon)
	})
}

// mustNotTry is TryLock that must not take the lock; it gives the error.
func mustNotTry(t testing.TB, m *Lock) error {
	t.Helper()
	le, err := m.TryLock(t.Context())
	if err == nil {
		_ = le.Unlock(t.Context())
		t.Fatalf("TryLock took the lock; %s", dump(m))
	}
	return err
}

// A paused lock is not asked for at all: TryLock sends nothing.
func TestControls_pausedIsNotAskedFor(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		k := newTap(rdb)
		l := newLocker(t, rdb, ownPrefix(t))
		m := l.Mutex("report")
		pause(t, l, "report", time.Time{}, "")
		for range 10 {
			if err := wantBusy(t, mustNotTry(t, m)); err.Reason != ReasonPaused {
				t.Errorf("TryLock: %v, want paused", err)
			}
			if err := l.Controls().paused(t.Context(), m.Key()); !errors.Is(err, ErrBusy) {
				t.Errorf("Paused: %v, want ErrBusy", err)
			}
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.calls["ask"] != 0 {
			t.Errorf("a paused lock was asked for %d times", k.calls["ask"])
		}
	})
}

// Who is in line of a lock that is no key joins it all the same, and is served when
// the pause ends by itself.
func TestControls_waitsForTheEndOfAPause(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		m := l.Mutex("report")
		far := time.Now().Add(time.Hour)
		pause(t, l, "report", far, "")
		err := wantBusy(t, mustNotTry(t, m))
		if err.ExpiresIn <= 0 || err.ExpiresIn > time.Hour+time.Minute || !err.Pause.PausedUntil.Equal(far) {
			t.Errorf("TryLock: %+v, want the end of the pause", err)
		}
		w := inLine(t, m, 1)
		if ttl := raw(m).PTTL(t.Context(), m.Key()).Val(); ttl <= 0 {
			t.Errorf("the key of a paused lock has a TTL of %s", ttl)
		}
		end := pauseFor(t, l, "report", 500*time.Millisecond) // another end
		le := w.got(t)
		if early := time.Until(end); early > 0 {
			t.Errorf("got the lock %s before the end of the pause", early)
		}
		mustUnlock(t, le)
		knows(t, l)
	})
}

// What is parked keeps its place through a pause, and is called when it is resumed.
func TestControls_parked(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		called := make(chan string, 100)
		l := newLocker(t, s.Client(t), ownPrefix(t), func(o *Options) {
			o.call = func(_ context.Context, _, note string) inside.Fate { called <- note; return inside.FateComing }
		})
		m := l.Mutex("report", Note("task"))
		pause(t, l, "report", time.Time{}, "")
		busy := mustPark(t, m)
		if busy.Reason != ReasonPaused {
			t.Errorf("parked: %v, want paused", busy)
		}
		// It comes back by itself, and parks anew, in its place.
		if busy := mustPark(t, m); busy.Place != 0 {
			t.Errorf("parked again at place %d", busy.Place)
		}
		select {
		case note := <-called:
			t.Errorf("%s was called to a lock that is paused", note)
		case <-time.After(2 * parking.CheckEvery):
		}
		resume(t, l, "report")
		if note := come(t, called, "a call"); note != "task" {
			t.Errorf("%s was called", note)
		}
		mustUnlock(t, mustTry(t, m))
	})
}

// The control of a key wins over that of its scope; a limit of a mutex makes it a
// semaphore, and a lower one takes effect as holders leave.
func TestControls_limit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		m := l.Mutex("report", Parts("acme"))
		setLimit(t, l, "report", 2)
		one, two := mustTry(t, m), mustTry(t, m)
		mustNotTry(t, m)
		setLimit(t, l, "report|acme", 3)
		three := mustTry(t, m)
		mustNotTry(t, m)
		if n := m.slots(); n != 3 {
			t.Errorf("the limit is %d, want 3", n)
		}
		mustUnlock(t, mustTry(t, l.Mutex("report", Parts("other"))))

		setLimit(t, l, "report|acme", 1)
		mustUnlock(t, one)
		mustUnlock(t, two)
		mustNotTry(t, m)
		mustUnlock(t, three)
		mustUnlock(t, mustTry(t, m))

		redistest.Must(t, errors.Join(l.Controls().ClearLimit(t.Context(), "report|acme"), l.Controls().ClearLimit(t.Context(), "report")))
		held := mustTry(t, m)
		mustNotTry(t, m)
		mustUnlock(t, held)
		if n, err := raw(m).Exists(t.Context(), l.controls.Keys[0]).Result(); n != 0 || err != nil {
			t.Errorf("%d keys of controls are left, %v", n, err)
		}
	})
}

// Each other Locker obeys within 2 seconds, also where no message arrives and nobody
// of it waits, and a new one from its first call on.
func TestControls_inForceEverywhere(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		operator := newLocker(t, s.Client(t), prefix)
		p := redistest.NewProxy(t, s.Addr())
		p.DropMessages(true)
		idle, waits := newLocker(t, s.Client(t), prefix), newLocker(t, p.Client(t), prefix)
		for _, l := range []*Locker{idle, waits} {
			mustUnlock(t, mustTry(t, l.Mutex("report")))
		}
		pause(t, operator, "report", time.Time{}, "")
		for _, l := range []*Locker{idle, waits} {
			knows(t, l, "report")
		}
		if controls.ReadEvery > 1800*time.Millisecond {
			t.Errorf("the controls are read every %s: a change is to be in force within 2 s", controls.ReadEvery)
		}
		fresh := newLocker(t, s.Client(t), prefix)
		if err := wantBusy(t, mustNotTry(t, fresh.Mutex("report"))); err.Reason != ReasonPaused {
			t.Errorf("the first call of a new Locker: %v, want paused", err)
		}
	})
}

// A Locker that is subscribed reads the controls on a message, and not at the next turn.
func TestControls_messages(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		operator, l := newLocker(t, s.Client(t), prefix), newLocker(t, s.Client(t), prefix)
		held := mustTry(t, l.Mutex("busy"))
		w := inLine(t, l.Mutex("busy"), 1)
		redistest.Eventually(t, soon, func() bool {
			counts, err := s.Client(t).PubSubNumSub(t.Context(), l.controls.Channel).Result()
			return err == nil && (counts[l.controls.Channel] > 0 || s.Kind() == redistest.KindCluster)
		}, "a subscription")
		redistest.Eventually(t, soon, func() bool {
			began := time.Now()
			pause(t, operator, "report", time.Time{}, "")
			for time.Since(began) < controls.ReadEvery/3 && len(l.Controls().inForce()) == 0 {
				time.Sleep(time.Millisecond)
			}
			in := len(l.Controls().inForce()) == 1
			resume(t, operator, "report")
			knows(t, l)
			return in
		}, "a change that is in force before the next turn")
		mustUnlock(t, held)
		mustUnlock(t, w.got(t))
	})
}

// Operators who change the same and other targets at the same time lose nothing: the
// pause and the limit of each target are there in the end.
func TestControls_manyOperators(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		l := newLocker(t, s.Client(t), prefix)
		const operators, targets = 4, 5
		var wg sync.WaitGroup
		for range operators {
			its := newLocker(t, s.Client(t), prefix).Controls()
			redistest.Go(&wg, func() {
				for i := range targets {
					target := fmt.Sprintf("scope%d", i)
					err := errors.Join(its.Pause(t.Context(), target, time.Time{}, "p"), its.SetLimit(t.Context(), target, i+1, "l"))
					if err != nil {
						t.Errorf("%s: %v", target, err)
					}
				}
			})
		}
		wg.Wait()
		list, err := l.Controls().List(t.Context())
		if err != nil || len(list) != targets {
			t.Fatalf("%v, %v; want %d targets", list, err, targets)
		}
		for i, c := range list {
			if !c.Paused || c.Limit != i+1 || c.Target != fmt.Sprintf("scope%d", i) {
				t.Errorf("%+v: want it paused, with limit %d", c, i+1)
			}
		}
		resume(t, l, "scope0")
		list, err = l.Controls().List(t.Context())
		if err != nil || list[0].Paused || list[0].Limit != 1 || list[0].Why != "l" {
			t.Errorf("%+v, %v; want the limit, and its reason, to stay", list[0], err)
		}
	})
}

// Under HashKeys a readable key is a target too: it stands for the key with the hash.
func TestControls_readableKeyWithHashKeys(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t), func(o *Options) { o.HashKeys = "a secret of more than 16 bytes" })
		m, other := l.Mutex("report", Parts("acme", "a b")), l.Mutex("report", Parts("acme"))
		for _, target := range []string{"report|acme|a%20b", m.Key()} {
			pause(t, l, target, time.Time{}, "")
			if err := wantBusy(t, mustNotTry(t, m)); err.Reason != ReasonPaused {
				t.Errorf("%s: %v, want paused", target, err)
			}
			mustUnlock(t, mustTry(t, other))
			resume(t, l, "report|acme|a%20b")
			mustUnlock(t, mustTry(t, m))
		}
	})
}

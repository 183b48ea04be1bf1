package lock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// knows waits until l obeys exactly those targets.
func knows(t testing.TB, l *lock.Locker, targets ...string) {
	t.Helper()
	eventually(t, func() bool {
		var known []string
		if state := engineOf(l).Controls().Latest(); state != nil {
			for _, c := range state.Controls() {
				known = append(known, c.Target)
			}
		}
		return slices.Equal(known, targets)
	}, "controls for %q in force", targets)
}

func pause(t testing.TB, l *lock.Locker, target, why string) {
	t.Helper()
	redistest.Must(t, l.Controls().Pause(t.Context(), target, time.Time{}, why))
}

// pauseFor pauses it for that long at least: for longer if the machine was too busy to order that before its end.
func pauseFor(t testing.TB, l *lock.Locker, target string, d time.Duration) (end time.Time) {
	t.Helper()
	eventually(t, func() bool {
		end = time.Now().Add(d)
		d *= 2
		return l.Controls().Pause(t.Context(), target, end, "") == nil
	}, "a pause whose end is ahead")
	return end
}

func resume(t testing.TB, l *lock.Locker, target string) {
	t.Helper()
	redistest.Must(t, l.Controls().Resume(t.Context(), target))
}

func setLimit(t testing.TB, l *lock.Locker, target string, n int) {
	t.Helper()
	redistest.Must(t, l.Controls().SetLimit(t.Context(), target, n, "a test"))
}

func mustBePaused(t testing.TB, m *lock.Lock) *lock.BusyError {
	t.Helper()
	busy := mustBeBusy(t, m)
	if busy.Reason != lock.ReasonPaused || busy.Pause == nil {
		t.Fatalf("TryLock of %s: %v, want that it is paused", m.Key(), busy)
	}
	return busy
}

// A paused target gives its lock to nobody; who holds it keeps it, its release grants nobody, and the line is served in
// order once it is resumed.
func TestControls_pause(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		prefix, rdb, hook := ownPrefix(t), s.Client(t), &redistest.FailHook{}
		operator, l := lockerOn(t, s, prefix, owner("alice")), newLocker(t, rdb, prefix)
		m, other := l.Mutex("report", lock.Parts("acme")), l.Mutex("mail", lock.Parts("acme"))
		held := mustTry(t, m)
		pause(t, operator, "report", "its data is repaired")
		knows(t, l, "report")
		first, second := inLine(t, m, 1), inLine(t, m, 2) // later: an earlier ask may come after the release
		if err := held.Extend(t.Context(), time.Minute); err != nil {
			t.Errorf("the holder lost its lease: %v", err)
		}
		mustUnlock(t, held)
		wantHeld(t, m, 0)
		busy := mustBePaused(t, m)
		if p := busy.Pause; p.By != "alice" || p.Why != "its data is repaired" || time.Since(p.Since) > time.Minute {
			t.Errorf("TryLock: %+v, want who paused it, why and since when", p)
		}
		for _, part := range []string{"paused until somebody resumes it", "alice", "its data is repaired"} {
			if !strings.Contains(busy.Error(), part) {
				t.Errorf("TryLock: %q does not say %q", busy, part)
			}
		}
		wantAvailable(t, m, 0)
		takesAndUnlocks(t, other)
		once, asked := l.Mutex("report", lock.Parts("nobody waits")), atomic.Int64{} // it is not asked for at all
		hook.Before(func(cmd redis.Cmder) error {
			if touching(once)(cmd) {
				asked.Add(1)
			}
			return nil
		})
		rdb.AddHook(hook)
		mustBePaused(t, once)
		if pause := engineOf(l).Controls().PauseOf(once.Key()); pause == nil || asked.Load() > 0 {
			t.Errorf("PauseOf: %v, want a pause; asked for %d times", pause, asked.Load())
		}

		resume(t, operator, "report")
		mustUnlock(t, first.got(t))
		mustUnlock(t, second.got(t))
		free(t, m)
	})
}

// Who is in line of a paused lock is served when the pause ends by itself.
func TestControls_waitsForTheEndOfAPause(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		l := lockerOn(t, s, ownPrefix(t))
		m := l.Mutex("report")
		far := time.Now().Add(time.Hour)
		redistest.Must(t, l.Controls().Pause(t.Context(), "report", far, ""))
		if busy := mustBePaused(t, m); busy.ExpiresIn <= 0 || busy.ExpiresIn > time.Hour+time.Minute ||
			!busy.Pause.PausedUntil.Equal(far) {
			t.Errorf("TryLock: %+v, want the end of the pause", busy)
		}
		w := inLine(t, m, 1)
		end := pauseFor(t, l, "report", 500*time.Millisecond) // another end
		le := w.got(t)
		if early := time.Until(end); early > 0 {
			t.Errorf("got the lock %s before the end of the pause", early)
		}
		mustUnlock(t, le)
		knows(t, l)
	})
}

// The control of a key wins over that of its scope; a limit of a mutex makes it a semaphore, and a lower one takes
// effect as holders leave.
func TestControls_limit(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		l := lockerOn(t, s, ownPrefix(t))
		m := l.Mutex("report", lock.Parts("acme"), lock.Fenced())
		setLimit(t, l, "report", 2)
		one, two := mustTry(t, m), mustTry(t, m)
		mustNotTry(t, m)
		setLimit(t, l, "report|acme", 3)
		three := mustTry(t, m)
		mustNotTry(t, m)
		if a, b, c := fenceOf(t, one), fenceOf(t, two), fenceOf(t, three); a >= b || b >= c {
			t.Errorf("fences %d, %d, %d in the order of the grants", a, b, c)
		}
		takesAndUnlocks(t, l.Mutex("report", lock.Parts("other")))

		setLimit(t, l, "report|acme", 1)
		mustUnlock(t, one)
		mustUnlock(t, two)
		mustNotTry(t, m)
		mustUnlock(t, three)
		takesAndUnlocks(t, m)

		redistest.Must(t, errors.Join(l.Controls().ClearLimit(t.Context(), "report|acme"),
			l.Controls().ClearLimit(t.Context(), "report")))
		held := mustTry(t, m)
		mustNotTry(t, m)
		mustUnlock(t, held)
		knows(t, l)
	})
}

// An operator's rate bounds every process' starts of a lock without a rate, until it is cleared. See
// TestRate_orderedWithCost.
func TestControls_rate(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		operator, other := twoProcesses(t, s)
		name := redistest.Name(t)
		m, theirs := operator.Mutex(name), other.Mutex(name)
		rate := lock.ControlRate{Starts: 1, Per: time.Hour, Burst: 2}
		redistest.Must(t, operator.Controls().SetRate(t.Context(), name, rate.Starts, rate.Per, rate.Burst, "a test"))
		list, err := operator.Controls().List(t.Context())
		if err != nil || len(list) != 1 || list[0].Rate != rate || list[0].Why != "a test" {
			t.Fatalf("List: %+v, %v", list, err)
		}
		fresh(t, other)
		takesAndUnlocks(t, theirs)
		takesAndUnlocks(t, m)
		for _, m := range []*lock.Lock{m, theirs} {
			var busy *lock.BusyError
			if _, err := m.TryLock(t.Context()); !errors.As(err, &busy) || busy.Reason != lock.ReasonRate {
				t.Errorf("a third start: %v", err)
			}
		}
		redistest.Must(t, operator.Controls().ClearRate(t.Context(), name))
		fresh(t, other)
		for range 3 {
			takesAndUnlocks(t, theirs)
			takesAndUnlocks(t, m)
		}
	})
}

// Each other Locker obeys, also where no message arrives and nobody of it waits, and a new one from its first call on.
func TestControls_inForceEverywhere(t *testing.T) {
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		operator := lockerOn(t, s, prefix)
		p := redistest.NewProxy(t, s.Addr())
		p.DropMessages(true)
		idle, waits := lockerOn(t, s, prefix), newLocker(t, p.Client(t), prefix)
		for _, l := range []*lock.Locker{idle, waits} {
			takesAndUnlocks(t, l.Mutex("report"))
		}
		pause(t, operator, "report", "")
		for _, l := range []*lock.Locker{idle, waits} {
			knows(t, l, "report")
		}
		mustBePaused(t, lockerOn(t, s, prefix).Mutex("report"))
	})
}

// A target that one operator has paused and another has limited shows for each of the two who ordered it, when and why.
func TestControls_pauseAndLimitKeepTheirOwnReasons(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		alice, bob := lockerOn(t, s, prefix, owner("alice")), lockerOn(t, s, prefix, owner("bob"))
		pause(t, alice, "report", "repair")
		setLimit(t, bob, "report", 3)
		pause(t, bob, "mail", "away")
		list, err := alice.Controls().List(t.Context())
		if err != nil || len(list) != 2 || list[1].Target != "report" || !list[1].Paused || list[1].Limit != 3 ||
			list[1].By != "bob" || list[1].Why != "a test" {
			t.Fatalf("List: %+v, %v; want both in one, by bob, who came later", list, err)
		}
		m := alice.Mutex("report", lock.Parts("acme"))
		if busy := mustBePaused(t, m); busy.Pause.By != "alice" || strings.Contains(busy.Error(), "bob") {
			t.Errorf("TryLock: %v, want alice's pause alone", busy)
		}
		redistest.Must(t, alice.Controls().ClearLimit(t.Context(), "report"))
		list, err = bob.Controls().List(t.Context())
		if err != nil || len(list) != 2 || list[1].Limit != 0 || list[1].By != "alice" || list[1].Why != "repair" {
			t.Errorf("without the limit: %+v, %v", list, err)
		}
	})
}

// A process that has ordered a pause takes no grant of one that does not know of it yet, by a message or while an ask
// is on its way; its waiter keeps its place in line.
func TestControls_noGrantAfterAPause(t *testing.T) {
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		for _, travels := range []bool{false, true} {
			prefix, p := ownPrefix(t), redistest.NewProxy(t, s.Addr())
			operator := newLocker(t, p.Client(t), prefix)
			m := operator.Mutex("report")
			// it has read the controls just now, and waits for nothing, so it does not hear of a change
			held := mustTry(t, handle(lockerOn(t, s, prefix), m))
			first, second := inLine(t, m, 1), inLine(t, m, 2)
			asks := p.Hold(touches(m), 1)
			pause(t, operator, "report", "") // then all ask again
			eventually(t, func() bool { return asks.Count() == 1 }, "an ask that is on its way")
			if !travels {
				asks.Release()
				looksAt(t, m)
			}
			mustUnlock(t, held) // grants the first, in Redis
			asks.Release()
			eventually(t, func() bool {
				info := looksAt(t, m)
				return info.Held == 0 && info.Waiting == 2
			}, "the grant is given back")
			if !first.pending() || !second.pending() {
				t.Fatal("a waiter got the lock in the pause")
			}
			resume(t, operator, "report")
			mustUnlock(t, first.got(t))
			mustUnlock(t, second.got(t))
		}
	})
}

// A pause is ordered while the command that takes the lock is on its way for longer than ControlDelay.
func TestControls_pausedWhileTheAskTravels(t *testing.T) {
	redistest.RealTime(t)
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		prefix, p := ownPrefix(t), redistest.NewProxy(t, s.Addr())
		operator := lockerOn(t, s, prefix)
		// no ask is sent twice
		far := newLocker(t, p.Client(t, func(o *redis.UniversalOptions) { o.ReadTimeout = 5 * time.Second }), prefix)
		tried, locked := far.Mutex("report"), far.Mutex("mail")
		for _, m := range []*lock.Lock{tried, locked} {
			takesAndUnlocks(t, m) // connected, and the controls are known
		}
		asks := []*redistest.Held{p.Hold(touches(tried), 1), p.Hold(touches(locked), 1)}
		failed := make(chan error, 1)
		go func() { _, err := tried.TryLock(context.Background()); failed <- err }()
		waiter := lockBeside(t, locked)
		for _, ask := range asks {
			eventually(t, func() bool { return ask.Count() == 1 }, "an ask that is on its way")
		}
		pause(t, operator, "report", "")
		pause(t, operator, "mail", "")
		ordered := time.Now()
		eventually(t, func() bool { return time.Since(ordered) > lock.ControlDelay+100*time.Millisecond }, "time")
		for _, ask := range asks {
			ask.Release()
		}
		if busy := wantBusy(t, come(t, failed, "the end of TryLock")); busy.Reason != lock.ReasonPaused {
			t.Errorf("TryLock: %v, want that the lock is paused", busy)
		}
		free(t, operator.Mutex("report"))
		eventually(t, func() bool {
			holders, err := operator.Mutex("mail").Holders(t.Context())
			return err == nil && len(holders) == 0
		}, "Lock has given the lock back")
		if !waiter.pending() {
			t.Fatalf("Lock returned %v, %v; want that it waits", waiter.lease, waiter.err)
		}
		resume(t, operator, "mail")
		mustUnlock(t, waiter.got(t))
	})
}

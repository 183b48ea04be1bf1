package lock

import (
	"errors"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

func TestCooldownKeepsTheSlotForThatLong(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const cooldown, short = time.Minute, 300 * time.Millisecond
		rdb := s.Client(t)
		a, b := newLocker(t, rdb, owner("a")), newLocker(t, rdb, owner("b"))
		m := a.Mutex(redistest.Name(t), Note("run 1"))
		le := mustTry(t, m)
		before := serverNow(t, m)
		redistest.Must(t, le.Cooldown(t.Context(), cooldown))
		after := serverNow(t, m)
		audit(t, m)
		reason, end, ok := gateOf(t, m)
		if !ok || reason != ReasonCooldown || end.Before(before.Add(cooldown-time.Millisecond)) || end.After(after.Add(cooldown+time.Millisecond)) {
			t.Fatalf("cooldown until %v, want %s after %v to %v; %s", end, cooldown, before, after, dump(m))
		}

		// Taken, by nobody.
		busy := mustBeBusy(t, m)
		if busy.Reason != ReasonCooldown || busy.Holder != "" || busy.Note != "" || busy.ExpiresIn <= 0 || busy.ExpiresIn > cooldown {
			t.Errorf("busy during a cooldown: %+v", busy)
		}
		if locked, err := m.Locked(t.Context()); !locked || err != nil {
			t.Errorf("Locked: %v, %v", locked, err)
		}
		if i, err := m.inspectAll(t.Context()); err != nil || len(i.Holders) != 0 || i.Gate.Reason != ReasonCooldown || i.Gate.OpensIn <= 0 || i.Gate.OpensIn > cooldown {
			t.Errorf("Inspect: %+v, %v", i, err)
		}
		if err := le.Extend(t.Context(), time.Minute); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Extend of a lease that cools down: %v, want ErrNotHeld", err)
		}

		// Who waits is granted at its end, and not before.
		redistest.Must(t, m.Delete(t.Context()))
		le = mustTry(t, m)
		w := inLine(t, handle(b, m), 1)
		end = serverNow(t, m).Add(short - time.Millisecond)
		redistest.Must(t, le.Cooldown(t.Context(), short))
		next := w.got(t)
		if granted := time.UnixMicro(fenceOf(t, next)); granted.Before(end) {
			t.Errorf("the waiter was granted at %v, before the cooldown's end %v", granted, end)
		}
		mustUnlock(t, next)
		free(t, m, soon)
	})
}

func TestCooldownOfNothingIsAPlainRelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		for _, d := range []time.Duration{0, -time.Second, time.Microsecond} {
			if err := mustTry(t, m).Cooldown(t.Context(), d); err != nil {
				t.Fatalf("Cooldown(%s): %v", d, err)
			}
			free(t, m, soon)
		}
		w1 := mustTry(t, m)
		w2 := inLine(t, m, 1)
		redistest.Must(t, w1.Cooldown(t.Context(), -1))
		mustUnlock(t, w2.got(t))
	})
}

// A cooldown closes a semaphore for all that come, not for those who hold it. A lost
// lease leaves none.
func TestCooldownOfASemaphore(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 2)
		beside := mustTry(t, m)
		redistest.Must(t, mustTry(t, m).Cooldown(t.Context(), time.Minute))
		if n, err := m.Available(t.Context()); n != 0 || err != nil {
			t.Errorf("Available: %d, %v; want 0", n, err)
		}
		if busy := mustBeBusy(t, m); busy.Reason != ReasonCooldown || busy.ExpiresIn < 50*time.Second {
			t.Errorf("busy with a slot free in a cooldown: %+v", busy)
		}
		if err := beside.Extend(t.Context(), time.Minute); err != nil {
			t.Errorf("Extend of a lease beside a cooldown: %v", err)
		}
		mustUnlock(t, beside)
		if n, err := m.BreakAll(t.Context()); n != 1 || err != nil {
			t.Errorf("BreakAll: %d, %v; want the gate", n, err)
		}

		short := handle(m.locker, m, TTL(inside.MinTTL), NoRenew())
		lost := mustTry(t, short)
		ended(t, lost, ErrLost)
		if err := lost.Cooldown(t.Context(), time.Minute); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Cooldown of a lost lease: %v, want ErrNotHeld", err)
		}
		if n, err := m.Available(t.Context()); n != 2 || err != nil {
			t.Errorf("Available: %d, %v; want 2", n, err)
		}
	})
}

// Longer than the TTL, or than any TTL: the key lives as long.
func TestCooldownOutlivesTheTTL(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(3*time.Second))
		redistest.Must(t, mustTry(t, m).Cooldown(t.Context(), 24*time.Hour))
		audit(t, m)
		if busy := mustBeBusy(t, m); busy.ExpiresIn < 23*time.Hour {
			t.Errorf("expires in %s, want a day", busy.ExpiresIn)
		}
	})
}

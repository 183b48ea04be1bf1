package lock

import (
	"errors"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

func TestCooldownKeepsTheSlotForThatLong(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const cooldown = 700 * time.Millisecond
		rdb := s.Client(t)
		a, b := newLocker(t, rdb, owner("a")), newLocker(t, rdb, owner("b"))
		m := a.Mutex(redistest.Name(t), Note("run 1"))
		le := mustTry(t, m)
		w := inLine(t, handle(b, m), 1)
		before := serverNow(t, m)
		if err := le.Cooldown(t.Context(), cooldown); err != nil {
			t.Fatal(err)
		}
		after := serverNow(t, m)
		audit(t, m)
		end, ok := stored(t, m)["c:"+le.body]
		if ms := time.UnixMilli(int64(end)); !ok || ms.Before(before.Add(cooldown-time.Millisecond)) || ms.After(after.Add(cooldown+time.Millisecond)) {
			t.Fatalf("cooldown until %v, want %s after %v to %v; %s", ms, cooldown, before, after, dump(m))
		}

		// Taken, by nobody.
		busy := mustBeBusy(t, m)
		if busy.Holder != "" || busy.Note != "" || busy.ExpiresIn <= 0 || busy.ExpiresIn > cooldown {
			t.Errorf("busy during a cooldown: %+v", busy)
		}
		if locked, err := m.Locked(t.Context()); !locked || err != nil {
			t.Errorf("Locked: %v, %v", locked, err)
		}
		if h, err := m.Holders(t.Context()); err != nil || len(h) != 1 || !h[0].Cooldown || h[0].Owner != "a" || h[0].Note != "run 1" {
			t.Errorf("Holders: %+v, %v", h, err)
		}
		if err := le.Extend(t.Context(), time.Minute); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Extend of a lease that cools down: %v, want ErrNotHeld", err)
		}

		// The waiter is granted at its end, and not before.
		next := w.got(t)
		if granted := time.UnixMicro(fenceOf(t, next)); granted.Before(time.UnixMilli(int64(end))) {
			t.Errorf("the waiter was granted at %v, before the cooldown's end %v", granted, time.UnixMilli(int64(end)))
		} else if late := granted.Sub(time.UnixMilli(int64(end))); late > 3*time.Second {
			t.Errorf("the waiter was granted %s after the cooldown's end", late)
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
		if err := w1.Cooldown(t.Context(), -1); err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, w2.got(t))
	})
}

// A cooldown fills one slot of several, and is not one for a lost lease.
func TestCooldownOfASemaphore(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 2)
		if err := mustTry(t, m).Cooldown(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if n, err := m.Available(t.Context()); n != 1 || err != nil {
			t.Errorf("Available: %d, %v; want 1", n, err)
		}
		le := mustTry(t, m)
		mustBeBusy(t, m)
		mustUnlock(t, le)

		short := handle(m.locker, m, TTL(MinTTL), NoRenew())
		lost := mustTry(t, short)
		ended(t, lost, ErrLost)
		if err := lost.Cooldown(t.Context(), time.Minute); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Cooldown of a lost lease: %v, want ErrNotHeld", err)
		}
		if n, err := m.Available(t.Context()); n != 1 || err != nil {
			t.Errorf("Available: %d, %v; want 1", n, err)
		}
	})
}

// Longer than the TTL, or than any TTL: the key lives as long.
func TestCooldownOutlivesTheTTL(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(3*time.Second))
		if err := mustTry(t, m).Cooldown(t.Context(), 24*time.Hour); err != nil {
			t.Fatal(err)
		}
		audit(t, m)
		if busy := mustBeBusy(t, m); busy.ExpiresIn < 23*time.Hour {
			t.Errorf("expires in %s, want a day", busy.ExpiresIn)
		}
	})
}

package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A cooldown keeps everybody from the lock for that long, and no one who holds it. Who waits is granted it then.
func TestCooldownKeepsTheSlotForThatLong(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		for _, cooldown := range []time.Duration{time.Minute, 24 * time.Hour} { // longer than the TTL, and than any
			m := hers.Semaphore(redistest.Name(t), 2, lock.TTL(20*time.Second))
			beside, le := mustTry(t, m), mustTry(t, m)
			before := time.Now()
			redistest.Must(t, le.Cooldown(t.Context(), cooldown))
			busy := mustBeBusy(t, m)
			if least := cooldown - time.Since(before) - time.Millisecond; busy.Reason != lock.ReasonCooldown || busy.Holder != "" || busy.Note != "" ||
				busy.ExpiresIn < least || busy.ExpiresIn > cooldown {
				t.Errorf("busy during a cooldown of %s: %+v", cooldown, busy)
			}
			wantAvailable(t, m, 0)
			if i, err := insider.Inspect(t.Context(), m); err != nil || len(i.Holders) != 1 || i.Gate.Reason != lock.ReasonCooldown || i.Gate.OpensIn <= 0 {
				t.Errorf("Inspect: %+v, %v", i, err)
			}
			for what, err := range map[string]error{"Extend": le.Extend(t.Context(), time.Minute), "Cooldown": le.Cooldown(t.Context(), 48*time.Hour)} {
				if !errors.Is(err, lock.ErrNotHeld) {
					t.Errorf("%s of a lease that cools down: %v, want ErrNotHeld", what, err)
				}
			}
			redistest.Must(t, beside.Extend(t.Context(), time.Minute))
			mustUnlock(t, beside)
			if n, err := m.BreakAll(t.Context()); n != 1 || err != nil {
				t.Errorf("BreakAll: %d, %v; want the gate", n, err)
			}
			free(t, m)
		}

		m := hers.Mutex(redistest.Name(t))
		job := handle(hers, m, lock.Note("job"))
		le, w := mustTry(t, m), inLine(t, handle(his, m), 1)
		if busy := mustPark(t, job); busy.Reason != lock.ReasonHeld {
			t.Errorf("parked: %v", busy)
		}
		end := time.Now().Add(300 * time.Millisecond)
		redistest.Must(t, le.Cooldown(t.Context(), 300*time.Millisecond))
		next := w.got(t)
		if early := time.Until(end); early > 2*time.Millisecond {
			t.Errorf("the waiter was granted the lock %s before the cooldown's end", early)
		}
		mustUnlock(t, next)
		mustUnlock(t, mustTry(t, job)) // what was parked has come
		free(t, m)
		for _, d := range []time.Duration{0, -time.Second, time.Microsecond} {
			redistest.Must(t, mustTry(t, m).Cooldown(t.Context(), d))
			free(t, m)
		}
	})
}

// Releases that fail are tried again, and the cooldown comes with one of them; it ends when it was to end.
func TestCooldownOutlivesFaults(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		warm(t, far)
		for name, away := range map[string]func(*lock.Lock, *redistest.FailHook){
			"cut": func(*lock.Lock, *redistest.FailHook) { p.Refuse(true); p.Cut() },
			"refused": func(m *lock.Lock, hook *redistest.FailHook) {
				hook.Before(func(cmd redis.Cmder) error {
					if touching(m)(cmd) {
						return redistest.ReplyError("LOADING Redis is loading the dataset in memory")
					}
					return nil
				})
			},
		} {
			rdb, hook := p.Client(t), &redistest.FailHook{}
			rdb.AddHook(hook)
			m := newLocker(t, rdb).Mutex(redistest.Name(t), lock.TTL(time.Minute))
			le := mustTry(t, m)
			away(m, hook)
			until := time.Now().Add(time.Minute)
			if err := le.Cooldown(t.Context(), time.Minute); !errors.Is(err, lock.ErrBackend) {
				t.Fatalf("%s: Cooldown: %v, want ErrBackend", name, err)
			}
			p.Heal()
			hook.Before(nil)
			var busy *lock.BusyError
			redistest.Eventually(t, soon, func() bool {
				busy = mustBeBusy(t, handle(near, m))
				return busy.Reason == lock.ReasonCooldown
			}, "%s: a cooldown; %s", name, stringer(func() string { return dump(handle(near, m)) }))
			if late := busy.ExpiresIn - time.Until(until); late > time.Second {
				t.Errorf("%s: the cooldown ends %s after it was to end", name, late)
			}
			wantHeld(t, handle(near, m), 0)
		}
	})
}

// CloseGate closes the gate for everybody but who holds, whatever the number of slots; it is moved forward only, outlives
// its holder, and ends by itself.
func TestHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Semaphore(redistest.Name(t), 3)
		le, beside := mustTry(t, m), mustTry(t, m)
		closed := func(when string) {
			t.Helper()
			if busy := mustBeBusy(t, m); busy.Reason != lock.ReasonClosed || busy.ExpiresIn < 59*time.Minute || busy.ExpiresIn > time.Hour || busy.Holder != "" {
				t.Errorf("%s: %+v, want a gate that is closed for an hour", when, busy)
			}
		}
		for _, d := range []time.Duration{time.Hour, time.Minute} {
			redistest.Must(t, insider.CloseGate(t.Context(), le, d))
			closed(d.String())
		}
		redistest.Must(t, le.Extend(t.Context(), time.Minute))
		redistest.Must(t, beside.Cooldown(t.Context(), time.Second))
		closed("with a cooldown")
		mustUnlock(t, le)
		closed("after the release")
		if err := insider.CloseGate(t.Context(), le, time.Minute); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("CloseGate of a lease that is over: %v, want ErrNotHeld", err)
		}
		w := inLine(t, m, 1)
		if n, err := m.BreakAll(t.Context()); n != 1 || err != nil {
			t.Errorf("BreakAll: %d, %v; want the gate", n, err)
		}
		le = w.got(t)
		opens := time.Now().Add(300 * time.Millisecond)
		redistest.Must(t, insider.CloseGate(t.Context(), le, 300*time.Millisecond))
		next := lockBeside(t, m).got(t)
		if early := time.Until(opens); early > 2*time.Millisecond {
			t.Errorf("taken %s before the gate opened", early)
		}
		mustUnlock(t, next)
		for _, d := range []time.Duration{0, -time.Second, inside.MaxTTL + 1} {
			if err := insider.CloseGate(t.Context(), le, d); err == nil || !strings.Contains(err.Error(), d.String()) {
				t.Errorf("CloseGate for %s: %v", d, err)
			}
		}
		mustUnlock(t, le)
		free(t, m)
		// Only a lease of a lock that is still held closes its gate.
		le = mustTry(t, m)
		if n, err := slots(his, m, 3).BreakAll(t.Context()); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if err := insider.CloseGate(t.Context(), le, time.Minute); !errors.Is(err, lock.ErrNotHeld) || le.Held() {
			t.Errorf("of a lease that was broken: %v, held %v", err, le.Held())
		}
		mustUnlock(t, mustTry(t, m))
	})
}

// While a mutex is held, a closed gate is what stands in the way; a rate is not. OpenGate opens the one, and leaves the
// other.
func TestGate_whileHeld(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), lock.Rate(1, time.Hour, 1), lock.Note("run"))
		le := mustTry(t, m)
		if busy := mustBeBusy(t, m); busy.Reason != lock.ReasonHeld || busy.Note != "run" {
			t.Errorf("%+v, want the holder", busy)
		}
		redistest.Must(t, insider.CloseGate(t.Context(), le, 2*time.Hour))
		if busy := mustBeBusy(t, m); busy.Reason != lock.ReasonClosed || busy.ExpiresIn < 119*time.Minute {
			t.Errorf("%+v, want the closed gate", busy)
		}
		mustUnlock(t, le)
		if opened, err := insider.OpenGate(t.Context(), m); !opened || err != nil {
			t.Errorf("OpenGate: %v, %v", opened, err)
		}
		if busy := mustBeBusy(t, m); busy.Reason != lock.ReasonRate {
			t.Errorf("%+v, want the rate", busy)
		}
	})
}

// What is parked is called when the gate opens, and not before, and no faster than the rate lets it start.
func TestGate_callsWhatIsParked(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const every = 150 * time.Millisecond
		got := make(chan *lock.Lease, 3)
		var job func(note string) *lock.Lock
		l := newCaller(t, s.Client(t), func(ctx context.Context, _, note string) inside.Fate {
			le, err := insider.LockOrPark(ctx, job(note), parkNow)
			if err != nil {
				return inside.FateUnsure
			}
			got <- le
			return inside.FateComing
		})
		name := redistest.Name(t)
		job = func(note string) *lock.Lock { return l.Mutex(name, lock.Note(note), lock.Rate(1, every, 1)) }
		le := mustTry(t, job("first"))
		opens := time.Now().Add(1200 * time.Millisecond)
		redistest.Must(t, insider.CloseGate(t.Context(), le, 1200*time.Millisecond))
		mustUnlock(t, le)
		for _, note := range []string{"a", "b", "c"} {
			if busy := mustPark(t, job(note)); busy.Reason != lock.ReasonClosed || busy.ExpiresIn <= 0 {
				t.Errorf("%s: %+v, want a closed gate", note, busy)
			}
		}
		for i := range 3 {
			le := come(t, got, "what is parked")
			if early := time.Until(opens.Add(time.Duration(i) * every)); early > 2*time.Millisecond {
				t.Errorf("number %d was taken %s too early", i, early)
			}
			mustUnlock(t, le)
		}
	})
}

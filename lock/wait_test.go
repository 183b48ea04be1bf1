package lock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A function of OnWait is called once, when the wait begins, and not where nobody waits.
func TestOnWait(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, name := newLocker(t, s.Client(t)), redistest.Name(t)
		var told atomic.Int32
		m := l.Mutex(name, insider.OnWait(func() { told.Add(1) }))
		held := mustTry(t, m)
		mustBeBusy(t, m)
		if n := told.Load(); n != 0 {
			t.Errorf("told of %d waits, though nobody waited", n)
		}
		w := inLine(t, m, 1)
		w.cancel()
		wantBusy(t, w.failed(t))
		if n := told.Load(); n != 1 {
			t.Errorf("told of %d waits, want 1", n)
		}
		le, err := l.Mutex(name, insider.OnWait(func() { mustUnlock(t, held) })).Lock(t.Context())
		redistest.Must(t, err)
		mustUnlock(t, le)
		free(t, m)
	})
}

// A function of OnWait that panics while a holder waits for a second lock leaves neither the first one taken
// nor a waiter in line for the second.
func TestOnWait_panics(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l, name := newLocker(t, s.Client(t)), redistest.Name(t)
		first := l.Mutex(name+"1", lock.TTL(time.Hour))
		second := l.Mutex(name+"2", lock.TTL(time.Hour), insider.OnWait(func() { panic("boom") }))
		held := mustTry(t, second)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic did not come through")
				}
			}()
			_ = first.Do(t.Context(), func(ctx context.Context) error {
				_, err := second.Lock(ctx)
				return err
			})
		}()
		mustUnlock(t, held)
		free(t, first)
		free(t, second)
	})
}

// A Caller and a function of OnStop that panic are logged, and the call is repeated.
func TestFunctionsThatPanic(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var calls atomic.Int64
		log, name := &redistest.Log{}, redistest.Name(t)
		l := newCaller(t, s.Client(t), func(context.Context, string, string) inside.Fate {
			if calls.Add(1) == 1 {
				panic("the caller's own fault")
			}
			return inside.FateGone
		}, func(o *lock.Options) { o.Logger = log.Logger() })
		held := mustTry(t, l.Mutex(name))
		mustPark(t, l.Mutex(name, lock.Note("parked")))
		mustUnlock(t, held)
		redistest.Eventually(t, soon, func() bool { return calls.Load() > 1 }, "a call that panicked is repeated")

		at, _, err := insider.Arrive(t.Context(), l.Mutex(name+"b", lock.Note("older")))
		redistest.Must(t, err)
		stopped := make(chan struct{}, 100)
		older := l.Mutex(name+"b", lock.Note("older"), insider.OnStop(at, func() { stopped <- struct{}{}; panic("the holder's own fault") }))
		held = mustTry(t, older)
		at, _, err = insider.Arrive(t.Context(), l.Mutex(name+"b", lock.Note("newer")))
		redistest.Must(t, err)
		newer := l.Mutex(name+"b", lock.Note("newer"), insider.OnStop(at, func() {}))
		redistest.Eventually(t, soon, func() bool { // the subscription may not be there yet
			_, err := insider.AskOlderToStop(t.Context(), newer)
			redistest.Must(t, err)
			return len(stopped) > 0
		}, "the older one is asked to stop")
		mustUnlock(t, held)
		redistest.Eventually(t, soon, func() bool {
			return strings.Contains(log.String(), "the caller's own fault") && strings.Contains(log.String(), "the holder's own fault")
		}, "both panics are logged")
	})
}

// twinsOf makes two handles of a semaphore with one note that are not to hold it at once, on Lockers of their own, and
// a third for several holders.
func twinsOf(t *testing.T, s *redistest.Server, limit int, options ...lock.Option) (one, two, other *lock.Lock) {
	t.Helper()
	name := redistest.Name(t)
	of := func(options ...lock.Option) *lock.Lock {
		return newLocker(t, s.Client(t)).Semaphore(name, limit, options...)
	}
	const note = "queue/task"
	return of(append(options, lock.Note(note), insider.OnePerNote())...), of(lock.Note(note), insider.OnePerNote()), of()
}

// While a holder has the note, whoever asks with it gets no second slot, and is told of that holder; others get theirs.
func TestOnePerNote_refusesASecondSlot(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		one, two, other := twinsOf(t, s, 4)
		mustTry(t, other)
		held := mustTry(t, one)
		mustTry(t, other)
		if busy := mustBeBusy(t, two); busy.Note != "queue/task" {
			t.Errorf("TryLock beside a holder with the note names %q", busy.Note)
		}
		for what, yield := range map[string]<-chan struct{}{"parking": parkNow, "waiting": make(chan struct{})} {
			_, err := insider.LockOrPark(t.Context(), two, yield)
			if busy := wantBusy(t, err); busy.Parked || busy.Note != "queue/task" {
				t.Errorf("LockOrPark, %s, beside a holder with the note: %v", what, err)
			}
		}
		takesAndUnlocks(t, other)
		mustUnlock(t, held)
		takesAndUnlocks(t, two)
	})
}

// Whoever waits with the note of a holder is passed over by releases and newcomers, and is served, as the first, when
// that holder leaves.
func TestOnePerNote_aWaiterIsPassedOver(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		one, two, other := twinsOf(t, s, 2)
		held, second := mustTry(t, one), mustTry(t, other)
		twin := inLine(t, two, 1)
		behind := inLine(t, other, 2)
		mustUnlock(t, second)
		mustUnlock(t, behind.got(t))
		second = mustTry(t, other) // a newcomer
		if !twin.pending() {
			t.Fatal("the waiter holds beside a holder with its note")
		}
		last := inLine(t, other, 2)
		mustUnlock(t, held)
		got := twin.got(t)
		if !last.pending() {
			t.Error("one behind was served before the waiter whose twin left")
		}
		mustUnlock(t, got)
		mustUnlock(t, last.got(t))
		mustUnlock(t, second)
		free(t, two)
	})
}

// Of two that wait with one note one has a slot and the other waits for it, though there are slots for both.
func TestOnePerNote_twoWaitersTakeTurns(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		one, two, other := twinsOf(t, s, 2)
		a, b := mustTry(t, other), mustTry(t, other)
		first, second := inLine(t, one, 1), inLine(t, two, 2)
		mustUnlock(t, a)
		mustUnlock(t, b)
		held := first.got(t)
		if info := looksAt(t, one); info.Held != 1 || !second.pending() {
			t.Fatalf("two hold with one note: %+v", info)
		}
		mustUnlock(t, held)
		mustUnlock(t, second.got(t))
		free(t, one)
	})
}

// A holder that died keeps its note from others until its deadline only. Without the option a note may be held several
// times, and for a mutex the option changes nothing.
func TestOnePerNote_limits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		one, two, _ := twinsOf(t, s, 2, lock.TTL(time.Second), lock.NoRenew())
		mustTry(t, one)
		mustUnlock(t, lockBeside(t, two).got(t))

		l := newLocker(t, s.Client(t))
		m := l.Semaphore(redistest.Name(t), 2, lock.Note("note"))
		mustTry(t, m)
		mustTry(t, m)
		mutex := l.Mutex(redistest.Name(t), lock.Note("note"), insider.OnePerNote())
		held := mustTry(t, mutex)
		w := inLine(t, mutex, 1)
		mustUnlock(t, held)
		mustUnlock(t, w.got(t))
	})
}

// The holder that an asker itself once was comes before a cooldown and a rate, with slots free too.
func TestOnePerNote_beforeTheGate(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		for what, options := range map[string][]lock.Option{"rate": {lock.Rate(1, time.Hour, 1)}, "cooldown": nil} {
			name := redistest.Name(t)
			m := l.Semaphore(name, 3, append(options, lock.Note("task"), insider.OnePerNote())...)
			le := mustTry(t, m)
			if what == "cooldown" {
				redistest.Must(t, mustTry(t, l.Semaphore(name, 3)).Cooldown(t.Context(), time.Hour))
			}
			_, err := insider.LockOrPark(t.Context(), m, parkNow)
			for how, busy := range map[string]*lock.BusyError{"TryLock": mustBeBusy(t, m), "LockOrPark": wantBusy(t, err)} {
				if busy.Reason != lock.ReasonHeld || busy.Note != "task" || busy.Parked {
					t.Errorf("%s, %s: %+v, want the earlier attempt", what, how, busy)
				}
			}
			mustUnlock(t, le)
		}
	})
}

// All waiters of a Locker share one subscription, and nobody publishes but scripts.
func TestRule07_OneSubscriptionPerProcess(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		var held []*lock.Lease
		var waiters []*attempt
		for range 20 {
			name := redistest.Name(t)
			held = append(held, mustTry(t, near.Mutex(name)))
			waiters = append(waiters, inLine(t, far.Mutex(name), 1))
		}
		for i, w := range waiters {
			mustUnlock(t, held[i])
			mustUnlock(t, w.got(t))
		}
		if n := p.Count("SUBSCRIBE"); n != 1 {
			t.Errorf("20 waiters made %d subscriptions, want 1", n)
		}
		if n := p.Count("PUBLISH"); n != 0 {
			t.Errorf("%d PUBLISHs outside the scripts", n)
		}
	})
}

// Messages only hasten: whatever happens to the subscription, a waiter has its lock, and there is a subscription again.
func TestWake_withoutMessages(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(p *redistest.Proxy) (again bool){
		"messages are lost": func(p *redistest.Proxy) bool { p.DropMessages(true); return false },
		"it is cut":         func(p *redistest.Proxy) bool { p.DropMessages(true); p.Cut(); return true },
		"it swallows all":   func(p *redistest.Proxy) bool { p.BlackholePubSub(true); return true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachSingle(t, func(t *testing.T, s *redistest.Server) {
				near, far, p := through(t, s)
				name := redistest.Name(t)
				held := mustTry(t, near.Mutex(name))
				w := inLine(t, far.Mutex(name), 1)
				keep := redistest.Name(t) // somebody must wait, or nobody needs a subscription
				mustTry(t, near.Mutex(keep))
				inLine(t, far.Mutex(keep), 1)
				redistest.Eventually(t, soon, func() bool { return p.Count("SUBSCRIBE") == 1 }, "a subscription")
				again := fault(p)
				mustUnlock(t, held)
				mustUnlock(t, w.got(t))
				if again {
					redistest.Eventually(t, soon, func() bool { return p.Count("SUBSCRIBE") > 1 }, "another subscription")
				}
				p.Heal()
			})
		})
	}
}

// A SUBSCRIBE gets lost and the connection lives on: its pongs do not pass for a subscription.
func TestWake_lostSubscribeIsRepeated(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		name := redistest.Name(t)
		held := mustTry(t, near.Mutex(name))
		p.Swallow(redistest.ToServer, redistest.Subscriptions, true)
		w := inLine(t, far.Mutex(name), 1)
		redistest.Eventually(t, soon, func() bool { return p.Swallowed("SUBSCRIBE") == 1 }, "a SUBSCRIBE that gets lost")
		p.Swallow(redistest.ToServer, redistest.Subscriptions, false)
		redistest.Eventually(t, soon, func() bool { return p.Count("SUBSCRIBE") > 0 }, "another SUBSCRIBE")
		mustUnlock(t, held)
		mustUnlock(t, w.got(t))
	})
}

// A user without the right to the channels: grants are found by asking again, and no script fails after its writes.
func TestWake_withoutTheRight(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	admin := s.Client(t)
	redistest.Must(t, admin.Do(t.Context(), "ACL", "SETUSER", "limited", "on", ">secret", "~*", "resetchannels", "+@all").Err())
	m := newLocker(t, s.Client(t, func(o *redis.UniversalOptions) { o.Username, o.Password = "limited", "secret" })).Mutex(redistest.Name(t))
	held := mustTry(t, m)
	first := inLine(t, m, 1)
	second := inLine(t, m, 2)
	mustUnlock(t, held)
	mustUnlock(t, first.got(t))
	mustUnlock(t, second.got(t))
	free(t, m)
}

// The first waiter leaves while the gate is closed: the next one starts when the gate opens.
func TestWake_nextInLineWhenTheGateOpens(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rate := lock.Rate(1, 1500*time.Millisecond, 1)
		rdb := s.Client(t)
		m := newLocker(t, rdb).Mutex(redistest.Name(t), rate)
		began := clockOf(t, rdb)
		takesAndUnlocks(t, m)
		first := inLine(t, m, 1)
		second := inLine(t, m, 2)
		first.cancel()
		wantBusy(t, first.failed(t))
		next := second.got(t)
		if after := clockOf(t, rdb).Sub(began); after < 1500*time.Millisecond {
			t.Errorf("started %s after the one before", after)
		}
		mustUnlock(t, next)
	})
}

// A subscription goes when nobody has waited for a while; waiting brings it back.
func TestWake_subscriptionEndsWhenIdle(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	channels := func() int { return len(rdb.PubSubChannels(t.Context(), "*").Val()) }
	m := newLocker(t, s.Client(t)).Mutex("x")
	for range 2 {
		idle := channels()
		held := mustTry(t, m)
		w := inLine(t, m, 1)
		redistest.Eventually(t, soon, func() bool { return channels() > idle }, "a subscription")
		mustUnlock(t, held)
		mustUnlock(t, w.got(t))
		most := 0
		redistest.Eventually(t, soon, func() bool { n := channels(); most = max(most, n); return n < most }, "the end of the subscription")
	}
}

// Whoever comes to a lock behind waiters that died, with a process of their own, gets it, and so does who waits.
func TestDeadWaitersHoldUpNobody(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		name := redistest.Name(t)
		held := mustTry(t, near.Mutex(name))
		for i := range 20 {
			inLine(t, far.Mutex(name), i+1)
		}
		w := inLine(t, near.Mutex(name), 21)
		p.Blackhole(true) // as good as dead
		mustUnlock(t, held)
		le := w.got(t)
		if !errors.Is(second(near.Mutex(name).TryLock(t.Context())), lock.ErrBusy) {
			t.Error("taken twice")
		}
		mustUnlock(t, le)
		redistest.Eventually(t, soon, func() bool {
			le, err := near.Mutex(name).TryLock(t.Context())
			return err == nil && le.Unlock(t.Context()) == nil
		}, "a newcomer has it")
	})
}

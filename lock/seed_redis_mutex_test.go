package lock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// What the specs of the gem redis-mutex (kenn/redis-mutex) define, and where it
// is shown here. Its macro has its cases in the root package, in
// seed_macro_test.go.
//
//	locks the universe                          TestSeedRedisMutex_Excludes
//	fails to lock when the lock is taken        TestSeedRedisMutex_Excludes
//	unlocks only once                           TestSeedRedisMutex_UnlocksOnlyOnce
//	prevents accidental unlock from outside     TestSeedRedisMutex_OnlyTheHolderUnlocks
//	sets expiration                             TestSeedRedisMutex_SetsTheExpiration
//	overwrites a lock that is expired           TestSeedRedisMutex_TakesOverAnExpiredLock
//	fails to unlock past the expiration         TestSeedRedisMutex_LateUnlockLeavesTheNewHolderAlone
//	ensures unlocking when the block fails      TestSeedRedisMutex_ReleasesWhenTheWorkFails
//	resets locking state on reuse               TestSeedRedisMutex_HandlesCarryNoState
//	tells about the lock's state                TestSeedRedisMutex_TellsTheState
//	tells that an expired lock is not locked    TestSeedRedisMutex_TellsTheState
//	returns the value of the block              TestSeedRedisMutex_ReturnsTheValueOfTheWork
//	raises LockError                            TestSeedRedisMutex_ErrorsInsteadOfBooleans
//	raises UnlockError                          TestSeedRedisMutex_ErrorsInsteadOfBooleans
//	sweeps expired locks                        TestSeedRedisMutex_Sweep
//	stress test                                 TestSeedRedisMutex_Stress
//
// Its README beyond that:
//
//	block: seconds, block: 0                    TestSeedRedisMutex_WaitsForSoLong
//	a key from an object with an id             TestSeedRedisMutex_KeysFromValues
//	defaults for all locks, options for one     TestSeedRedisMutex_SetsTheExpiration
//	unlock(force)                               TestSeedRedisMutex_ForcedUnlock
//
// Not carried over, on purpose:
//
//   - "requires a block for with_lock", "raises AssertionError when a block is
//     given to lock": the compiler says both. Lock takes no function, Do and
//     With take one.
//   - sleep (the polling interval): nobody polls, a release grants.
//   - an unlock by force that deletes whoever's lock it is by then, and tells
//     nobody.
//   - an expiration that ends a living holder: a lease is renewed. Who wants a
//     bound on the stay has MaxHold; who wants none of it, NoRenew.
//   - a sweep that counts what it did not delete.
//   - keys that collide on ":".

// seed runs one case of a seed's spec, titled with the behaviour, on every kind
// of server.
func seed(t *testing.T, behaviour string, f func(t *testing.T, s *redistest.Server)) {
	t.Helper()
	t.Run(behaviour, func(t *testing.T) {
		t.Parallel()
		redistest.Each(t, f)
	})
}

// twoProcesses are two Lockers with connections of their own, as two processes
// would have.
func twoProcesses(t *testing.T, s *redistest.Server) (hers, his *Locker) {
	t.Helper()
	return newLocker(t, s.Client(t), owner("alice")), newLocker(t, s.Client(t), owner("bob"))
}

// store puts a holder into the lock as if it had been taken before and would
// last for so long from now; below 0 it has expired.
func store(t *testing.T, m *Lock, owner string, lasts time.Duration) {
	t.Helper()
	le := New(raw(m), Options{Owner: owner}).Mutex(m.name).newLease()
	z := []redis.Z{
		{Score: float64(serverNow(t, m).Add(lasts).UnixMilli()), Member: "h:" + le.body},
		{Score: -1e15 - 1, Member: "f"},
	}
	pipe := raw(m).TxPipeline()
	pipe.ZAdd(t.Context(), m.Key(), z...)
	pipe.PExpire(t.Context(), m.Key(), max(lasts, 0)+time.Minute)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// untilTaken tries again until the lock is taken.
func untilTaken(t *testing.T, m *Lock) (le *Lease) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool {
		var err error
		if le, err = m.TryLock(t.Context()); err != nil && !errors.Is(err, ErrBusy) {
			t.Fatal(err)
		}
		return le != nil
	}, "the lock to be had; %s", stringer(func() string { return dump(m) }))
	return le
}

func wantLocked(t *testing.T, m *Lock, want bool) {
	t.Helper()
	got, err := m.Locked(t.Context())
	if err != nil || got != want {
		t.Errorf("Locked: %v, %v; want %v; %s", got, err, want, dump(m))
	}
}

func wantAvailable(t *testing.T, m *Lock, want int) {
	t.Helper()
	got, err := m.Available(t.Context())
	if err != nil || got != want {
		t.Errorf("Available: %d, %v; want %d; %s", got, err, want, dump(m))
	}
}

func wantExists(t *testing.T, m *Lock, want bool) {
	t.Helper()
	got, err := m.existsNow(t.Context())
	if err != nil || got != want {
		t.Errorf("Exists: %v, %v; want %v; %s", got, err, want, dump(m))
	}
}

func TestSeedRedisMutex_Excludes(t *testing.T) {
	t.Parallel()
	seed(t, "a lock taken here is taken everywhere", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		mustBeBusy(t, m)
		mustBeBusy(t, handle(his, m))
		mustUnlock(t, held)
		mustUnlock(t, mustTry(t, handle(his, m)))
	})
	seed(t, "who waits for a lock that stays taken fails when its time is up", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		inVain(t, handle(his, m), 100*time.Millisecond)
		if !held.Held() {
			t.Error("the holder lost the lock to somebody who gave up")
		}
		mustUnlock(t, held)
		free(t, m, soon)
	})
}

func TestSeedRedisMutex_WaitsForSoLong(t *testing.T) {
	t.Parallel()
	seed(t, "a wait of 0 answers at once and never stands in line", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		if lease, ok, err := handle(his, m).Acquire(t.Context(), 0); lease != nil || ok || err != nil {
			t.Errorf("Acquire: %v, %v, %v", lease, ok, err)
		}
		if n := band(t, m, "e:"); n != 0 {
			t.Errorf("%d in line after a try", n)
		}
		mustUnlock(t, held)
		lease, ok, err := handle(his, m).Acquire(t.Context(), 0)
		if !ok || err != nil {
			t.Fatalf("Acquire of a free lock: %v, %v", ok, err)
		}
		mustUnlock(t, lease)
	})
	seed(t, "a wait ends with the lock when it is released in time", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		type result struct {
			lease *Lease
			ok    bool
			err   error
		}
		got := make(chan result, 1)
		go func() {
			lease, ok, err := handle(his, m).Acquire(context.Background(), 2*soon)
			got <- result{lease, ok, err}
		}()
		waiting(t, m, 1)
		mustUnlock(t, held)
		r := <-got
		if !r.ok || r.err != nil {
			t.Fatalf("Acquire: %v, %v", r.ok, r.err)
		}
		mustUnlock(t, r.lease)
	})
	seed(t, "a wait below 0 is a mistake, not a wait for ever", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		if lease, ok, err := m.Acquire(t.Context(), -time.Second); lease != nil || ok || err == nil || errors.Is(err, ErrBusy) {
			t.Errorf("Acquire: %v, %v, %v", lease, ok, err)
		}
	})
}

func TestSeedRedisMutex_UnlocksOnlyOnce(t *testing.T) {
	t.Parallel()
	seed(t, "the second unlock says that there was nothing to unlock", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		first := mustTry(t, m)
		mustUnlock(t, first)
		if err := first.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("second Unlock: %v, want ErrNotHeld", err)
		}
		// And it does not free who came after.
		next := mustTry(t, handle(his, m))
		if err := first.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("third Unlock: %v, want ErrNotHeld", err)
		}
		mustBeBusy(t, m)
		mustUnlock(t, next)
	})
}

func TestSeedRedisMutex_OnlyTheHolderUnlocks(t *testing.T) {
	t.Parallel()
	seed(t, "a lease of another stay, and the leaving of who never got in, free nobody", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		earlier := mustTry(t, handle(his, m))
		mustUnlock(t, earlier)
		held := mustTry(t, m)
		// A lock has no Unlock, only a lease has. What another process can send
		// is the token of an earlier stay, or one that was never granted.
		never := handle(his, m).newLease()
		for _, le := range []*Lease{earlier, never} {
			if _, ours, err := le.release(t.Context()); ours || err != nil {
				t.Errorf("a release from outside: held %v, %v", ours, err)
			}
		}
		if _, ok := holds(t, held); !ok {
			t.Fatalf("the holder was released from outside; %s", dump(m))
		}
		mustBeBusy(t, handle(his, m))
		mustUnlock(t, held)
	})
}

func TestSeedRedisMutex_ForcedUnlock(t *testing.T) {
	t.Parallel()
	seed(t, "an operator takes the lock from the holder it names, who is told", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		working := held.Bind(t.Context())
		operator := handle(his, m)
		if ok, err := operator.Break(t.Context(), "somebody-else"); ok || err != nil {
			t.Errorf("Break of nobody: %v, %v", ok, err)
		}
		wantLocked(t, m, true)
		holders, err := operator.Holders(t.Context())
		if err != nil || len(holders) != 1 || holders[0].Owner != "alice" {
			t.Fatalf("holders: %+v, %v", holders, err)
		}
		if ok, err := operator.Break(t.Context(), holders[0].Token); !ok || err != nil {
			t.Errorf("Break: %v, %v", ok, err)
		}
		next := mustTry(t, handle(his, m, TTL(time.Minute)))
		renewNow(hers)
		select {
		case <-working.Done():
			if cause := context.Cause(working); !errors.Is(cause, ErrLost) {
				t.Errorf("her work ended with cause %v", cause)
			}
		case <-time.After(soon):
			t.Error("she is not told")
		}
		if err := held.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("her Unlock: %v, want ErrNotHeld", err)
		}
		mustUnlock(t, next)
	})
	seed(t, "or from all who hold it, and counts them", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Semaphore(redistest.Name(t), 3)
		mustTry(t, m)
		mustTry(t, handle(his, m))
		if n, err := m.BreakAll(t.Context()); n != 2 || err != nil {
			t.Errorf("BreakAll: %d, %v; want 2", n, err)
		}
		wantAvailable(t, m, 3)
	})
}

func TestSeedRedisMutex_SetsTheExpiration(t *testing.T) {
	t.Parallel()
	seed(t, "the deadline is the TTL from now, and nothing is left after the work", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(10*time.Second))
		err := m.Do(t.Context(), func(ctx context.Context) error {
			lease, ok := FromContext(ctx)
			if !ok {
				t.Fatal("no lease in the context of Do")
			}
			deadline, ok := holds(t, lease)
			if left := deadline.Sub(serverNow(t, m)); !ok || left > 10*time.Second+time.Millisecond || left < 10*time.Second-soon {
				t.Errorf("stored %v, for %s; want about 10 s", ok, left)
			}
			return nil
		})
		redistest.Must(t, err)
		free(t, m, soon)
	})
	seed(t, "a default for all locks of a Locker, and an option for one", func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), func(o *Options) { o.TTL = time.Hour })
		for want, m := range map[time.Duration]*Lock{
			time.Hour:     l.Mutex(redistest.Name(t)),
			2 * time.Hour: l.Mutex(redistest.Name(t), TTL(2*time.Hour)),
			DefaultTTL:    newLocker(t, s.Client(t)).Mutex(redistest.Name(t)),
		} {
			deadline, ok := holds(t, mustTry(t, m))
			if left := deadline.Sub(serverNow(t, m)); !ok || left > want+time.Millisecond || left < want-soon {
				t.Errorf("stored %v, for %s; want %s", ok, left, want)
			}
		}
	})
}

func TestSeedRedisMutex_TakesOverAnExpiredLock(t *testing.T) {
	t.Parallel()
	seed(t, "a stale lock from the far past is taken at once", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		store(t, m, "long gone", -time.Minute)
		mustUnlock(t, mustTry(t, m))
		store(t, m, "long gone", -time.Minute)
		mustUnlock(t, lockBeside(t, m).got(t))
		free(t, m, soon)
	})
	seed(t, "a lock whose holder never came back is taken when its time is up", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t), TTL(150*time.Millisecond), NoRenew())
		deadline, _ := holds(t, mustTry(t, m))
		le := untilTaken(t, handle(his, m, TTL(10*time.Second), Fenced()))
		if early := deadline.Sub(time.UnixMicro(fenceOf(t, le))); early > expiryError(s) {
			t.Errorf("taken over %s before its deadline", early)
		}
	})
}

func TestSeedRedisMutex_LateUnlockLeavesTheNewHolderAlone(t *testing.T) {
	t.Parallel()
	seed(t, "an unlock past the expiration fails and the new holder keeps the lock", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t), TTL(100*time.Millisecond), NoRenew())
		late := mustTry(t, m)
		next := untilTaken(t, handle(his, m, TTL(10*time.Second)))
		if err := late.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("late Unlock: %v, want ErrNotHeld", err)
		}
		if _, ok := holds(t, next); !ok {
			t.Fatalf("the late unlock freed the new holder; %s", dump(m))
		}
		mustUnlock(t, next)
	})
}

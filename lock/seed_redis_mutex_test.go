package lock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
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
		lease, ok, err := handle(his, m).Acquire(t.Context(), 100*time.Millisecond)
		if lease != nil || ok || err != nil {
			t.Errorf("Acquire of a taken lock: %v, %v, %v; want no lease, false and no error", lease, ok, err)
		}
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
		m := hers.Mutex(redistest.Name(t), TTL(3*time.Second))
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
		if err != nil {
			t.Fatal(err)
		}
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
		le := untilTaken(t, handle(his, m, TTL(10*time.Second)))
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

func TestSeedRedisMutex_ReleasesWhenTheWorkFails(t *testing.T) {
	t.Parallel()
	wrong := errors.New("something went wrong")
	seed(t, "an error of the work comes through, and the lock is free", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		if err := m.Do(t.Context(), func(context.Context) error { return wrong }); !errors.Is(err, wrong) || err.Error() != wrong.Error() {
			t.Errorf("Do: %v", err)
		}
		free(t, m, soon)
	})
	seed(t, "a panic of the work comes through, and the lock is free", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		func() {
			defer func() {
				if p := recover(); p != any("something went wrong") {
					t.Errorf("recovered %v", p)
				}
			}()
			_ = m.Do(t.Context(), func(context.Context) error { panic("something went wrong") })
		}()
		free(t, m, soon)
	})
	seed(t, "an ErrBusy of the work's own is not taken for ours", func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m, other := l.Mutex(redistest.Name(t)), l.Mutex(redistest.Name(t)+"-other")
		mustTry(t, other)
		runs := 0
		err := m.Do(t.Context(), func(ctx context.Context) error {
			runs++
			_, err := other.TryLock(ctx)
			return err
		})
		if busy := wantBusy(t, err); runs != 1 || busy.Name != other.name {
			t.Errorf("%d runs, busy is %q", runs, busy.Name)
		}
		free(t, m, soon)
	})
}

func TestSeedRedisMutex_HandlesCarryNoState(t *testing.T) {
	t.Parallel()
	seed(t, "the handle that has the lock does not get it again", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		fenceOf(t, held)
		mustBeBusy(t, m)
		mustUnlock(t, held)
		again := mustTry(t, m)
		if again == held || again.Token() == held.Token() || fenceOf(t, again) <= fenceOf(t, held) {
			t.Errorf("a second stay with token %q, fence %d, after %q, %d", again.Token(), fenceOf(t, again), held.Token(), fenceOf(t, held))
		}
		mustUnlock(t, again)
	})
}

func TestSeedRedisMutex_TellsTheState(t *testing.T) {
	t.Parallel()
	seed(t, "locked while held, to everybody, and not after", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		wantLocked(t, m, false)
		held := mustTry(t, m)
		wantLocked(t, m, true)
		wantLocked(t, handle(his, m), true)
		mustUnlock(t, held)
		wantLocked(t, m, false)
		wantLocked(t, handle(his, m), false)
	})
	seed(t, "not locked when the lock has expired", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(100*time.Millisecond), NoRenew())
		held := mustTry(t, m)
		redistest.Eventually(t, soon, func() bool {
			locked, err := m.Locked(t.Context())
			return err == nil && !locked
		}, "a lock that is not locked any more")
		if held.Held() {
			t.Error("its holder still believes in it")
		}
		store(t, m, "long gone", -time.Minute)
		wantLocked(t, m, false)
		store(t, m, "somebody", time.Minute)
		wantLocked(t, m, true)
	})
}

func TestSeedRedisMutex_ReturnsTheValueOfTheWork(t *testing.T) {
	t.Parallel()
	seed(t, "the value and the error of the work are those of the call", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		value, err := With(t.Context(), m, func(ctx context.Context) (string, error) {
			wantLocked(t, m, true)
			return "result", ctx.Err()
		})
		if value != "result" || err != nil {
			t.Errorf("With: %q, %v", value, err)
		}
		short := errors.New("short")
		n, err := With(t.Context(), m, func(context.Context) (int, error) { return 7, short })
		if n != 7 || !errors.Is(err, short) {
			t.Errorf("With: %d, %v", n, err)
		}
		free(t, m, soon)
	})
	seed(t, "no value, and no work, without the lock", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		mustTry(t, m)
		mustNotTry(t, handle(his, m)) // connected, and the controls are read
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		value, err := With(ctx, handle(his, m), func(context.Context) (string, error) {
			t.Error("the work ran without the lock")
			return "result", nil
		})
		if wantBusy(t, err); value != "" {
			t.Errorf("With: %q", value)
		}
	})
}

func TestSeedRedisMutex_ErrorsInsteadOfBooleans(t *testing.T) {
	t.Parallel()
	seed(t, "a lock that is not had is an error that names it and its holder", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		mustTry(t, m)
		if busy := mustBeBusy(t, handle(his, m)); busy.Name != m.name || busy.Holder != "alice" || busy.ExpiresIn <= 0 {
			t.Errorf("busy: %+v", busy)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := handle(his, m).Lock(ctx)
		if busy := wantBusy(t, err); !errors.Is(err, context.DeadlineExceeded) || busy.Holder != "alice" || !strings.Contains(err.Error(), m.name) {
			t.Errorf("Lock: %v", err)
		}
	})
	seed(t, "a lock that is not released is an error", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		held := mustTry(t, m)
		mustUnlock(t, held)
		if err := held.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) || !strings.Contains(err.Error(), m.name) {
			t.Errorf("Unlock: %v", err)
		}
	})
}

func TestSeedRedisMutex_KeysFromValues(t *testing.T) {
	t.Parallel()
	type Room struct{ ID int }
	type Hall struct{ ID string }
	seed(t, "a name, and a value with an ID, which is its type's name and the ID", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		if key := hers.For(&Room{ID: 123}).Key(); key != inside.DefaultPrefix+":{Room|123}" {
			t.Errorf("the key of room 123 is %q", key)
		}
		// IDs that no other test has.
		id := int(time.Now().UnixNano())
		held := mustTry(t, hers.For(&Room{ID: id}))
		mustBeBusy(t, his.For(Room{ID: id}))
		for _, other := range []*Lock{his.For(Room{ID: id - 1}), his.For(Hall{ID: strconv.Itoa(id)}), his.For(redistest.Name(t))} {
			mustUnlock(t, mustTry(t, other))
		}
		mustUnlock(t, held)
		if m := hers.For(redistest.Name(t)); m.Key() != hers.Mutex(m.name).Key() {
			t.Errorf("a string's key is %q", m.Key())
		}
	})
	seed(t, "a value without identity is refused, since all such would share one lock", func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		for _, value := range []any{nil, Room{}, (*Room)(nil), struct{ ID int }{7}, 7, Hall{}} {
			if _, err := l.For(value).TryLock(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "lock: For(") {
				t.Errorf("For(%#v): %v", value, err)
			}
		}
	})
	seed(t, "values with separators in them do not share a lock", func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		mustTry(t, l.Mutex(name, Parts("a:b", "c")))
		mustTry(t, l.Mutex(name, Parts("a", "b:c")))
		mustTry(t, l.Mutex(name, Parts("a|b", "c")))
		mustTry(t, l.Mutex(name+":a:b:c"))
	})
}

func TestSeedRedisMutex_Sweep(t *testing.T) {
	t.Parallel()
	seed(t, "what has expired is removed and counted, what lives stays", func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), func(o *Options) { o.Prefix = redistest.Name(t) })
		for name, lasts := range map[string]time.Duration{"past": -time.Minute, "present": -time.Millisecond, "future": time.Minute} {
			store(t, l.Mutex(name), "somebody", lasts)
		}
		keys := func() (keys []string) {
			for _, name := range []string{"past", "present", "future"} {
				if n, err := raw(l.Mutex(name)).Exists(t.Context(), l.Mutex(name).Key()).Result(); err != nil {
					t.Fatal(err)
				} else if n > 0 {
					keys = append(keys, name)
				}
			}
			return keys
		}
		if n := len(keys()); n != 3 {
			t.Fatalf("%d locks are stored, want 3", n)
		}
		if n, err := l.sweep(t.Context()); n != 2 || err != nil {
			t.Errorf("Sweep: %d, %v; want 2", n, err)
		}
		if left := keys(); len(left) != 1 || left[0] != "future" {
			t.Errorf("%v are left, want the future one", left)
		}
		if n, err := l.sweep(t.Context()); n != 0 || err != nil {
			t.Errorf("second Sweep: %d, %v; want 0: it counts what it removes", n, err)
		}
		var listed []string
		for info, err := range l.list(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			listed = append(listed, info.Key)
		}
		if len(listed) != 1 || listed[0] != l.Mutex("future").Key() {
			t.Errorf("listed are %v", listed)
		}
	})
}

// The stress test: several processes, 1,000 locked sections each, on one lock.
const (
	stressEnv       = "AUTOMUTEX_TEST_STRESS" // "<redis address> <lock name> <sections>"
	stressProcesses = 4
	stressSections  = 4000 // of all processes
)

// stressMain is one process of the stress test. It says "ready", waits for a
// line, runs its sections and prints what went wrong, a line each. A section
// is two reads and two writes that would go wrong if anybody else were in one.
func stressMain() {
	words := strings.Fields(os.Getenv(stressEnv))
	name := words[1]
	sections, err := strconv.Atoi(words[2])
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*soon)
	defer cancel()
	rdb := redis.NewClient(&redis.Options{Addr: words[0]})
	l := New(rdb, Options{Owner: strconv.Itoa(os.Getpid())})
	m := l.Mutex(name, TTL(5*time.Second))
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return // the parent has gone
	}
	section := func(ctx context.Context) error {
		if n := rdb.Incr(ctx, name+":inside").Val(); n != 1 {
			fmt.Println(n, "are inside at once")
		}
		n, err := rdb.Get(ctx, name+":sections").Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		lease, _ := FromContext(ctx)
		fence, err := lease.Fence(ctx)
		if err != nil {
			return err
		}
		if err := rdb.RPush(ctx, name+":fences", fmt.Sprint(fence, " ", os.Getpid())).Err(); err != nil {
			return err
		}
		if err := rdb.Set(ctx, name+":sections", n+1, 0).Err(); err != nil {
			return err
		}
		return rdb.Decr(ctx, name+":inside").Err()
	}
	for range sections {
		if err := m.Do(ctx, section); err != nil {
			fmt.Println("a section failed:", err)
		}
	}
	_ = l.Close()
}

func TestSeedRedisMutex_Stress(t *testing.T) {
	t.Parallel()
	t.Run("four processes run 1,000 sections each with no overlap and none failed", func(t *testing.T) {
		t.Parallel()
		s := redistest.Real(t)
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		rdb := raw(m)
		type process struct {
			in  io.Writer
			out *bufio.Scanner
			cmd *exec.Cmd
		}
		var all []process
		for range stressProcesses {
			p := process{cmd: exec.Command(os.Args[0])}
			p.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", stressEnv, s.Addr(), m.name, stressSections/stressProcesses))
			p.cmd.Stderr = os.Stderr
			in, err := p.cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := p.cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := p.cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
			p.in, p.out = in, bufio.NewScanner(out)
			all = append(all, p)
		}
		for _, p := range all {
			if !p.out.Scan() {
				t.Fatalf("a process ended: %v", p.out.Err())
			}
		}
		began := time.Now()
		for _, p := range all {
			if _, err := p.in.Write([]byte("go\n")); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range all {
			for p.out.Scan() {
				t.Errorf("process %d: %s", p.cmd.Process.Pid, p.out.Text())
			}
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("process %d: %v", p.cmd.Process.Pid, err)
			}
		}
		took := time.Since(began)
		if n, err := rdb.Get(t.Context(), m.name+":sections").Int(); n != stressSections || err != nil {
			t.Errorf("%d sections were counted, %v; want %d", n, err, stressSections)
		}
		fences, err := rdb.LRange(t.Context(), m.name+":fences", 0, -1).Result()
		if err != nil || len(fences) != stressSections {
			t.Errorf("%d fences, %v; want %d", len(fences), err, stressSections)
		}
		turns, last, before := 0, int64(0), ""
		for _, line := range fences {
			text, process, _ := strings.Cut(line, " ")
			fence, err := strconv.ParseInt(text, 10, 64)
			if err != nil || fence <= last {
				t.Fatalf("fence %s follows %d", text, last)
			}
			if last = fence; process != before {
				turns++
			}
			before = process
		}
		if turns < stressSections/4 {
			t.Errorf("the processes took turns %d times only: they hardly competed", turns)
		}
		t.Logf("%d sections of %d processes in %s, %d turns", len(fences), stressProcesses, took.Round(time.Millisecond), turns)
		free(t, m, soon)
	})
}

package lock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// What the specs of the gem redis-lock (mlanett/redis-lock) define, and where
// it is shown here. Alice and Bob are two processes.
//
//	can acquire and release a lock                TestSeedRedisLock_AcquireAndRelease
//	can acquire a lock, can release a lock        TestSeedRedisLock_AcquireAndRelease
//	returns the value of the block, the lambda    TestSeedRedisLock_Work
//	passes the lock into the block, the lambda    TestSeedRedisLock_Work
//	can prevent other use of a lock               TestSeedRedisLock_OneOwner
//	can lock two different items at the same time TestSeedRedisLock_OneOwner
//	does not support nesting                      TestSeedRedisLock_OneOwner
//	can use a timeout                             TestSeedRedisLock_AcquisitionTimeout
//	does not take too long to time out            TestSeedRedisLock_AcquisitionTimeout
//	can time out an expired lock                  TestSeedRedisLock_StaleOwnerIsReplaced
//	can detect broken or expired locks            TestSeedRedisLock_StaleOwnerIsReplaced
//	can extend the life of a lock                 TestSeedRedisLock_Extend
//	can determine if it is locked                 TestSeedRedisLock_LockedForALiveOwnerOnly
//
// Its README and its stress script beyond that:
//
//	the owner defaults to HOSTNAME:PID            TestSeedRedisLock_OwnerIdentity
//	extend_life raises when the lock was lost     TestSeedRedisLock_Extend
//	cleaning up does not touch another owner      TestSeedRedisLock_StaleOwnerIsReplaced
//	what was written in the lock is still there   TestSeedRedisLock_Stress
//
// Not carried over, on purpose:
//
//   - the spec of Redis itself (msetnx, multi, watch): a lock is one key here,
//     and each operation one script, so there is nothing to watch.
//   - "broken" locks, of which one of two keys is gone: owner and deadline are
//     one member of one set, so there is no half of it.
//   - the owner's name as proof of ownership: two threads of one process have
//     the same name. The token proves it, the label is for people.
//   - locked?, which asks whether I am the owner: Lease.Held says that, from
//     the lease itself. Lock.Locked is about anybody.
//   - a life in whole seconds by the client's clock: milliseconds by Redis'.
//   - unknown options that raise: the compiler does.

func TestSeedRedisLock_AcquireAndRelease(t *testing.T) {
	t.Parallel()
	seed(t, "locked within the work, and not after", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		err := m.Do(t.Context(), func(context.Context) error {
			wantLocked(t, m, true)
			wantLocked(t, handle(his, m), true)
			return nil
		})
		redistest.Must(t, err)
		wantLocked(t, m, false)
	})
	seed(t, "without work around it: Lock, then Unlock", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		lease, err := m.Lock(t.Context())
		redistest.Must(t, err)
		if !lease.Held() {
			t.Error("it is not held")
		}
		mustUnlock(t, lease)
		if lease.Held() {
			t.Error("it is held after Unlock")
		}
		free(t, m, soon)
	})
}

func TestSeedRedisLock_Work(t *testing.T) {
	t.Parallel()
	seed(t, "the value of the work is that of the call", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		one := func(context.Context) (int, error) { return 1, nil }
		if n, err := With(t.Context(), m, one); n != 1 || err != nil {
			t.Errorf("With: %d, %v", n, err)
		}
	})
	seed(t, "the work finds its lease, and may extend it", func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Mutex(redistest.Name(t), TTL(10*time.Second), Fenced())
		err := m.Do(t.Context(), func(ctx context.Context) error {
			lease, ok := FromContext(ctx)
			if !ok || !lease.Held() || fenceOf(t, lease) == 0 {
				t.Fatalf("the lease in the context is %v, %v", lease, ok)
			}
			if _, ok := holds(t, lease); !ok {
				t.Error("it is not that of the holder")
			}
			if err := lease.Extend(ctx, time.Minute); err != nil {
				t.Error(err)
			}
			// The innermost counts, where there are several.
			return l.Mutex(m.name+"-inner").Do(ctx, func(inner context.Context) error {
				if within, ok := FromContext(inner); !ok || within == lease {
					t.Error("the inner work finds the outer lease")
				}
				return nil
			})
		})
		redistest.Must(t, err)
		if _, ok := FromContext(t.Context()); ok {
			t.Error("a lease in a context without")
		}
	})
}

func TestSeedRedisLock_OneOwner(t *testing.T) {
	t.Parallel()
	seed(t, "what she holds he does not get, until she is done", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		err := m.Do(t.Context(), func(context.Context) error {
			if busy := mustBeBusy(t, handle(his, m)); busy.Holder != "alice" {
				t.Errorf("the holder is %q", busy.Holder)
			}
			return nil
		})
		redistest.Must(t, err)
		mustUnlock(t, mustTry(t, handle(his, m)))
	})
	seed(t, "one process holds two different locks at the same time", func(t *testing.T, s *redistest.Server) {
		_, his := twoProcesses(t, s)
		alpha, beta := his.Mutex(redistest.Name(t)), his.Mutex(redistest.Name(t)+"-beta")
		first := mustTry(t, alpha)
		mustUnlock(t, mustTry(t, beta))
		wantLocked(t, alpha, true)
		mustUnlock(t, first)
	})
	seed(t, "no nesting: the same owner is as busy as any", func(t *testing.T, s *redistest.Server) {
		hers, _ := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		err := m.Do(t.Context(), func(ctx context.Context) error {
			if busy := mustBeBusy(t, handle(hers, m)); busy.Holder != "alice" {
				t.Errorf("the holder is %q", busy.Holder)
			}
			return outOfTime(t, m, func(short context.Context) error {
				return handle(hers, m).Do(short, func(context.Context) error {
					t.Error("it ran within itself")
					return nil
				})
			})
		})
		wantBusy(t, err)
		free(t, m, soon)
	})
}

func TestSeedRedisLock_OwnerIdentity(t *testing.T) {
	t.Parallel()
	seed(t, "host and process by default, or a name of one's own, shown to whoever asks", func(t *testing.T, s *redistest.Server) {
		host, err := os.Hostname()
		if err != nil {
			t.Skip(err)
		}
		named, byDefault := newLocker(t, s.Client(t), owner("Alice in {wonder|land}")), newLocker(t, s.Client(t))
		for want, l := range map[string]*Locker{
			"Alice in {wonder|land}":           named,
			fmt.Sprint(host, ":", os.Getpid()): byDefault,
		} {
			m := l.Mutex(redistest.Name(t))
			held := mustTry(t, m)
			holders, err := m.Holders(t.Context())
			if err != nil || len(holders) != 1 || holders[0].Owner != want || holders[0].Token != held.Token() {
				t.Errorf("holders: %+v, %v; want %q", holders, err, want)
			}
			if busy := mustBeBusy(t, m); busy.Holder != want {
				t.Errorf("busy tells of %q, want %q", busy.Holder, want)
			}
		}
	})
	seed(t, "an owner's name proves nothing: a namesake neither releases nor extends", func(t *testing.T, s *redistest.Server) {
		hers, namesake := newLocker(t, s.Client(t), owner("alice")), newLocker(t, s.Client(t), owner("alice"))
		m := hers.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		other := handle(namesake, m).newLease()
		if _, ours, err := other.release(t.Context()); ours || err != nil {
			t.Errorf("a namesake's release: held %v, %v", ours, err)
		}
		if reply := mustRenew(t, other, time.Hour); reply != wire.RenewLost {
			t.Errorf("a namesake's renewal is answered %d", reply)
		}
		mustUnlock(t, held)
	})
}

func TestSeedRedisLock_AcquisitionTimeout(t *testing.T) {
	t.Parallel()
	seed(t, "freed within the time: got; not freed: refused", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		const life = 300 * time.Millisecond
		began := time.Now()
		inVain(t, handle(his, m), life)
		if took := time.Since(began); took < life {
			t.Errorf("it gave up after %s, want %s", took, life)
		}
		if n, err := m.Waiting(t.Context()); n != 0 || err != nil {
			t.Errorf("%d in line after that, %v", n, err)
		}
		waiter := inLine(t, handle(his, m), 1)
		mustUnlock(t, held)
		mustUnlock(t, waiter.got(t))
	})
}

func TestSeedRedisLock_StaleOwnerIsReplaced(t *testing.T) {
	t.Parallel()
	seed(t, "who waits gets the lock when its owner's life is over", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t), TTL(200*time.Millisecond), NoRenew())
		stale := mustTry(t, m)
		next := lockBeside(t, handle(his, m, TTL(time.Minute))).got(t)
		early := time.Duration(0)
		if s.Kind() == redistest.KindMini {
			early = 20 * time.Millisecond // by so much its keys may expire too early on a busy machine
		}
		if left := time.Until(stale.Deadline()); left > early {
			t.Errorf("the stale owner still believes in it for %s", left)
		}
		mustUnlock(t, next)
	})
	seed(t, "expired is replaced, alive is not, whoever the owner is", func(t *testing.T, s *redistest.Server) {
		hers, _ := twoProcesses(t, s)
		for _, owner := range []string{"alice", "bob"} {
			m := hers.Mutex(redistest.Name(t) + owner)
			mustUnlock(t, mustTry(t, m)) // no owner at all
			store(t, m, owner, time.Minute)
			mustBeBusy(t, m)
			store(t, hers.Mutex(m.name+"-past"), owner, -time.Millisecond)
			mustUnlock(t, mustTry(t, hers.Mutex(m.name+"-past")))
		}
	})
	seed(t, "of a stale and a live holder only the stale one is cleared away", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		name := redistest.Name(t)
		both := hers.Semaphore(name, 2)
		live := mustTry(t, both)
		// Of those who come for the one stale slot, one gets it.
		store(t, both, "long gone", -time.Minute)
		var wg sync.WaitGroup
		var got [8]bool
		for i := range got {
			redistest.Go(&wg, func() {
				_, err := handle([]*Locker{hers, his}[i%2], both).TryLock(context.Background())
				if got[i] = err == nil; err != nil && !errors.Is(err, ErrBusy) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		n := 0
		for _, ok := range got {
			if ok {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d took the one stale slot; %s", n, dump(both))
		}
		mustUnlock(t, live)
	})
}

func TestSeedRedisLock_Extend(t *testing.T) {
	t.Parallel()
	seed(t, "an extended lock outlives the life it began with", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t), TTL(2*time.Second), NoRenew())
		held := mustTry(t, m)
		first, _ := holds(t, held)
		redistest.Must(t, held.Extend(t.Context(), 100*time.Second))
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).After(first) }, "the end of the life it began with")
		deadline, ok := holds(t, held)
		if left := deadline.Sub(serverNow(t, m)); !ok || left < 100*time.Second-soon {
			t.Errorf("stored %v, for %s", ok, left)
		}
		if left := time.Until(held.Deadline()); left < 99*time.Second-soon {
			t.Errorf("the lease itself thinks of %s", left)
		}
		if busy := mustBeBusy(t, handle(his, m)); busy.ExpiresIn < 100*time.Second-soon {
			t.Errorf("he is told of %s", busy.ExpiresIn)
		}
		// Never shorter than it was.
		redistest.Must(t, held.Extend(t.Context(), time.Second))
		if now, _ := holds(t, held); now.Before(deadline) {
			t.Errorf("an Extend shortened it from %s to %s", deadline, now)
		}
		mustUnlock(t, held)
	})
	seed(t, "an extension of what was lost fails and takes nothing back", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t), TTL(100*time.Millisecond), NoRenew())
		lost := mustTry(t, m)
		next := untilTaken(t, handle(his, m, TTL(time.Minute)))
		if err := lost.Extend(t.Context(), time.Minute); !errors.Is(err, ErrNotHeld) || !strings.Contains(err.Error(), m.name) {
			t.Errorf("Extend: %v, want ErrNotHeld", err)
		}
		if _, ok := holds(t, next); !ok || band(t, m, "h:") != 1 {
			t.Errorf("the extension took the lock back; %s", dump(m))
		}
		mustUnlock(t, next)
		if err := next.Extend(t.Context(), time.Minute); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Extend after Unlock: %v, want ErrNotHeld", err)
		}
	})
}

func TestSeedRedisLock_LockedForALiveOwnerOnly(t *testing.T) {
	t.Parallel()
	seed(t, "owner and time decide: nobody, expired, alive", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		for _, owner := range []string{"alice", "bob"} {
			name := redistest.Name(t) + owner
			wantLocked(t, hers.Mutex(name), false)
			for suffix, lasts := range map[string]time.Duration{"-past": -time.Second, "-future": time.Minute} {
				m := hers.Mutex(name + suffix)
				store(t, m, owner, lasts)
				wantLocked(t, m, lasts > 0)
				wantLocked(t, handle(his, m), lasts > 0)
				holders, err := m.Holders(t.Context())
				if err != nil || len(holders) > 1 || (len(holders) == 1) != (lasts > 0) {
					t.Errorf("holders: %+v, %v", holders, err)
				}
			}
		}
	})
	seed(t, "mine is what my lease says", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t), TTL(100*time.Millisecond), NoRenew())
		mine := mustTry(t, m)
		next := untilTaken(t, handle(his, m, TTL(time.Minute)))
		if mine.Held() || !next.Held() {
			t.Errorf("hers is held: %v, his: %v", mine.Held(), next.Held())
		}
		wantLocked(t, m, true)
		mustUnlock(t, next)
		wantLocked(t, m, false)
	})
}

func TestSeedRedisLock_Stress(t *testing.T) {
	t.Parallel()
	seed(t, "many owners, few locks: what one writes in the lock is there when it leaves", func(t *testing.T, s *redistest.Server) {
		const owners, locks, rounds = 6, 3, 4
		prefix := redistest.Name(t)
		rdb := s.Client(t)
		var wg sync.WaitGroup
		for i := range owners {
			l := newLocker(t, s.Client(t), owner(fmt.Sprint("owner ", i)))
			redistest.Go(&wg, func() {
				for j := range rounds * locks {
					widget := fmt.Sprint(prefix, "-", (i+j)%locks)
					err := l.Mutex(widget).Do(context.Background(), func(ctx context.Context) error {
						mine := fmt.Sprint(i, "/", j)
						if err := rdb.Set(ctx, widget, mine, time.Minute).Err(); err != nil {
							return err
						}
						found, err := rdb.Get(ctx, widget).Result()
						if err == nil && found != mine {
							err = fmt.Errorf("wrote %s, found %s", mine, found)
						}
						return err
					})
					if err != nil {
						t.Errorf("owner %d, %s: %v", i, widget, err)
					}
				}
			})
		}
		wg.Wait()
	})
}

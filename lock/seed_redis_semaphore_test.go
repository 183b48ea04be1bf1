package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// What the specs of the gem redis-semaphore (dv/redis-semaphore) define, and
// where it is shown here.
//
//	has the correct amount of available resources    TestSeedRedisSemaphore_Available
//	... before locking                               TestSeedRedisSemaphore_Available
//	should not exist from the start                  TestSeedRedisSemaphore_Exists
//	should be unlocked from the start                TestSeedRedisSemaphore_LockStatus
//	should lock and unlock                           TestSeedRedisSemaphore_LockStatus
//	should always have the correct lock-status       TestSeedRedisSemaphore_LockStatus
//	should not lock twice as a mutex                 TestSeedRedisSemaphore_AtMostNHolders
//	should not lock three times with two resources   TestSeedRedisSemaphore_AtMostNHolders
//	should get all different tokens when saturating  TestSeedRedisSemaphore_NumberedResources
//	5 different indexes for 5 parallel calls         TestSeedRedisSemaphore_NumberedResources
//	the same index for 5 calls in serial             TestSeedRedisSemaphore_NumberedResources
//	can return the passed in token                   TestSeedRedisSemaphore_NumberedResources
//	should execute the given code block              TestSeedRedisSemaphore_Work
//	should return the value of the block             TestSeedRedisSemaphore_Work
//	should pass an exception right through           TestSeedRedisSemaphore_Work
//	should not leave it locked after an exception    TestSeedRedisSemaphore_Work
//	should disappear without a trace with delete!    TestSeedRedisSemaphore_Delete
//	should not block when the timeout is zero        TestSeedRedisSemaphore_TimeoutZero
//	should be locked when the timeout is zero        TestSeedRedisSemaphore_TimeoutZero
//	should recover after being killed after lpop     TestSeedRedisSemaphore_NoTokenIsLost
//	expires keys, also after unlocking               TestSeedRedisSemaphore_LeavesNothingBehind
//	can dynamically add resources                    TestSeedRedisSemaphore_ChangingResources
//	stale locks released by a third process          TestSeedRedisSemaphore_Watchdog
//	should restore resources of stale clients        TestSeedRedisSemaphore_StaleClients
//	with time support it is not the local time       TestSeedRedisSemaphore_ServerTime
//	all_tokens: available and grabbed ones           TestSeedRedisSemaphore_AllTokens
//	(private) gracefully expires a stale clean-up    TestSeedRedisSemaphore_StaleClients
//
// Its README beyond that:
//
//	a fair line, first come, first served            TestSeedRedisSemaphore_FairLine
//	no timeout waits for ever, a timeout gives up    TestSeedRedisSemaphore_TimeoutZero
//	wait and signal, producer and consumer           TestSeedRedisSemaphore_WaitAndSignal
//	unlock returns the new number available          TestSeedRedisSemaphore_Available
//
// Not carried over, on purpose:
//
//   - use_local_time, and servers without TIME (before Redis 2.6): clients do
//     not agree on the time.
//   - expiration, after which a semaphore may vanish in the middle of a section:
//     what is idle is gone at once, what is held has a TTL that is never
//     shorter than its holders'.
//   - the version key and its upgrade: there is one key, and nothing in it that
//     outlives its use.
//   - exists_or_create!: there is nothing to create. N is the caller's.
//   - a counter, or a list of tokens, that grows with each signal: whoever
//     unlocks twice does not make a resource. A pool is a set.
//   - a token taken off the list and not recorded yet, which a crash at that
//     moment loses.
//   - waiting for -1 seconds: below 0 is a mistake.
//   - locked? about "my" tokens: Lease.Held. Locked is about the semaphore.
//   - a stale-client check that only runs when somebody remembers to run it.

func TestSeedRedisSemaphore_Available(t *testing.T) {
	t.Parallel()
	seed(t, "all are available before anybody locks, and the release tells the new number", func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		for _, n := range []int{1, 2, 5} {
			m := l.Semaphore(fmt.Sprint(redistest.Name(t), n), n)
			wantAvailable(t, m, n)
			var leases []*Lease
			for i := range n {
				leases = append(leases, mustTry(t, m))
				wantAvailable(t, m, n-1-i)
			}
			for i, le := range leases {
				if free, err := le.Release(t.Context()); free != i+1 || err != nil {
					t.Errorf("Release %d of %d: %d, %v; want %d", i+1, n, free, err, i+1)
				}
				wantAvailable(t, m, i+1)
			}
		}
	})
	seed(t, "a second unlock makes no resource", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 2)
		first, _ := mustTry(t, m), mustTry(t, m)
		mustUnlock(t, first)
		for range 3 {
			if _, err := first.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("another Release: %v, want ErrNotHeld", err)
			}
			if _, ours, err := first.release(t.Context()); ours || err != nil {
				t.Errorf("another release sent: held %v, %v", ours, err)
			}
		}
		wantAvailable(t, m, 1)
		mustTry(t, m)
		mustBeBusy(t, m)
	})
}

func TestSeedRedisSemaphore_Exists(t *testing.T) {
	t.Parallel()
	seed(t, "not from the start, but from the first lock, until the last unlock", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 2)
		wantExists(t, m, false)
		first := mustTry(t, m)
		second := mustTry(t, m)
		wantExists(t, m, true)
		mustUnlock(t, first)
		wantExists(t, m, true)
		mustUnlock(t, second)
		wantExists(t, m, false)
	})
}

func TestSeedRedisSemaphore_LockStatus(t *testing.T) {
	t.Parallel()
	seed(t, "a mutex: unlocked from the start, locked, unlocked again", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		wantLocked(t, m, false)
		lease, ok, err := m.Acquire(t.Context(), soon)
		if !ok || err != nil {
			t.Fatalf("Acquire: %v, %v", ok, err)
		}
		wantLocked(t, m, true)
		mustUnlock(t, lease)
		wantLocked(t, m, false)
	})
	seed(t, "two resources: each lease tells of itself, Exists of anybody, Locked of room", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 2)
		first, second := mustTry(t, m), mustTry(t, m)
		wantLocked(t, m, true)
		mustUnlock(t, first)
		if first.Held() || !second.Held() {
			t.Errorf("held: %v, %v; want the second only", first.Held(), second.Held())
		}
		wantLocked(t, m, false) // there is room
		wantExists(t, m, true)  // and somebody inside
		mustUnlock(t, second)
		wantExists(t, m, false)
	})
}

func TestSeedRedisSemaphore_AtMostNHolders(t *testing.T) {
	t.Parallel()
	seed(t, "one resource is not had twice, two are not had three times", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		for _, n := range []int{1, 2} {
			m := hers.Semaphore(fmt.Sprint(redistest.Name(t), n), n)
			var leases []*Lease
			for range n {
				leases = append(leases, mustTry(t, m))
			}
			for _, l := range []*Locker{hers, his} {
				mustBeBusy(t, handle(l, m))
				inVain(t, handle(l, m), 50*time.Millisecond)
			}
			mustUnlock(t, leases[0])
			mustTry(t, handle(his, m))
			mustBeBusy(t, m)
		}
	})
}

func TestSeedRedisSemaphore_Watchdog(t *testing.T) {
	t.Parallel()
	seed(t, "a third process clears stale locks away, and no others", func(t *testing.T, s *redistest.Server) {
		prefix := redistest.Name(t)
		own := func(o *Options) { o.Prefix = prefix }
		l, watchdog := newLocker(t, s.Client(t), own), newLocker(t, s.Client(t), own)
		live, stale := l.Mutex("live"), l.Mutex("stale")
		held := mustTry(t, live)
		store(t, stale, "dead", time.Minute)
		if n, err := watchdog.sweep(t.Context()); n != 0 || err != nil {
			t.Errorf("Sweep of the living: %d, %v", n, err)
		}
		wantLocked(t, stale, true)
		redistest.Must(t, raw(stale).Del(t.Context(), stale.Key()).Err())
		store(t, stale, "dead", -time.Second)
		if n, err := watchdog.sweep(t.Context()); n != 1 || err != nil {
			t.Errorf("Sweep: %d, %v; want the stale one", n, err)
		}
		wantLocked(t, stale, false)
		wantExists(t, stale, false)
		mustUnlock(t, held)
	})
	seed(t, "nobody needs one: a blocked waiter takes over by itself", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t), TTL(200*time.Millisecond), NoRenew())
		mustTry(t, m)
		mustUnlock(t, lockBeside(t, handle(his, m, TTL(time.Minute))).got(t))
	})
}

func TestSeedRedisSemaphore_StaleClients(t *testing.T) {
	t.Parallel()
	seed(t, "refused while the client is alive, restored when it is stale", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(time.Minute), NoRenew())
		alive := mustTry(t, m)
		inVain(t, m, 0)
		mustUnlock(t, alive)
		mustTry(t, handle(m.locker, m, TTL(100*time.Millisecond), NoRenew()))
		lease, ok, err := handle(m.locker, m, TTL(time.Minute)).Acquire(t.Context(), soon)
		if !ok || err != nil {
			t.Fatalf("Acquire of what goes stale: %v, %v", ok, err)
		}
		if fence := time.UnixMicro(fenceOf(t, lease)); serverNow(t, m).Before(fence) {
			t.Errorf("the fence %s is ahead of the server", fence)
		}
	})
	seed(t, "whoever comes clears away, in the same step: no clean-up to hold up others", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Semaphore(redistest.Name(t), 3)
		for range 3 {
			store(t, m, "dead", -time.Second)
		}
		if n := band(t, m, "h:"); n != 3 {
			t.Fatalf("%d are stored, want 3", n)
		}
		mustTry(t, handle(his, m))
		if n := band(t, m, "h:"); n != 1 {
			t.Errorf("%d holders are stored after the first ask, want 1; %s", n, dump(m))
		}
		wantAvailable(t, m, 2)
	})
}

func TestSeedRedisSemaphore_ServerTime(t *testing.T) {
	t.Parallel()
	seed(t, "deadlines are counted by the server's clock", func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(10*time.Second))
		before := serverNow(t, m)
		deadline, ok := holds(t, mustTry(t, m))
		after := serverNow(t, m)
		if early, late := before.Add(10*time.Second-expiryError(s)), after.Add(10*time.Second+expiryError(s)); !ok || deadline.Before(early) || deadline.After(late) {
			t.Errorf("the deadline is %s, want between %s and %s", deadline, early, late)
		}
	})
	t.Run("a client whose clock is years off makes no difference", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartMini(t)
		now := time.Now().AddDate(20, 0, 0)
		s.SetTime(t, now)
		hers, his := twoProcesses(t, s)
		m := asksAlways(hers).Mutex(redistest.Name(t), TTL(10*time.Second)) // in a miniredis its clock's steps do not move when keys expire
		deadline, ok := holds(t, mustTry(t, m))
		if want := now.Add(10 * time.Second); !ok || deadline.Sub(want).Abs() > 2*time.Millisecond {
			t.Errorf("the deadline is %s, want %s", deadline, want)
		}
		s.SetTime(t, now.Add(10*time.Second-5*time.Millisecond))
		mustBeBusy(t, handle(his, m))
		s.SetTime(t, now.Add(10*time.Second+5*time.Millisecond))
		mustUnlock(t, mustTry(t, handle(his, m)))
	})
}

func TestSeedRedisSemaphore_FairLine(t *testing.T) {
	t.Parallel()
	seed(t, "they are let in by order of arrival", func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Semaphore(redistest.Name(t), 2)
		held := []*Lease{mustTry(t, m), mustTry(t, m)}
		var line []*attempt
		for i := range 8 {
			line = append(line, inLine(t, handle([]*Locker{hers, his}[i%2], m), i+1))
		}
		for i, a := range line {
			mustUnlock(t, held[0])
			held = append(held[1:], a.got(t))
			for j, behind := range line[i+1:] {
				if !behind.pending() {
					t.Fatalf("number %d got in before its turn, with number %d", i+j+2, i+1)
				}
			}
			mustBeBusy(t, m)
		}
	})
}

func TestSeedRedisSemaphore_WaitAndSignal(t *testing.T) {
	t.Parallel()
	seed(t, "jobs go from producers to consumers unmodified, in order, each to one", func(t *testing.T, s *redistest.Server) {
		producer, consumer := twoProcesses(t, s)
		name := redistest.Name(t)
		jobs := []string{"first", "a b|c%20{d}~", "\x00\xff\n", `{"id":7}`, "ümläut \u2028 end"}
		in, out := producer.Pool(name), consumer.Pool(name)
		// The consumer comes first, and waits.
		first := lockBeside(t, out.m)
		redistest.Eventually(t, soon, func() bool {
			info, err := in.Inspect(t.Context())
			return err == nil && info.Waiting == 1
		}, "a consumer in line")
		mustPut(t, in, len(jobs), jobs...)
		job := first.got(t)
		for i, want := range jobs {
			if i > 0 {
				job = mustTake(t, out, want)
			}
			if job.Value() != want {
				t.Errorf("job %d is %q, want %q", i, job.Value(), want)
			}
			redistest.Must(t, job.Consume(t.Context()))
			if err := job.Consume(t.Context()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("consumed twice: %v, want ErrNotHeld", err)
			}
		}
		if _, err := out.m.TryLock(t.Context()); !errors.Is(err, ErrBusy) {
			t.Errorf("one more: %v, want ErrBusy", err)
		}
	})
	seed(t, "a token that is signalled twice is there once", func(t *testing.T, s *redistest.Server) {
		p := newLocker(t, s.Client(t)).Pool(redistest.Name(t))
		mustPut(t, p, 1, "token")
		mustPut(t, p, 0, "token")
		taken := mustTake(t, p, "token")
		mustPut(t, p, 0, "token") // it has a holder
		if _, err := p.m.TryLock(t.Context()); !errors.Is(err, ErrBusy) {
			t.Errorf("a second one: %v, want ErrBusy", err)
		}
		mustPutBack(t, taken)
		if n, err := p.available(t.Context()); n != 1 || err != nil {
			t.Errorf("Available: %d, %v; want 1", n, err)
		}
	})
	seed(t, "many producers and consumers: no job lost, none done twice", func(t *testing.T, s *redistest.Server) {
		const producers, consumers, each = 3, 3, 10
		name := redistest.Name(t)
		ctx, cancel := context.WithTimeout(context.Background(), 2*soon)
		defer cancel()
		done := make(chan string, 2*producers*each)
		var wg sync.WaitGroup
		for i := range producers {
			p := newLocker(t, s.Client(t)).Pool(name)
			redistest.Go(&wg, func() {
				for j := range each {
					if _, err := p.Put(ctx, fmt.Sprint("job ", i, " ", j)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for range consumers {
			p := newLocker(t, s.Client(t)).Pool(name)
			redistest.Go(&wg, func() {
				for range producers * each / consumers {
					job, err := p.Take(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					if err := job.Consume(ctx); err != nil {
						t.Error(err)
					}
					done <- job.Value()
				}
			})
		}
		wg.Wait()
		close(done)
		seen := map[string]bool{}
		for job := range done {
			if seen[job] {
				t.Errorf("%s was done twice", job)
			}
			seen[job] = true
		}
		if len(seen) != producers*each {
			t.Errorf("%d jobs were done, want %d", len(seen), producers*each)
		}
	})
}

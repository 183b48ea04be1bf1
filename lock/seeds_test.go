package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/lock/pool"
)

// What the specs and READMEs of four predecessors define: the gems redis-lock (mlanett/redis-lock), redis-mutex
// (kenn/redis-mutex) and redis-semaphore (dv/redis-semaphore), and the RedisMutex of Cloud 66's article. Each of their
// behaviours is one test, which names what the seed says of it; several seeds share what shows it. The macro of
// redis-mutex has its cases in package e2e. Alice and Bob are two processes.
//
// Not carried over, on purpose:
//
//   - polling: sleep, recheck_frequency, key event notifications. A release grants to the first in line and tells it
//     so.
//   - an owner's name as proof of ownership: two threads of one process have the same name. The token proves it.
//   - an unlock by force, or a release, that deletes whoever's lock it is by then, and tells nobody.
//   - an expiration that ends a living holder (a lease is renewed; see MaxHold and NoRenew), or that lets a semaphore
//     vanish in the middle of a section; the expiry passed as a key, which no Redis Cluster takes; a life in whole
//     seconds.
//   - clients' clocks (use_local_time); waiting for -1 seconds, or for ever: a context ends each wait.
//   - locks of two keys, of which one may be gone; WATCH and MULTI; a token taken off a list and not recorded yet.
//   - keys that collide on ":" or "."; a sweep that counts what it did not delete, or that somebody has to remember to
//     run.
//   - a counter, or a list of tokens, that grows with each signal; exists_or_create!, the version key and its upgrade.
//   - locked? about "me": Lease.Held says that. Lock.Locked is about anybody. And what a compiler says.

// behaviour is one of a seed's.
type behaviour struct {
	says  string
	holds func(t *testing.T, s *redistest.Server)
}

// seed holds behaviours of a seed on every kind of server.
func seed(t *testing.T, all ...behaviour) {
	t.Helper()
	t.Parallel()
	for _, b := range all {
		t.Run(b.says, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, b.holds)
		})
	}
}

// redis-mutex.

// "locks the universe", "fails to lock when the lock is taken"
func TestSeedRedisMutex_Excludes(t *testing.T) { seed(t, scopes, waitsInVain) }

// "unlocks only once"
func TestSeedRedisMutex_UnlocksOnlyOnce(t *testing.T) { seed(t, unlocksOnce) }

// "prevents accidental unlock from outside"
func TestSeedRedisMutex_OnlyTheHolderUnlocks(t *testing.T) { seed(t, unlocksOnce, lateUnlock) }

// "sets expiration"; of the README: defaults for all locks, options for one
func TestSeedRedisMutex_SetsTheExpiration(t *testing.T) { seed(t, expires) }

// "overwrites a lock that is expired"
func TestSeedRedisMutex_TakesOverAnExpiredLock(t *testing.T) { seed(t, replacesTheStale) }

// "fails to unlock past the expiration"
func TestSeedRedisMutex_LateUnlockLeavesTheNewHolderAlone(t *testing.T) { seed(t, lateUnlock) }

// "ensures unlocking when the block fails"
func TestSeedRedisMutex_ReleasesWhenTheWorkFails(t *testing.T) { TestRule10_PanicKeepsItsStack(t) }

// "resets locking state on reuse"
func TestSeedRedisMutex_HandlesCarryNoState(t *testing.T) { seed(t, handlesCarryNoState) }

// "tells about the lock's state", "tells that an expired lock is not locked"
func TestSeedRedisMutex_TellsTheState(t *testing.T) { seed(t, tellsTheState) }

// "returns the value of the block"
func TestSeedRedisMutex_ReturnsTheValueOfTheWork(t *testing.T) { seed(t, returnsTheValue) }

// "raises LockError", "raises UnlockError"
func TestSeedRedisMutex_ErrorsInsteadOfBooleans(t *testing.T) { TestBusyErrorTellsWhoHolds(t) }

// stress script: four processes, 1,000 sections, no overlap, and none fails
func TestSeedRedisMutex_Stress(t *testing.T) { seed(t, keepsWhatIsWritten) }

// "sweeps expired locks"
func TestSeedRedisMutex_Sweep(t *testing.T) { seed(t, sweeps) }

// README: block: seconds, block: 0
func TestSeedRedisMutex_WaitsForSoLong(t *testing.T) { seed(t, waitsInVain, waitsUntilReleased) }

// README: a key from an object with an id
func TestSeedRedisMutex_KeysFromValues(t *testing.T) {
	t.Run("an ID", TestFor)
	t.Run("no ID", TestForRefusesWhatHasNoIdentity)
	t.Run("more parts", TestForTakesOptions)
}

// README: unlock(force)
func TestSeedRedisMutex_ForcedUnlock(t *testing.T) { TestBreakOneOfSeveral(t) }

// redis-lock.

// "can acquire and release a lock"
func TestSeedRedisLock_AcquireAndRelease(t *testing.T) { seed(t, tellsTheState, scopes) }

// "returns the value of the block, the lambda", "passes the lock into the block, the lambda"
func TestSeedRedisLock_Work(t *testing.T) { seed(t, returnsTheValue, passesTheLease) }

// "can prevent other use of a lock", "can lock two different items at the same time", "does not support nesting"
func TestSeedRedisLock_OneOwner(t *testing.T) { seed(t, scopes, handlesCarryNoState) }

// "can use a timeout", "does not take too long to time out"
func TestSeedRedisLock_AcquisitionTimeout(t *testing.T) { seed(t, waitsInVain, waitsUntilReleased) }

// "can time out an expired lock", "can detect broken or expired locks"; of the README: cleaning up does not touch
// others
func TestSeedRedisLock_StaleOwnerIsReplaced(t *testing.T) {
	seed(t, replacesTheStale, sweeps)
}

// "can extend the life of a lock"; of the README: extend_life raises when the lock was lost
func TestSeedRedisLock_Extend(t *testing.T) { TestExtend(t) }

// "can determine if it is locked"
func TestSeedRedisLock_LockedForALiveOwnerOnly(t *testing.T) { seed(t, tellsTheState) }

// README: the owner defaults to HOSTNAME:PID
func TestSeedRedisLock_OwnerIdentity(t *testing.T) { seed(t, ownersAreLabels, lateUnlock) }

// stress script: what was written in the lock is still there
func TestSeedRedisLock_Stress(t *testing.T) { seed(t, keepsWhatIsWritten) }

// The RedisMutex of the article.

// acquire and expiry are one step
func TestSeedLuaMutex_NeverWithoutAnExpiry(t *testing.T) { seed(t, neverWithoutATTL) }

// a global scope, and a local scope within it
func TestSeedLuaMutex_Scopes(t *testing.T) { seed(t, scopes) }

// who is blocked gets in when it is released
func TestSeedLuaMutex_BlockedUntilReleased(t *testing.T) { seed(t, waitsUntilReleased) }

// a greedy or dead holder is cut off (max_lock_time)
func TestSeedLuaMutex_MaxLockTime(t *testing.T) { seed(t, cutsOffTheGreedy, keepsTheLiving) }

// release says whether the lock was held
func TestSeedLuaMutex_ReleaseSaysWhetherItWasHeld(t *testing.T) { seed(t, unlocksOnce, lateUnlock) }

// synchronise returns the value of the block
func TestSeedLuaMutex_Synchronise(t *testing.T) { seed(t, returnsTheValue) }

// redis-semaphore.

// "has the correct amount of available resources", also before locking; of the README: unlock returns the new number
func TestSeedRedisSemaphore_Available(t *testing.T) { seed(t, countsTheFree) }

// "should not exist from the start"
func TestSeedRedisSemaphore_Exists(t *testing.T) { seed(t, existsWhileUsed) }

// "should be unlocked from the start", "should lock and unlock", "should always have the correct lock-status"
func TestSeedRedisSemaphore_LockStatus(t *testing.T) { seed(t, tellsTheState, existsWhileUsed) }

// "should not lock twice as a mutex", "should not lock three times with two resources"
func TestSeedRedisSemaphore_AtMostNHolders(t *testing.T) { seed(t, changesN) }

// "should get all different tokens when saturating", "5 different indexes for 5 parallel calls", "the same index for 5
// calls in serial", "can return the passed in token"
func TestSeedRedisSemaphore_NumberedResources(t *testing.T) { seed(t, numbersResources) }

// "should execute the given code block", "... return its value", "... pass an exception right through", "... not leave
// it locked"
func TestSeedRedisSemaphore_Work(t *testing.T) {
	seed(t, returnsTheValue, passesTheLease)
}

// "should disappear without a trace with delete!"
func TestSeedRedisSemaphore_Delete(t *testing.T) { seed(t, deletes) }

// "should not block when the timeout is zero", "should be locked when the timeout is zero"; of the README: no timeout
// waits for ever
func TestSeedRedisSemaphore_TimeoutZero(t *testing.T) { seed(t, waitsInVain, waitsUntilReleased) }

// "should recover after being killed after lpop"
func TestSeedRedisSemaphore_NoTokenIsLost(t *testing.T) { seed(t, resourcesComeBack, unheardOf) }

// "expires keys, also after unlocking"
func TestSeedRedisSemaphore_LeavesNothingBehind(t *testing.T) {
	seed(t, neverWithoutATTL, existsWhileUsed)
}

// "can dynamically add resources"
func TestSeedRedisSemaphore_ChangingResources(t *testing.T) { seed(t, changesN, passesJobs) }

// "stale locks released by a third process"
func TestSeedRedisSemaphore_Watchdog(t *testing.T) { seed(t, sweeps, replacesTheStale) }

// "should restore resources of stale clients", "gracefully expires a stale clean-up"
func TestSeedRedisSemaphore_StaleClients(t *testing.T) {
	seed(t, replacesTheStale, resourcesComeBack)
}

// "all_tokens: available and grabbed ones"
func TestSeedRedisSemaphore_AllTokens(t *testing.T) { seed(t, tellsAllValues) }

// README: a fair line, first come, first served
func TestSeedRedisSemaphore_FairLine(t *testing.T) { TestFirstComeFirstServed(t) }

// README: wait and signal, producer and consumer
func TestSeedRedisSemaphore_WaitAndSignal(t *testing.T) { seed(t, passesJobs, signalsOnce) }

// How it is shown.

var waitsInVain = behaviour{"who waits for a lock that stays taken fails when its time is up; 0 answers at once, " +
	"below 0 is a mistake", func(t *testing.T, s *redistest.Server) {
	hers, his := twoProcesses(t, s)
	m := hers.Mutex(redistest.Name(t))
	held, ok, err := m.Acquire(t.Context(), 0)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, wait := range []time.Duration{0, 100 * time.Millisecond} {
		began := time.Now()
		inVain(t, handle(his, m), wait)
		if took := time.Since(began); took < wait || !held.Held() {
			t.Errorf("it gave up after %s, want %s; held %v", took, wait, held.Held())
		}
		waiting(t, m, 0)
	}
	if lease, ok, err := m.Acquire(t.Context(), -time.Second); lease != nil || ok || err == nil ||
		errors.Is(err, lock.ErrBusy) {
		t.Errorf("Acquire: %v, %v, %v", lease, ok, err)
	}
	mustUnlock(t, held)
	free(t, m)
}}

var waitsUntilReleased = behaviour{"a wait ends with the lock when it is released, or with its context",
	func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		acquire := func(ctx context.Context) (*lock.Lease, error) {
			lease, _, err := handle(his, m).Acquire(ctx, inside.MaxTTL)
			return lease, err
		}
		waiter := beside(t, m, acquire)
		waiting(t, m, 1)
		other := beside(t, m, acquire)
		waiting(t, m, 2)
		other.cancel()
		wantErr(t, other.failed(t), context.Canceled, "an ended context")
		waiting(t, m, 1)
		fresh(t, hers)
		mustUnlock(t, held)
		wantHeld(t, m, 1) // as soon as the release has returned, without a step of the waiter
		mustUnlock(t, waiter.got(t))
	}}

var unlocksOnce = behaviour{"the second unlock says that there was nothing to unlock, and frees nobody who came after",
	func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		first := mustTry(t, m)
		if free, err := first.Release(t.Context()); free != 1 || err != nil || first.Held() {
			t.Errorf("Release: %d, %v; held %v", free, err, first.Held())
		}
		next := mustTry(t, handle(his, m))
		for range 2 {
			if free, err := first.Release(t.Context()); !errors.Is(err, lock.ErrNotHeld) || free != 0 {
				t.Errorf("another Release: %d, %v; want 0, ErrNotHeld", free, err)
			}
		}
		mustBeBusy(t, m)
		mustUnlock(t, next)
	}}

var expires = behaviour{"the deadline is the TTL from now: a default for all locks of a Locker, and an option for one",
	func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), func(o *lock.Options) { o.TTL = time.Hour })
		for want, m := range map[time.Duration]*lock.Lock{
			time.Hour:       l.Mutex(redistest.Name(t)),
			2 * time.Hour:   l.Mutex(redistest.Name(t), lock.TTL(2*time.Hour)),
			lock.DefaultTTL: newLocker(t, s.Client(t)).Mutex(redistest.Name(t)),
		} {
			if d, ok := left(t, m, mustTry(t, m)); !ok || d > want+expiryError(s) || d < want-soon {
				t.Errorf("held %v, for %s; want %s", ok, d, want)
			}
		}
	}}

// expiryError is by how much a key of a miniredis may expire too early while a long script runs; see redistest. Of
// Redis it is the millisecond to which a key's expiry is exact.
func expiryError(s *redistest.Server) time.Duration {
	if s.Kind() == redistest.KindMini {
		return time.Second
	}
	return 2 * time.Millisecond
}

var replacesTheStale = behaviour{"a lock whose owner never came back is taken when its time is up, at once or by " +
	"who waits", func(t *testing.T, s *redistest.Server) {
	hers, his := twoProcesses(t, s)
	for _, take := range []func(m *lock.Lock) *lock.Lease{
		func(m *lock.Lock) *lock.Lease { return untilTaken(t, m) },
		func(m *lock.Lock) *lock.Lease { return lockBeside(t, m).got(t) },
	} {
		m := hers.Mutex(redistest.Name(t), lock.TTL(200*time.Millisecond), lock.NoRenew())
		stale := mustTry(t, m)
		next := take(handle(his, m, lock.TTL(time.Hour)))
		if d := time.Until(stale.Deadline()); d > expiryError(s) {
			t.Errorf("the stale owner still believes in it for %s", d)
		}
		wantLocked(t, m, true)
		mustUnlock(t, next)
		free(t, m)
	}
}}

var lateUnlock = behaviour{"an unlock past the expiration fails, and the new holder keeps the lock",
	leavesTheSuccessorAlone}

var handlesCarryNoState = behaviour{"the handle that has the lock does not get it again, and a second stay is " +
	"another one", func(t *testing.T, s *redistest.Server) {
	m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), lock.Fenced())
	held := mustTry(t, m)
	mustBeBusy(t, m)
	mustUnlock(t, held)
	again := mustTry(t, m)
	if again.Token() == held.Token() || fenceOf(t, again) <= fenceOf(t, held) || held.Held() {
		t.Errorf("a second stay with token %q, after %q", again.Token(), held.Token())
	}
	mustUnlock(t, again)
}}

var tellsTheState = behaviour{"locked while held, to everybody, and not before, after, or when it has expired",
	func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t))
		all := func(want bool) {
			t.Helper()
			wantLocked(t, m, want)
			wantLocked(t, handle(his, m), want)
			if holders, err := m.Holders(t.Context()); err != nil || (len(holders) == 1) != want {
				t.Errorf("holders: %+v, %v", holders, err)
			}
		}
		all(false)
		redistest.Must(t, m.Do(t.Context(), func(context.Context) error { all(true); return nil }))
		all(false)
		lost := mustTry(t, handle(his, m, lock.TTL(100*time.Millisecond), lock.NoRenew()))
		redistest.Eventually(t, soon, func() bool { locked, err := m.Locked(t.Context()); return err == nil && !locked },
			"the end of a lease")
		if all(false); lost.Held() {
			t.Error("its holder still believes in it")
		}
	}}

var returnsTheValue = behaviour{"the value and the error of the work are those of the call; without the lock it " +
	"does not run", func(t *testing.T, s *redistest.Server) {
	hers, his := twoProcesses(t, s)
	m, short := hers.Mutex(redistest.Name(t), lock.Parts("server 17")), errors.New("short")
	n, err := lock.With(t.Context(), m, func(ctx context.Context) (int, error) {
		mustBeBusy(t, handle(his, m))
		return 7, short
	})
	if n != 7 || !errors.Is(err, short) {
		t.Errorf("With: %d, %v", n, err)
	}
	free(t, m)
	held := mustTry(t, m)
	mustNotTry(t, handle(his, m)) // connected, and the controls are read
	wantBusy(t, outOfTime(t, m, func(ctx context.Context) error {
		value, err := lock.With(ctx, handle(his, m), func(context.Context) (string, error) {
			t.Error("the work ran without the lock")
			return "result", nil
		})
		if value != "" {
			t.Errorf("With: %q", value)
		}
		return err
	}))
	mustUnlock(t, held)
}}

var passesTheLease = behaviour{"the work finds its lease, the innermost one, and may extend it",
	func(t *testing.T, s *redistest.Server) {
		l, name := newLocker(t, s.Client(t)), redistest.Name(t)
		m := l.Semaphore(name, 2, lock.TTL(10*time.Second))
		var during context.Context
		err := m.Do(t.Context(), func(ctx context.Context) error {
			during = ctx
			lease, ok := lock.FromContext(ctx)
			if !ok || !lease.Held() || lease.Token() == "" {
				t.Fatalf("the lease in the context is %v, %v", lease, ok)
			}
			wantAvailable(t, m, 1)
			redistest.Must(t, lease.Extend(ctx, time.Minute))
			return l.Mutex(name+"-inner").Do(ctx, func(inner context.Context) error {
				if within, ok := lock.FromContext(inner); !ok || within == lease {
					t.Error("the inner work finds the outer lease")
				}
				return nil
			})
		})
		redistest.Must(t, err)
		if during.Err() == nil {
			t.Error("the context goes on after Do")
		}
		if _, ok := lock.FromContext(t.Context()); ok {
			t.Error("a lease in a context without")
		}
		free(t, m)
	}}

var sweeps = behaviour{"what has expired is removed and counted, by a third process too, and what lives stays",
	func(t *testing.T, s *redistest.Server) {
		own := ownPrefix(t)
		l, watchdog := newLocker(t, s.Client(t), own), newLocker(t, s.Client(t), own)
		gone, mixed, future := l.Mutex("past"), l.Semaphore("present", 2), l.Mutex("future")
		mustTry(t, future)
		kept := mustTry(t, mixed)
		short := []lock.Option{lock.TTL(2 * time.Second), lock.NoRenew()}
		dead := []*lock.Lease{mustTry(t, handle(l, gone, short...)), mustTry(t, slots(l, mixed, 2, short...))}
		if n, err := insider.Sweep(t.Context(), watchdog); n != 0 && dead[0].Held() || err != nil {
			t.Errorf("Sweep of the living: %d, %v", n, err)
		}
		for _, le := range dead {
			ends(t, le.Bind(t.Context()), lock.ErrLost)
		}
		redistest.Eventually(t, soon, func() bool {
			n, err := mixed.Available(t.Context())
			return err == nil && n == 1 && !inUse(t, gone)
		}, "the end of two leases")
		// Whether a mutex whose holder has died is there to be removed depends on how it was stored.
		if n, err := insider.Sweep(t.Context(), watchdog); n < 1 || n > 2 || err != nil {
			t.Errorf("Sweep: %d, %v; want 1 or 2", n, err)
		}
		if n, err := insider.Sweep(t.Context(), watchdog); n != 0 || err != nil {
			t.Errorf("second Sweep: %d, %v; want 0: it counts what it removes", n, err)
		}
		free(t, gone)
		if _, ok := left(t, mixed, kept); !ok {
			t.Errorf("Sweep removed one that lives; %s", dump(mixed))
		}
	}}

var scopes = behaviour{"one local scope excludes itself, not another, nor the global one",
	func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		global := redistest.Name(t)
		held := mustTry(t, hers.Mutex(global, lock.Parts("17")))
		mustBeBusy(t, his.Mutex(global, lock.Parts("17")))
		for _, m := range []*lock.Lock{his.Mutex(global, lock.Parts("18")), his.Mutex(global),
			his.Mutex(global, lock.Parts(""))} {
			mustUnlock(t, mustTry(t, m))
		}
		mustUnlock(t, held)
	}}

var ownersAreLabels = behaviour{"host and process by default, or a name of one's own, shown to whoever asks",
	func(t *testing.T, s *redistest.Server) {
		for want, l := range map[string]*lock.Locker{
			"Alice in {wonder|land}": newLocker(t, s.Client(t), owner("Alice in {wonder|land}")),
			engine.Process():         newLocker(t, s.Client(t)),
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
	}}

var keepsWhatIsWritten = behaviour{"many owners: what one writes in the lock is there when it leaves, and none fails",
	func(t *testing.T, s *redistest.Server) {
		stress(t, calmServer(t, s), 1, 32)
	}}

var neverWithoutATTL = behaviour{
	"whatever takes or waits for the lock leaves it with a deadline and its key with a TTL", neverWithoutATTLOn,
}

func neverWithoutATTLOn(t *testing.T, s *redistest.Server) {
	hers, his := twoProcesses(t, s)
	for n := range 2 {
		m := hers.Semaphore(redistest.Name(t), n+1, lock.TTL(10*time.Second))
		expires := func(le *lock.Lease, least time.Duration) {
			t.Helper()
			ttl := client(t).PTTL(t.Context(), m.Key()).Val()
			if d, ok := left(t, m, le); !ok || d <= 0 || d > 10*time.Second+expiryError(s) || ttl <= 0 || ttl > time.Hour {
				t.Errorf("held %v, for %s, and the key for %s", ok, d, ttl)
			}
		}
		held := mustTry(t, m)
		for range n {
			mustTry(t, m)
		}
		expires(held, 0)
		mustBeBusy(t, slots(his, m, n+1))
		waiter := inLine(t, slots(his, m, n+1, lock.TTL(10*time.Second)), 1)
		expires(held, 0)
		mustUnlock(t, held)
		expires(waiter.got(t), 0)
	}
}

var cutsOffTheGreedy = behaviour{"a holder that does not let go is told to stop, and the next gets in", endsByItself}

var keepsTheLiving = behaviour{"a holder that lives and is not done keeps the lock beyond its TTL", isRenewed}

var countsTheFree = behaviour{"all are available before anybody locks, and the release tells the new number; a " +
	"second unlock makes no resource", func(t *testing.T, s *redistest.Server) {
	l := newLocker(t, s.Client(t))
	for _, n := range []int{1, 2, 5} {
		m := l.Semaphore(redistest.Name(t), n)
		wantAvailable(t, m, n)
		var leases []*lock.Lease
		for i := range n {
			leases = append(leases, mustTry(t, m))
			wantAvailable(t, m, n-1-i)
		}
		for i, le := range leases {
			fresh(t, l)
			if free, err := le.Release(t.Context()); free != i+1 || err != nil {
				t.Errorf("Release %d of %d: %d, %v; want %d", i+1, n, free, err, i+1)
			}
			wantErr(t, le.Unlock(t.Context()), lock.ErrNotHeld, "another")
			wantAvailable(t, m, i+1)
		}
	}
}}

var existsWhileUsed = behaviour{"not from the start, but from the first lock, until the last unlock: then no key is " +
	"left", func(t *testing.T, s *redistest.Server) {
	m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 2)
	is := func(used, locked bool) {
		t.Helper()
		if got := inUse(t, m); got != used {
			t.Errorf("in use: %v; want %v; %s", got, used, dump(m))
		}
		wantLocked(t, m, locked)
		if n, err := client(t).Exists(t.Context(), m.Key()).Result(); (n > 0) != used || err != nil {
			t.Errorf("%d keys, %v", n, err)
		}
	}
	is(false, false)
	first := mustTry(t, m)
	is(true, false)
	second := mustTry(t, m)
	is(true, true)
	mustUnlock(t, first)
	if is(true, false); first.Held() || !second.Held() {
		t.Errorf("held: %v, %v; want the second only", first.Held(), second.Held())
	}
	mustUnlock(t, second)
	is(false, false)
}}

var changesN = behaviour{"more resources, then less: nobody is thrown out, and nobody comes in before", holdsAtMostN}

var numbersResources = behaviour{"who wants to know which of the resources it got puts them into a pool: all " +
	"different when all are taken, and no sixth; one after the other, first in, first out",
	func(t *testing.T, s *redistest.Server) {
		l, name := newLocker(t, s.Client(t)), redistest.Name(t)
		p, single := pool.New(l, name), pool.New(l, name+"-single")
		mustPut(t, p, 5, "0", "1", "2", "3", "4")
		mustPut(t, single, 1, "0")
		for i := range 7 {
			lease, again := mustTake(t, p, fmt.Sprint(i%5)), mustTake(t, single, "0")
			mustUnlock(t, lease.Lease)
			mustUnlock(t, again.Lease)
		}
		values := map[string]bool{}
		for range 5 {
			lease, err := p.Take(t.Context())
			redistest.Must(t, err)
			values[lease.Value()] = true
		}
		if len(values) != 5 {
			t.Errorf("taken were %v", values)
		}
		mustBeBusy(t, insider.Pool(l, name))
	}}

var deletes = behaviour{"it disappears without a trace, and holders are told", func(t *testing.T, s *redistest.Server) {
	l, own := newLocker(t, s.Client(t), ownPrefix(t)), redistest.Name(t)
	mutex, m := l.Mutex(own), l.Semaphore("semaphore", 2)
	before, waits := mustTry(t, mutex), []*attempt{inLine(t, mutex, 1), inLine(t, mutex, 2)}
	p, values := pool.New(l, "pool"), insider.Pool(l, "pool")
	mustPut(t, p, 3, "a", "b", "c")
	held, taken := mustTry(t, m), mustTake(t, p, "a")
	working, taking := held.Bind(t.Context()), taken.Bind(t.Context())
	redistest.Must(t, m.Delete(t.Context()))
	if n, err := p.Delete(t.Context()); n != 3 || err != nil {
		t.Errorf("Delete of the pool: %d, %v; want 3", n, err)
	}
	wantGone(t, m)
	wantGone(t, values)
	for _, ctx := range []context.Context{working, taking} {
		ends(t, ctx, lock.ErrLost)
	}
	wantErr(t, taken.Unlock(t.Context()), lock.ErrNotHeld, "Unlock")
	// The value does not come back with its late taker.
	wantGone(t, values)
	// Who waits comes back, in a new line.
	redistest.Must(t, mutex.Delete(t.Context()))
	redistest.Eventually(t, soon, func() bool { return !waits[0].pending() || !waits[1].pending() }, "one of two")
	if waits[0].pending() {
		slices.Reverse(waits)
	}
	mustUnlock(t, waits[0].got(t))
	mustUnlock(t, waits[1].got(t))
	wantErr(t, before.Unlock(t.Context()), lock.ErrNotHeld, "Unlock")
}}

var resourcesComeBack = behaviour{"who dies with a resource gives it back when its time is up",
	func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		name, short := redistest.Name(t), []lock.Option{lock.TTL(2 * time.Second), lock.NoRenew()}
		m, p := hers.Semaphore(name, 2, short...), pool.New(hers, name, short...)
		mustPut(t, p, 1, "licence")
		mustTry(t, m)
		mustTry(t, m)
		mustTake(t, p, "licence")
		redistest.Must(t, hers.Close())
		for range 2 {
			untilTaken(t, his.Semaphore(name, 2))
		}
		mustUnlock(t, mustTake(t, pool.New(his, name), "licence").Lease)
	}}

var unheardOf = behaviour{"a resource whose taker never heard of it comes back",
	func(t *testing.T, s *redistest.Server) {
		if s.Kind() == redistest.KindCluster {
			t.Skip("a Proxy hides one node only")
		}
		near, far, proxy := through(t, s, func(o *redis.UniversalOptions) { o.MaxRetries = -1 })
		name, ttl := redistest.Name(t), lock.TTL(2*time.Second)
		p, lost := pool.New(near, name, ttl), insider.Pool(far, name, ttl)
		mustPut(t, p, 1, "licence")
		mustUnlock(t, mustTake(t, p, "licence").Lease) // the scripts are known to the server
		proxy.DropReplyTo(touches(lost), 1)
		if _, err := lost.TryLock(t.Context()); !errors.Is(err, lock.ErrBackend) {
			t.Fatalf("TryLock with its reply lost: %v, want ErrBackend", err)
		}
		mustUnlock(t, mustTake(t, p, "licence").Lease)
	}}

var tellsAllValues = behaviour{"free and taken together are the same, whoever holds what",
	func(t *testing.T, s *redistest.Server) {
		p := pool.New(newLocker(t, s.Client(t)), redistest.Name(t))
		all := []string{"a", "b|%", "c d", "é\n"}
		mustPut(t, p, len(all), all...)
		tokens := func() (tokens []string) {
			info, err := p.Inspect(t.Context())
			if err != nil || info.Free != len(info.Values) || info.Taken != len(info.Holders) {
				t.Fatalf("Inspect: %+v, %v", info, err)
			}
			tokens = append(tokens, info.Values...)
			for _, h := range info.Holders {
				tokens = append(tokens, h.Value)
			}
			slices.Sort(tokens)
			return tokens
		}
		slices.Sort(all)
		for i := range len(all) + 1 {
			if got := tokens(); !slices.Equal(got, all) {
				t.Errorf("with %d taken: %q, want %q", i, got, all)
			}
			if i < len(all) {
				_, err := p.Take(t.Context())
				redistest.Must(t, err)
			}
		}
	}}

var passesJobs = behaviour{"jobs go from producers to consumers unmodified, in order, each to one; the pool goes " +
	"with its last value", func(t *testing.T, s *redistest.Server) {
	producer, consumer := twoProcesses(t, s)
	name := redistest.Name(t)
	jobs := []string{"first", "a b|c%20{d}~", "\x00\xff\n", `{"id":7}`, "ümläut \u2028 end"}
	in, out := pool.New(producer, name), pool.New(consumer, name)
	// The consumer comes first, and waits.
	first := takeBeside(t, out)
	mustPut(t, in, len(jobs), jobs...)
	job := come(t, first, "a job")
	for i, want := range jobs {
		if i > 0 {
			job = mustTake(t, out, want)
		}
		if job.Value() != want {
			t.Errorf("job %d is %q, want %q", i, job.Value(), want)
		}
		redistest.Must(t, job.Consume(t.Context()))
		wantErr(t, job.Consume(t.Context()), lock.ErrNotHeld, "consumed twice")
	}
	mustBeBusy(t, insider.Pool(consumer, name))
	wantGone(t, insider.Pool(consumer, name))
}}

var signalsOnce = behaviour{"a token that is signalled twice is there once", func(t *testing.T, s *redistest.Server) {
	l, name := newLocker(t, s.Client(t)), redistest.Name(t)
	p := pool.New(l, name)
	mustPut(t, p, 1, "token")
	mustPut(t, p, 0, "token")
	taken := mustTake(t, p, "token")
	mustPut(t, p, 0, "token") // it has a holder
	mustBeBusy(t, insider.Pool(l, name))
	mustUnlock(t, taken.Lease)
	wantFree(t, p, 1)
}}

func mustPut(t *testing.T, p *pool.Pool, added int, values ...string) {
	t.Helper()
	if n, err := p.Put(t.Context(), values...); n != added || err != nil {
		t.Fatalf("Put: %d, %v; want %d", n, err, added)
	}
}

// mustTake takes what is to be the next value.
func mustTake(t *testing.T, p *pool.Pool, want string) *pool.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	le, err := p.Take(ctx)
	if err != nil || le.Value() != want {
		t.Fatalf("Take: %v, want %q", err, want)
	}
	return le
}

// takeBeside calls Take on a goroutine that ends with the test at the latest, and returns when the taker is in line.
func takeBeside(t *testing.T, p *pool.Pool) <-chan *pool.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*soon)
	taken, done := make(chan *pool.Lease, 1), make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		if le, err := p.Take(ctx); err == nil {
			taken <- le
		}
	}()
	redistest.Eventually(t, soon, func() bool {
		info, err := p.Inspect(t.Context())
		return err == nil && info.Waiting == 1
	}, "a taker in line")
	return taken
}

func wantFree(t *testing.T, p *pool.Pool, want int) {
	t.Helper()
	if info, err := p.Inspect(t.Context()); info.Free != want || err != nil {
		t.Errorf("%d values free, %v; want %d", info.Free, err, want)
	}
}

// wantGone holds that nothing of the lock is stored.
func wantGone(t *testing.T, m *lock.Lock) {
	t.Helper()
	if n, err := client(t).Exists(t.Context(), m.Key()).Result(); n != 0 || err != nil {
		t.Errorf("the key %s is left: %d, %v", m.Key(), n, err)
	}
}

func TestSeedRedisSemaphore_ServerTime(t *testing.T) {
	seed(t, expires)
	t.Run("a client whose clock is years off makes no difference", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartMini(t)
		now := time.Now().AddDate(20, 0, 0)
		s.SetTime(t, now)
		hers, his := twoProcesses(t, s)
		m := hers.Semaphore(redistest.Name(t), 2, lock.TTL(10*time.Hour), lock.NoRenew())
		// in a miniredis its clock's steps do not move when keys expire
		mustTry(t, slots(hers, m, 2, lock.TTL(20*time.Hour), lock.NoRenew()))
		mine := mustTry(t, m)
		if d, ok := left(t, m, mine); !ok || (d-10*time.Hour).Abs() > 2*time.Millisecond {
			t.Errorf("the lease lasts %s, %v; want 10 h", d, ok)
		}
		s.SetTime(t, now.Add(10*time.Hour-5*time.Millisecond))
		mustBeBusy(t, slots(his, m, 2))
		s.SetTime(t, now.Add(10*time.Hour+5*time.Millisecond))
		mustUnlock(t, mustTry(t, slots(his, m, 2)))
	})
}

package trust

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

const (
	networkTTL = time.Second
	// networkWait is how long a caller of Lock stands in line at most.
	networkWait = 2 * time.Second
	// networkBound is what docs/guarantees.md says of calls: 10 s at worst. The
	// rest is for a machine that does other things too.
	networkBound = 10*time.Second + 2*time.Second
	// networkBack is how long after a fault everybody has had a turn. A call that
	// began to hang at its end may take networkBound.
	networkBack = networkBound + 40*time.Second
)

// networkRig is two Lockers behind a proxy and one beside it, whose goroutines
// take turns on a few locks, and what they find.
type networkRig struct {
	t       *testing.T
	proxy   *redistest.Proxy
	rdb     redis.UniversalClient // beside the proxy
	lockers []*lock.Locker        // the last one beside it
	keys    []*networkKey
	stop    chan struct{} // closed when the load is to end
	wg      sync.WaitGroup

	mu      sync.Mutex // guards what follows
	turns   map[networkTurn]int
	longest map[string]time.Duration // how long calls took, by name
	failed  int                      // calls that said ErrBackend
	lost    int                      // stays that ended before they were over
	overlap int                      // pairs that believed to hold a lock at once
	refused int                      // writes that the store did not take
}

// networkTurn is a kind of turn.
type networkTurn struct{ locker, key int }

// The locks: all take turns on the first ones. Each Locker behind the proxy has
// one of the others for itself, for so long each time that the lease has to be
// renewed; the Locker beside the proxy tries again and again to get it, and does
// when the lease is lost.
const (
	networkShared = 2
	networkLong   = 2
)

// networkKey is one lock, and a store that it guards.
type networkKey struct {
	name string

	mu     sync.Mutex            // guards what follows
	inside map[*lock.Lease]int64 // their fences
	fence  int64                 // the highest that the store has seen
}

// newNetworkRig begins the load.
func newNetworkRig(t *testing.T, random *rand.Rand) *networkRig {
	t.Helper()
	s := redistest.Real(t)
	r := &networkRig{
		t: t, proxy: redistest.NewProxy(t, s.Addr()), rdb: s.Client(t), stop: make(chan struct{}),
		turns: map[networkTurn]int{}, longest: map[string]time.Duration{},
	}
	for range networkShared + networkLong {
		r.keys = append(r.keys, &networkKey{name: redistest.Name(t), inside: map[*lock.Lease]int64{}})
	}
	// Calls are bounded whatever the client does: the second one waits longer for
	// replies, and sends again more often, than any call may take.
	patient := r.proxy.Client(t, func(o *redis.UniversalOptions) { o.ReadTimeout, o.MaxRetries = 8*time.Second, 10 })
	for _, rdb := range []redis.UniversalClient{r.proxy.Client(t), patient, r.rdb} {
		l := lock.New(rdb, lock.Options{Logger: slog.New(slog.DiscardHandler)})
		r.lockers = append(r.lockers, l)
		t.Cleanup(func() { _ = l.Close() }) // end has closed it, unless the test failed before
	}
	t.Cleanup(r.halt)
	load := func(i, k int, tries bool, work time.Duration) {
		mine := rand.New(rand.NewPCG(random.Uint64(), random.Uint64()))
		r.wg.Go(func() { r.load(networkTurn{i, k}, tries, work, mine) }) // until halt
	}
	beside := len(r.lockers) - 1
	for k := range networkShared {
		for i := range r.lockers {
			load(i, k, false, 10*time.Millisecond)
			load(i, k, false, 10*time.Millisecond)
			load(i, k, true, 10*time.Millisecond)
		}
	}
	for i := range networkLong {
		load(i, networkShared+i, false, 4*networkTTL)
		load(beside, networkShared+i, true, 10*time.Millisecond)
	}
	return r
}

// halt ends the load and returns when it has ended.
func (r *networkRig) halt() {
	select {
	case <-r.stop:
	default:
		close(r.stop)
	}
	r.wg.Wait()
}

// load takes turns, in line or by trying again and again, each for work at most.
func (r *networkRig) load(turn networkTurn, tries bool, work time.Duration, random *rand.Rand) {
	key := r.keys[turn.key]
	m := r.lockers[turn.locker].Mutex(key.name, lock.TTL(networkTTL), lock.Fenced())
	for !r.over() {
		var lease *lock.Lease
		var err error
		if tries {
			r.pause(time.Duration(20+random.IntN(60)) * time.Millisecond)
			lease, err = timed(r, "TryLock", 0, func() (*lock.Lease, error) { return m.TryLock(context.Background()) })
		} else {
			ctx, cancel := context.WithTimeout(context.Background(), networkWait)
			lease, err = timed(r, "Lock", networkWait, func() (*lock.Lease, error) { return m.Lock(ctx) })
			cancel()
		}
		switch {
		case err == nil:
			r.turn(turn, key, lease, work/2+time.Duration(random.Int64N(int64(work/2))))
		case errors.Is(err, lock.ErrBackend):
			r.add(&r.failed)
			r.pause(20 * time.Millisecond) // as one would
		case !errors.Is(err, lock.ErrBusy):
			r.t.Errorf("taking a lock: %v", err)
			return
		}
	}
}

// turn is one stay.
func (r *networkRig) turn(turn networkTurn, key *networkKey, lease *lock.Lease, work time.Duration) {
	ctx := lease.Bind(context.Background())
	fence, err := lease.Fence()
	if err != nil {
		r.t.Errorf("Fence: %v", err)
	}
	key.enters(r, lease, fence)
	timer := time.NewTimer(work)
	select {
	case <-timer.C:
	case <-r.stop:
	case <-ctx.Done():
		if cause := context.Cause(ctx); !errors.Is(cause, lock.ErrLost) {
			r.t.Errorf("a lease ended with cause %v", cause)
		}
	}
	timer.Stop()
	lost := !key.leaves(r, lease, fence)
	if lost {
		r.add(&r.lost)
		select {
		case <-ctx.Done(): // it has ended already, unless this machine is busy
		case <-time.After(networkBound):
			r.t.Errorf("%s: the lease with fence %d was lost, and its context did not end", key.name, fence)
		}
	}
	_, err = timed(r, "Unlock", 0, func() (struct{}, error) { return struct{}{}, lease.Unlock(context.Background()) })
	switch {
	case errors.Is(err, lock.ErrBackend):
		r.add(&r.failed)
	case err != nil && !errors.Is(err, lock.ErrNotHeld):
		r.t.Errorf("Unlock: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turns[turn]++
}

// enters looks who else is inside and believes that it may be, and puts the
// fence to the store.
func (k *networkKey) enters(r *networkRig, lease *lock.Lease, fence int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for other, before := range k.inside {
		// In this order: we were given the lease before the other was looked at,
		// so if ours still counts after that, there was a moment of two.
		if other.Held() && lease.Held() {
			r.add(&r.overlap)
			r.t.Errorf("two believe to hold %s: fences %d and %d", k.name, before, fence)
		}
	}
	k.inside[lease] = fence
	k.write(r, lease, fence)
}

// leaves writes once more; false: the lease was lost on the way.
func (k *networkKey) leaves(r *networkRig, lease *lock.Lease, fence int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.inside, lease)
	k.write(r, lease, fence)
	return lease.Held()
}

// write has the store take a fence, or refuse it because it has seen a higher
// one. It refuses nobody who holds the lock.
func (k *networkKey) write(r *networkRig, lease *lock.Lease, fence int64) {
	if fence == 0 {
		return
	}
	if fence >= k.fence {
		k.fence = fence
		return
	}
	r.add(&r.refused)
	if lease.Held() {
		r.t.Errorf("%s: a holder's fence is %d, the store has seen %d", k.name, fence, k.fence)
	}
}

// timed calls f and notes how long it took beyond the time it was given.
func timed[T any](r *networkRig, name string, given time.Duration, f func() (T, error)) (T, error) {
	began := time.Now()
	v, err := f()
	took := time.Since(began) - given
	r.mu.Lock()
	r.longest[name] = max(r.longest[name], took)
	r.mu.Unlock()
	if took > networkBound {
		r.t.Errorf("%s took %s longer than the %s that it was given: %v", name, took, given, err)
	}
	return v, err
}

func (r *networkRig) add(n *int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*n++
}

func (r *networkRig) over() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}

// pause is a pause of the load.
func (r *networkRig) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.stop:
	}
}

// count gives how many turns there were: of all, or of those beside the proxy.
func (r *networkRig) count(all bool) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for turn, turns := range r.turns {
		if all || turn.locker == len(r.lockers)-1 {
			n += turns
		}
	}
	return n
}

// goesRound waits until every Locker has had another turn on every lock that all
// share, one that began meanwhile, and gives how long that took.
func (r *networkRig) goesRound(when string) time.Duration {
	r.t.Helper()
	began := time.Now()
	before := map[networkTurn]int{}
	r.mu.Lock()
	for turn, n := range r.turns {
		before[turn] = n
	}
	r.mu.Unlock()
	redistest.Eventually(r.t, networkBack, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for i := range r.lockers {
			for k := range networkShared {
				if turn := (networkTurn{i, k}); r.turns[turn] <= before[turn]+1 {
					return false
				}
			}
		}
		return true
	}, "a turn for everybody %s", when)
	return time.Since(began)
}

// end ends the load and the Lockers, and has it checked that nothing is left.
func (r *networkRig) end(row *row) {
	r.t.Helper()
	r.halt()
	for _, l := range r.lockers {
		if _, err := timed(r, "Close", 0, func() (struct{}, error) { return struct{}{}, l.Close() }); err != nil {
			r.t.Error(err)
		}
	}
	for _, key := range r.keys {
		name := keys.Key(inside.DefaultPrefix, key.name)
		redistest.Eventually(r.t, 2*networkTTL+10*time.Second, func() bool {
			n, err := r.rdb.Exists(context.Background(), name).Result()
			return err == nil && n == 0
		}, "no key left")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	turns, worst, where := 0, time.Duration(0), ""
	for _, n := range r.turns {
		turns += n
	}
	for name, took := range r.longest {
		if took > worst {
			worst, where = took, name
		}
	}
	row.notef("turns %d", turns)
	row.notef("overlaps %d", r.overlap)
	row.notef("calls failed %d", r.failed)
	row.notef("leases lost %d", r.lost)
	row.notef("writes refused by the fence %d", r.refused)
	row.notef("longest call %s (%s)", worst.Round(10*time.Millisecond), where)
}

// subscribed tells how many subscriptions were tried: those that reached the
// server, and those that were swallowed.
func (r *networkRig) subscribed() int {
	return r.proxy.Count("SUBSCRIBE") + r.proxy.Swallowed("SUBSCRIBE")
}

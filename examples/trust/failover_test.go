package trust

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// replicated is a Redis whose master is replaced when it dies.
type replicated struct {
	client func() redis.UniversalClient
	// kill kills the master that has the key, and returns when another one has its place. revive has the old one follow
	// that.
	kill   func(key string)
	revive func()
}

// Masters die under load. What replicas know outlives them.
func TestMasterDies(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) replicated{"Sentinel": startSentinel, "Cluster": startCluster} {
		for least := range 2 {
			t.Run(fmt.Sprintf("%s, MinReplicas %d", name, least), func(t *testing.T) {
				t.Parallel()
				r := start(t)
				c := newCrowd(t, r.client, lock.Options{MinReplicas: least})
				c.start(4, seed(t))
				var all []string
				for i := range size(1, 10) {
					c.more(20)
					k, key := c.keep(2, 10*crowdTTL), c.keys[i%len(c.keys)]
					all = append(all, k.keys...)
					if least == 0 {
						c.taking()
					}
					r.kill(keys.Key(inside.DefaultPrefix, key))
					// Everybody finds the new one, long before go-redis looks of itself (a minute). With MinReplicas it gives
					// nothing away before it has a replica of its own.
					for _, l := range c.lockers {
						redistest.Eventually(t, crowdSoon/2, func() bool {
							le, err := l.Mutex(key, lock.TTL(crowdTTL)).TryLock(t.Context())
							if err == nil {
								_ = le.Unlock(t.Context())
							}
							return err == nil || errors.Is(err, lock.ErrBusy) || errors.Is(err, lock.ErrNotReplicated)
						}, "an answer of the new master; %v", c)
					}
					c.noticed()
					r.revive()
					c.more(10)
					// else the grants of these keepers may be among what is forgotten; TestFailover has some that are not
					if least > 0 {
						k.live()
						k.release(nil)
					}
					for _, le := range k.leases { // what is not forgotten
						_ = le.Unlock(context.Background())
					}
				}
				c.more(20)
				c.visit()
				c.verdict(least == 0, r.client(), all...)
			})
		}
	}
}

func startSentinel(t *testing.T) replicated {
	servers := []*redistest.Server{redistest.StartReal(t)}
	for range 2 {
		servers = append(servers, redistest.StartReplica(t, servers[0]))
	}
	watch := redistest.StartSentinels(t, servers[0], 2)
	var dead *redistest.Server
	return replicated{
		client: func() redis.UniversalClient { return watch.Client(t) },
		kill: func(string) {
			old := watch.Master(t)
			for _, s := range servers {
				if s.Addr() == old {
					dead = s
				}
			}
			dead.Kill(t)
			// Sentinels that were kept from running for two seconds do nothing for half a minute.
			redistest.Eventually(t, 3*crowdSoon, func() bool { now := watch.Master(t); return now != "" && now != old },
				"another master")
		},
		revive: func() { // it comes back as a replica, by the sentinels' doing
			dead.Start(t)
			if *long {
				watch.Whole(t, 2)
			}
		},
	}
}

func startCluster(t *testing.T) replicated {
	s := redistest.StartCluster(t, 1)
	return replicated{
		client: func() redis.UniversalClient { return s.Client(t) },
		kill: func(key string) {
			before := s.MasterOf(t, key).Addr()
			s.KillMaster(t, key)
			redistest.Eventually(t, crowdSoon, func() bool { return s.MasterOf(t, key).Addr() != before }, "another master")
		},
		revive: func() { s.Revive(t) },
	}
}

// Slots move under load: who holds a key keeps it, and nobody hears of it but who cannot wait for as long as the slot
// is open.
func TestSlotsMove(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartCluster(t, 1)
	c := newCrowd(t, func() redis.UniversalClient { return s.Client(t) }, lock.Options{})
	c.start(4, seed(t))
	c.more(20)
	k := c.keep(2, 3*crowdTTL) // renewed many times
	longest := time.Duration(0)
	for i := range size(4, 100) {
		for _, name := range []string{c.keys[i%len(c.keys)], k.keys[i%2]} {
			opened := time.Now()
			// Turns while the slot is open, its key here, there or nowhere; for as long as nobody's wait ends meanwhile.
			s.MoveSlot(t, keys.Key(inside.DefaultPrefix, name), func() {
				before, began := c.turns.Load(), time.Now()
				redistest.Eventually(t, crowdSoon, func() bool {
					return c.turns.Load() >= before+3 || time.Since(began) > crowdWait/6
				}, "turns while a slot moves")
			})
			longest = max(longest, time.Since(opened))
		}
	}
	c.more(20)
	k.live()
	k.release(nil)
	if n := c.unsure.Load(); n > 0 && longest < crowdWait/2 {
		t.Errorf("%d calls were told of a slot that moves, and was open for %s at most: %v", n, longest, c)
	} else {
		t.Logf("%d calls were told of a slot that moves, and was open for %s at most", n, longest)
	}
	if c.unsure.Load() > 0 {
		c.visit()
	}
	c.verdict(false, s.Client(t), k.keys...)
}

// TestFailover has replication lag behind, kills the master and promotes the replica, under load, over and over.
func TestFailover(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for least := range 2 {
		t.Run(fmt.Sprintf("MinReplicas=%d", least), func(t *testing.T) {
			t.Parallel()
			testFailover(t, least)
		})
	}
}

func testFailover(t *testing.T, least int) {
	master := redistest.StartReal(t)
	replica := redistest.StartReplica(t, master)
	var addr atomic.Value // of the master
	addr.Store(master.Addr())
	client := func() redis.UniversalClient {
		return master.Client(t, func(o *redis.UniversalOptions) {
			o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, addr.Load().(string))
			}
		})
	}
	c := newCrowd(t, client, lock.Options{MinReplicas: least})
	c.start(4, seed(t))
	second, played := 0, 0
	var all []string
	// A machine that stands still may hide what is forgotten: then there are some rounds more.
	for rounds := size(1, 50); played < rounds || least == 0 && second == 0 && played < rounds+4; played++ {
		c.more(20)
		// Who has a key that the replica knows keeps it, whatever MinReplicas. It has
		// time: with MinReplicas nothing is renewed until there is a replica again.
		k := c.keep(2, 10*crowdTTL)
		redistest.Eventually(t, crowdSoon, func() bool {
			n, err := replica.Client(t).Exists(t.Context(), k.stored()...).Result()
			return err == nil && n == 2
		}, "a replica that knows the keepers")
		name := redistest.Name(t)
		all = append(append(all, k.keys...), name)
		if least == 0 {
			c.taking()
		}
		replica.Forget(t) // nothing gets there any more
		behind, err := c.lockers[0].Mutex(name, lock.TTL(crowdTTL), lock.Fenced()).TryLock(t.Context())
		switch {
		case least == 0 && err != nil:
			t.Fatalf("TryLock: %v", err)
		case least > 0 && !errors.Is(err, lock.ErrNotReplicated):
			t.Errorf("TryLock of what the replica cannot know: %v", err)
		}
		lasting(t, 100*time.Millisecond)
		master.Kill(t)
		replica.Promote(t)
		addr.Store(replica.Addr())
		if least == 0 {
			c.noticed()
			second += c.twice(name, behind)
		} else { // the keepers' keys are known to who took over
			c.kept(k)
		}
		master.Start(t)
		master.Follow(t, replica) // so that there can be another failover
		master, replica = replica, master
		c.more(10)
		k.live()
		k.release(nil)
	}
	if least == 0 && second == 0 {
		t.Error("no failover that forgot: this shows nothing")
	}
	c.visit()
	c.verdict(least == 0, client(), all...)
}

// twice has a lock taken by another one that its holder believes in, and Redis has forgotten. It counts those who still
// do when it is.
func (c *crowd) twice(name string, behind *lock.Lease) (second int) {
	c.t.Helper()
	began, fence := time.Now(), fenceOf(c.t, behind)
	var le *lock.Lease
	redistest.Eventually(c.t, crowdSoon, func() (ok bool) {
		var err error
		le, err = c.lockers[1].Mutex(name, lock.TTL(crowdTTL), lock.Fenced()).TryLock(c.t.Context())
		return err == nil
	}, "what was forgotten is granted again")
	c.enter(name, behind, 0)
	c.enter(name, le, fence)
	if behind.Held() {
		second = 1
		if later := fenceOf(c.t, le); later <= fence { // what behind writes from now on a store refuses that looks at fences
			c.t.Errorf("the fence %d does not tell who was forgotten: he has %d", later, fence)
		}
	}
	c.leave(name, le)
	select {
	case <-behind.Bind(c.t.Context()).Done():
	case <-time.After(time.Until(began.Add(crowdNotice))):
		c.t.Errorf("the holder that was forgotten does not know after %s", time.Since(began))
	}
	c.leave(name, behind)
	_ = le.Unlock(c.t.Context())
	return second
}

func fenceOf(t *testing.T, le *lock.Lease) int64 {
	t.Helper()
	fence, err := le.Fence()
	if err != nil {
		t.Errorf("Fence: %v", err)
	}
	return fence
}

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

// pair is a master and its replica, and clients that reach whoever is master.
type pair struct {
	master, replica *redistest.Server
	addr            atomic.Pointer[string] // the master's
}

func newPair(t *testing.T) *pair {
	p := &pair{master: redistest.StartReal(t)}
	p.replica = redistest.StartReplica(t, p.master)
	p.point(p.master)
	return p
}

func (p *pair) point(s *redistest.Server) {
	addr := s.Addr()
	p.addr.Store(&addr)
}

func (p *pair) client(t *testing.T) redis.UniversalClient {
	return p.master.Client(t, func(o *redis.UniversalOptions) {
		o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, *p.addr.Load())
		}
	})
}

// lose is a failover that forgets: for a while nothing gets to the replica any
// more, then the master dies and the replica takes its place. while runs between.
func (p *pair) lose(t *testing.T, while func()) {
	t.Helper()
	p.replica.Forget(t)
	while()
	p.master.Kill(t)
	p.replica.Promote(t)
	p.point(p.replica)
}

// swap has the old master follow the new one, so that there can be another failover.
func (p *pair) swap(t *testing.T) {
	t.Helper()
	p.master.Start(t)
	p.master.Follow(t, p.replica)
	p.master, p.replica = p.replica, p.master
}

// TestFailover has replication lag behind, kills the master and promotes the
// replica, under load, over and over. Without MinReplicas what was granted in the
// last moment is forgotten, and granted again beside its holder, until that one's
// next renewal. With it nothing that was handed out is forgotten.
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
	row := &row{t}
	p := newPair(t)
	c := newCrowd(t, func() redis.UniversalClient { return p.client(t) }, lock.Options{MinReplicas: least})
	c.start(4, seed(t))
	rounds := size(1, 50)
	second, stale, refused, played := 0, 0, 0, 0
	var recovery time.Duration
	var all []string
	// A machine that stands still may hide what is forgotten: then there are some rounds more.
	for ; played < rounds || least == 0 && second == 0 && played < rounds+4; played++ {
		c.more(20)
		// Who has a key that the replica knows keeps it, whatever MinReplicas. It has
		// time: with MinReplicas nothing is renewed until there is a replica again.
		k := c.keep(2, 10*crowdTTL)
		redistest.Eventually(t, crowdSoon, func() bool {
			n, err := p.replica.Client(t).Exists(t.Context(), keys.Key(inside.DefaultPrefix, k.keys[0]), keys.Key(inside.DefaultPrefix, k.keys[1])).Result()
			return err == nil && n == 2
		}, "a replica that knows the keepers")
		all = append(all, k.keys...)
		name := redistest.Name(t)
		all = append(all, name)
		first, rival := c.lockers[0].Mutex(name, lock.TTL(crowdTTL), lock.Fenced()), c.lockers[1].Mutex(name, lock.TTL(crowdTTL), lock.Fenced())
		var behind *lock.Lease
		var fence int64 // of behind
		if least == 0 {
			c.taking()
		}
		p.lose(t, func() {
			var err error
			if behind, err = first.TryLock(t.Context()); err == nil {
				fence = fenceOf(t, behind)
			}
			switch {
			case least == 0 && err != nil:
				t.Errorf("TryLock: %v", err)
			case least > 0 && !errors.Is(err, lock.ErrNotReplicated):
				t.Errorf("TryLock of what the replica cannot know: %v", err)
			case least > 0:
				refused++
			}
			lasting(t, 100*time.Millisecond)
		})
		began := time.Now()
		if least == 0 {
			c.noticed()
			// The very thing: two that both believe in it.
			var le *lock.Lease
			redistest.Eventually(t, crowdSoon, func() (ok bool) {
				var err error
				le, err = rival.TryLock(t.Context())
				return err == nil
			}, "what was forgotten is granted again")
			c.enter(name, behind, 0)
			c.enter(name, le, fence)
			if behind.Held() {
				second++
				if fence < fenceOf(t, le) {
					stale++ // what it writes from now on a store refuses that looks at fences
				}
			}
			c.leave(name, le)
			select {
			case <-behind.Bind(t.Context()).Done():
			case <-time.After(time.Until(began.Add(crowdNotice))):
				t.Errorf("the holder that was forgotten does not know after %s", time.Since(began))
			}
			c.leave(name, behind)
			_ = le.Unlock(t.Context())
			p.swap(t)
		} else {
			// The keepers' keys are known to who took over.
			for _, key := range k.keys {
				if _, err := c.lockers[1].Mutex(key, lock.TTL(crowdTTL)).TryLock(t.Context()); !errors.Is(err, lock.ErrBusy) {
					t.Errorf("TryLock of a key that a live lease holds: %v", err)
				}
			}
			p.swap(t)
		}
		recovery = max(recovery, c.more(10))
		k.live()
		k.release(nil)
	}
	c.end()
	c.gone(p.client(t), all...)
	if least == 0 && second == 0 {
		t.Error("no failover that forgot: this shows nothing")
	}
	if stale < second {
		t.Errorf("of %d that were forgotten %d have a fence that tells", second, stale)
	}
	row.notef("failovers %d", played)
	row.notef("turns %d", c.turns.Load())
	if least == 0 {
		row.notef("granted twice on purpose %d, of whom the fence tells %d", second, stale)
	} else {
		row.notef("refused as not replicated %d", int64(refused)+c.replicas.Load())
	}
	c.verdict(row, least == 0)
	row.notef("10 turns again after %s", recovery.Round(10*time.Millisecond))
}

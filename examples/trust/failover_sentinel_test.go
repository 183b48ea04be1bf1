package trust

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// TestSentinel kills the master under load; three sentinels see to the rest.
func TestSentinel(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for least := range 2 {
		t.Run(fmt.Sprintf("MinReplicas=%d", least), func(t *testing.T) {
			t.Parallel()
			testSentinel(t, least)
		})
	}
}

func testSentinel(t *testing.T, least int) {
	row := &row{t}
	servers := []*redistest.Server{redistest.StartReal(t)}
	for range 2 {
		servers = append(servers, redistest.StartReplica(t, servers[0]))
	}
	watch := redistest.StartSentinels(t, servers[0], 2)
	c := newCrowd(t, func() redis.UniversalClient { return watch.Client(t) }, lock.Options{MinReplicas: least})
	c.start(4, seed(t))
	rounds := size(1, 10)
	var away time.Duration
	for range rounds {
		c.more(20)
		// What replicas know outlives the master, in either form.
		k := c.keepIn(watch.Client(t), 2, 10*crowdTTL)
		for _, s := range servers {
			k.in(s.Client(t))
		}
		old := watch.Master(t)
		for _, s := range servers {
			if s.Addr() != old {
				continue
			}
			if least == 0 {
				c.taking()
			}
			s.Kill(t)
			began := time.Now()
			// Sentinels that were kept from running for two seconds do nothing for half
			// a minute.
			redistest.Eventually(t, 3*crowdSoon, func() bool { now := watch.Master(t); return now != "" && now != old }, "another master")
			c.more(10)
			c.noticed()
			away = max(away, time.Since(began))
			k.live()
			k.in(watch.Client(t))
			k.release(nil)
			// The old one comes back as a replica, by the sentinels' doing.
			s.Start(t)
			if rounds > 1 {
				watch.Whole(t, 2)
			}
		}
	}
	c.end()
	c.gone(watch.Client(t))
	row.notef("failovers %d", rounds)
	row.notef("turns %d", c.turns.Load())
	row.notef("told unsure %d", c.unsure.Load())
	c.verdict(row, least == 0)
	row.notef("10 turns again after %s", away.Round(10*time.Millisecond))
}

package trust

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// TestCluster moves slots under load, and then kills masters.
func TestCluster(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for least := range 2 {
		t.Run(fmt.Sprintf("MinReplicas=%d", least), func(t *testing.T) {
			t.Parallel()
			testCluster(t, least)
		})
	}
}

func testCluster(t *testing.T, least int) {
	s := redistest.StartCluster(t, 1)
	moves := &row{t}
	c := newCrowd(t, func() redis.UniversalClient { return s.Client(t) }, lock.Options{MinReplicas: least})
	c.start(4, seed(t))
	key := func(i int) string { return keys.Key(inside.DefaultPrefix, c.keys[i%len(c.keys)]) }
	c.more(20)
	k := c.keepIn(s.Client(t), 2, 3*crowdTTL) // renewed many times
	n := size(4, 100)
	for i := range n {
		// Turns while the slot is open, its key here, there or nowhere.
		s.MoveSlot(t, key(i), func() { c.more(3) })
		s.MoveSlot(t, keys.Key(inside.DefaultPrefix, k.keys[i%2]), func() { c.more(3) })
	}
	c.more(20)
	k.live()
	k.in(s.Client(t))
	k.release(nil)
	// Replicas that are kept from answering for a second are no matter of slots.
	unsure, slow := c.unsure.Load(), c.replicas.Load()
	if unsure > slow {
		t.Errorf("%d calls were told of a slot that moves: %v", unsure-slow, c)
	}
	moves.notef("moves %d", 2*n)
	moves.notef("turns %d", c.turns.Load())
	moves.notef("errors %d", unsure-slow)
	if least > 0 {
		moves.notef("not replicated within a second %d", slow)
	}
	c.verdict(moves, false)

	kills := &row{t}
	rounds := size(1, 10)
	turns := c.turns.Load()
	var away time.Duration
	for i := range rounds {
		c.more(20)
		k := c.keep(2, 10*crowdTTL)
		if least == 0 {
			c.taking()
		}
		before := s.MasterOf(t, key(i))
		s.KillMaster(t, key(i))
		began := time.Now()
		redistest.Eventually(t, crowdSoon, func() bool { return s.MasterOf(t, key(i)) != before }, "another master")
		// Everybody finds it, long before go-redis looks of itself (a minute). With
		// MinReplicas it gives nothing away before it has a replica of its own.
		for _, l := range c.lockers {
			var err error
			redistest.Eventually(t, crowdSoon/2, func() bool {
				var le *lock.Lease
				if le, err = l.Mutex(c.keys[i%len(c.keys)], lock.TTL(crowdTTL)).TryLock(t.Context()); err == nil {
					_ = le.Unlock(t.Context())
				}
				return err == nil || errors.Is(err, lock.ErrBusy) || errors.Is(err, lock.ErrNotReplicated)
			}, "an answer of the new master; %v", c)
		}
		c.noticed()
		away = max(away, time.Since(began))
		s.Revive(t)
		c.more(10)
		if least > 0 {
			k.live()
			k.release(nil)
		}
	}
	c.more(20)
	c.end()
	c.gone(s.Client(t), k.keys...)
	kills.notef("failovers %d", rounds)
	kills.notef("turns %d", c.turns.Load()-turns)
	kills.notef("told unsure %d", c.unsure.Load()-unsure)
	c.verdict(kills, least == 0)
	kills.notef("answers of the new master after %s", away.Round(10*time.Millisecond))
}

package trust

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	lockkeys "github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// keepers hold a key each, for as long as they believe in it.
type keepers struct {
	t      *testing.T
	keys   []string
	leases []*lock.Lease
	bound  []context.Context
}

func (c *crowd) keep(n int, ttl time.Duration) *keepers {
	c.t.Helper()
	k := &keepers{t: c.t}
	for i := range n {
		name := redistest.Name(c.t)
		m := c.lockers[i%len(c.lockers)].Mutex(name, lock.TTL(ttl))
		var le *lock.Lease
		redistest.Eventually(c.t, crowdSoon, func() (ok bool) {
			var err error
			le, err = m.TryLock(c.t.Context())
			return err == nil
		}, "a key of its own")
		k.keys, k.leases = append(k.keys, name), append(k.leases, le)
		k.bound = append(k.bound, le.Bind(context.Background()))
	}
	return k
}

// stored are the keys as Redis has them.
func (k *keepers) stored() (keys []string) {
	for _, key := range k.keys {
		keys = append(keys, lockkeys.Key(inside.DefaultPrefix, key))
	}
	return keys
}

// keepIn keeps n keys that are thin in Redis. Where others wanted one meanwhile, it keeps others.
func (c *crowd) keepIn(rdb redis.UniversalClient, n int, ttl time.Duration) *keepers {
	c.t.Helper()
	k := &keepers{t: c.t}
	redistest.Eventually(c.t, crowdSoon, func() bool {
		k.release(nil)
		k = c.keep(n, ttl)
		for i := range k.keys {
			if k.typeOf(rdb, i) != "string" {
				return false
			}
		}
		return true
	}, "locks that are each a string in Redis")
	return k
}

// typeOf waits until rdb has the key of holder i, and tells its type.
func (k *keepers) typeOf(rdb redis.UniversalClient, i int) (is string) {
	k.t.Helper()
	redistest.Eventually(k.t, crowdSoon, func() bool {
		is, _ = rdb.Type(k.t.Context(), k.stored()[i]).Result() // an error is another try
		return is != "" && is != "none"
	}, "the key of a holder")
	return is
}

// in checks that Redis still stores what they hold.
func (k *keepers) in(rdb redis.UniversalClient) {
	k.t.Helper()
	for i := range k.keys {
		if is := k.typeOf(rdb, i); is != "string" {
			k.t.Errorf("Redis stores a lock as a %s, want a string", is)
		}
	}
}

// lost waits until all of them know that their lease is lost, and tells how long
// the last one took.
func (k *keepers) lost(since time.Time, within time.Duration) time.Duration {
	k.t.Helper()
	for i, bound := range k.bound {
		select {
		case <-bound.Done():
		case <-time.After(time.Until(since.Add(within))):
			k.t.Errorf("holder %d does not know within %s that Redis forgot it", i, within)
			continue
		}
		if cause := context.Cause(bound); !errors.Is(cause, lock.ErrLost) {
			k.t.Errorf("holder %d: %v, want ErrLost", i, cause)
		}
	}
	return time.Since(since)
}

// live tells that none of them has lost its lease.
func (k *keepers) live() {
	k.t.Helper()
	for i, bound := range k.bound {
		if bound.Err() != nil || !k.leases[i].Held() {
			k.t.Errorf("holder %d has lost its lease: %v", i, context.Cause(bound))
		}
	}
}

// release gives back what is left.
func (k *keepers) release(want error) {
	k.t.Helper()
	for i, le := range k.leases {
		if err := le.Unlock(context.Background()); !errors.Is(err, want) {
			k.t.Errorf("holder %d: Unlock: %v, want %v", i, err, want)
		}
	}
}

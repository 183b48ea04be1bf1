package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
)

// Four processes with eight goroutines each: at most N hold at any time by their
// own beliefs, everybody gets its turns, and nothing is left in the end.
func TestRule01_Stress(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		for _, limit := range []int{1, 3} {
			t.Run(fmt.Sprint("N=", limit), func(t *testing.T) {
				t.Parallel()
				stress(t, s, limit)
			})
		}
	})
}

func stress(t *testing.T, s *redistest.Server, limit int) {
	const lockers, each = 4, 8
	sections := 100
	if s.Kind() != redistest.KindReal {
		sections = 25 // under the race detector these are ten times slower
	}
	watch := s.Client(t)
	name := redistest.Name(t)
	var (
		inside, most atomic.Int64
		lastFence    atomic.Int64
		turns        [lockers * each]atomic.Int64
		wg           sync.WaitGroup
	)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan struct{})
	for i := range lockers {
		// Different TTLs: a holder's is its own affair.
		m := newLocker(t, s.Client(t)).Semaphore(name, limit, TTL(time.Duration(30+10*i)*time.Second), Fenced())
		for j := range each {
			redistest.Go(&wg, func() {
				for range sections {
					le, err := m.Lock(ctx)
					if err != nil {
						t.Errorf("Lock: %v", err)
						return
					}
					now := inside.Add(1)
					for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
					}
					if now > int64(limit) {
						t.Errorf("%d hold a lock for %d; %s", now, limit, dump(m))
					}
					if limit == 1 {
						if before := lastFence.Swap(fenceOf(t, le)); before >= fenceOf(t, le) {
							t.Errorf("fence %d after %d", fenceOf(t, le), before)
						}
					}
					if limit > 1 {
						<-time.After(100 * time.Microsecond) // the work
					}
					turns[i*each+j].Add(1)
					inside.Add(-1)
					if err := le.Unlock(ctx); err != nil {
						t.Errorf("Unlock: %v", err)
						return
					}
					if t.Failed() {
						return
					}
				}
			})
		}
	}
	go func() { defer close(done); wg.Wait() }()
	// Rule 12, sampled meanwhile.
	samples := 0
	redistest.Eventually(t, 2*time.Minute, func() bool {
		if err := auditAll(ctx, watch, "automutex:{"+name+"}*"); err != nil {
			t.Error(err)
			return true
		}
		samples++
		select {
		case <-done:
			return true
		default:
			return false
		}
	}, "all sections")
	<-done
	if t.Failed() {
		return
	}
	var all []int64
	for i := range turns {
		all = append(all, turns[i].Load())
	}
	if slices.Min(all) != int64(sections) {
		t.Errorf("turns: %v, want %d each", all, sections)
	}
	t.Logf("N=%d: at most %d inside, %d samples of TTLs", limit, most.Load(), samples)
	free(t, newLocker(t, watch).Mutex(name), soon)
}

// auditAll holds rule 12 against every key that matches, and wants no key
// beside that of the lock.
func auditAll(ctx context.Context, rdb redis.UniversalClient, pattern string) error {
	var mu sync.Mutex
	var keys []string
	scan := func(ctx context.Context, rdb *redis.Client) error {
		found, err := rdb.Keys(ctx, pattern).Result()
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, found...)
		return err
	}
	var err error
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, scan)
	} else {
		err = scan(ctx, rdb.(*redis.Client))
	}
	if err != nil {
		return err
	}
	if len(keys) > 1 {
		return fmt.Errorf("one lock has the keys %q", keys)
	}
	for _, key := range keys {
		if err := auditKey(ctx, rdb, key); err != nil {
			return err
		}
	}
	return nil
}

// Waiters that come, give up, try and hold in all orders, with leases short
// enough to be renewed and granted all the while: at most N believe, and no
// waiter is left behind.
func TestRule01_StressWithWaitersThatGiveUp(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		const limit = 2
		name := redistest.Name(t)
		var inside, served, gaveUp atomic.Int64
		var wg sync.WaitGroup
		// A busy machine gets longer, so that some are served there too.
		began := time.Now()
		mustUnlock(t, mustTry(t, newLocker(t, s.Client(t)).Semaphore(name, limit)))
		unit := min(max(time.Millisecond, time.Since(began)/3), 10*time.Millisecond)
		for range 3 {
			m := newLocker(t, s.Client(t)).Semaphore(name, limit, TTL(30*time.Second))
			for i := range 6 {
				redistest.Go(&wg, func() {
					for j := range 40 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(3+(i*j)%25)*unit)
						le, err := m.Lock(ctx)
						if err != nil {
							// A machine that is busy may not answer before the context ends.
							if _, ok := asBusy(err); !ok && (!errors.Is(err, exchange.ErrNoAnswer) || !errors.Is(err, ctx.Err())) {
								t.Errorf("Lock: %v", err)
							}
							gaveUp.Add(1)
							cancel()
							continue
						}
						if n := inside.Add(1); n > limit {
							t.Errorf("%d hold a lock for %d", n, limit)
						}
						<-ctx.Done()
						inside.Add(-1)
						served.Add(1)
						cancel()
						if err := le.Unlock(ctx); err != nil {
							t.Errorf("Unlock: %v", err)
						}
					}
				})
			}
		}
		wg.Wait()
		t.Logf("%d served, %d gave up", served.Load(), gaveUp.Load())
		if served.Load() == 0 || gaveUp.Load() == 0 {
			t.Error("both were to happen")
		}
		free(t, newLocker(t, s.Client(t)).Mutex(name), soon)
	})
}

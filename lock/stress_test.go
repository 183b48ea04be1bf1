package lock_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

func TestRule01_Stress(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		stress(t, s, 1, 32)
		stress(t, s, 3, 50)
	})
}

// stress has four processes with two goroutines each run sections: at most limit hold at any time by their own beliefs,
// everybody gets its turns, what the holder of a mutex writes is there for the next, fences grow, and nothing is left
// in the end.
func stress(t *testing.T, s *redistest.Server, limit, sections int) {
	const lockers, each = 4, 2 // more keep the goroutines of other tests waiting
	ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
	var inside, lastFence, turns atomic.Int64
	section := func(le *lock.Lease) {
		if now := inside.Add(1); now > int64(limit) {
			t.Errorf("%d hold a lock for %d", now, limit)
		}
		if fence := fenceOf(t, le); limit == 1 && lastFence.Swap(fence) >= fence {
			t.Errorf("fence %d is not higher than the one before", fence)
		}
		if limit == 1 {
			written, _ := rdb.Get(ctx, name+"-written").Int64()
			if err := rdb.Set(ctx, name+"-written", written+1, time.Hour).Err(); err != nil {
				t.Error(err)
			}
		}
		turns.Add(1)
		inside.Add(-1)
	}
	var wg sync.WaitGroup
	for i := range lockers {
		// Different TTLs: a holder's is its own affair.
		m := lockerOn(t, s).Semaphore(name, limit, lock.TTL(time.Duration(30+10*i)*time.Second), lock.Fenced())
		for range each {
			redistest.Go(&wg, func() {
				for range sections {
					le, err := m.Lock(ctx)
					if err != nil {
						t.Errorf("Lock: %v", err)
						return
					}
					section(le)
					if err := le.Unlock(ctx); err != nil || t.Failed() {
						t.Errorf("Unlock: %v", err)
						return
					}
				}
			})
		}
	}
	done := make(chan struct{})
	go func() { defer close(done); wg.Wait() }()
	redistest.Eventually(t, 5*time.Minute, func() bool {
		if life := rdb.PTTL(ctx, "automutex:{"+name+"}").Val(); life == -1 {
			t.Error("the key has no TTL")
		}
		select {
		case <-done:
			return true
		default:
			return false
		}
	}, "all sections")
	written, _ := rdb.Get(ctx, name+"-written").Int64()
	if want := int64(lockers * each * sections); turns.Load() != want || limit == 1 && written != want {
		t.Errorf("%d turns, %d counted; want %d", turns.Load(), written, want)
	}
	free(t, newLocker(t, rdb).Mutex(name))
}

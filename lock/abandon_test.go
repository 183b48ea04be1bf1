package lock

import (
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// An ask that the network delivers long after its caller gave up, and after the
// second release of its token, takes the lock for nobody: a later release frees
// it, long before the lease would end.
func TestAskDeliveredLate_isReleasedAgain(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Real(t)
	proxy := redistest.NewProxy(t, s.Addr())
	rdb := proxy.Client(t, func(o *redis.UniversalOptions) { o.ReadTimeout, o.MaxRetries = 300*time.Millisecond, -1 })
	l := newLocker(t, rdb)
	m := l.Mutex(redistest.Name(t), TTL(10*time.Minute))
	mustUnlock(t, mustTry(t, m)) // connected, and the scripts are there
	late := proxy.Hold(isTake(m), 1)
	gaveUp := time.Now()
	if _, err := m.TryLock(t.Context()); err == nil || late.Count() != 1 {
		t.Fatalf("TryLock: %v with %d asks held", err, late.Count())
	}
	redistest.Eventually(t, soon, func() bool {
		l.abandoned.mu.Lock()
		defer l.abandoned.mu.Unlock()
		return len(l.abandoned.steps[stepReleased+1]) == 1
	}, "the second release")
	late.Release()
	other := handle(newLocker(t, s.Client(t)), m)
	redistest.Eventually(t, soon, func() bool {
		locked, err := other.Locked(t.Context())
		return locked && err == nil
	}, "the late ask")
	free(t, other, soon)
	if took := time.Since(gaveUp); took < releaseAgainAfter[stepReleased+1]-time.Second {
		t.Errorf("free %s after its caller gave up: before the third release", took)
	}
}

// Each of several calls of Close returns after the last releases.
func TestAbandoned_everyCloseWaits(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
	for range 500 {
		mine := handle(newLocker(t, s.Client(t)), m)
		l := mine.locker
		le := mustTry(t, mine)
		l.abandoned.mu.Lock()
		l.abandoned.queue(abandonedLease{lease: le, since: time.Now()})
		l.abandoned.mu.Unlock()
		var wg sync.WaitGroup
		for range 12 {
			redistest.Go(&wg, func() {
				if err := l.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
				if n, err := raw(m).Exists(t.Context(), m.Key()).Result(); n != 0 || err != nil {
					t.Errorf("Close has returned, and the lock is held: %d, %v", n, err)
				}
			})
		}
		wg.Wait()
	}
}

// What waits for later releases is bounded, and Close releases the rest at once.
func TestAbandoned_isBoundedAndEndsWithClose(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	m := l.Mutex(redistest.Name(t))
	a := l.abandoned
	for range maxAbandoned + 100 {
		a.mu.Lock()
		a.queue(abandonedLease{lease: m.newLease(), since: time.Now(), failed: true})
		a.mu.Unlock()
	}
	if a.count != maxAbandoned || len(a.steps[0]) != maxAbandoned {
		t.Errorf("%d wait, want %d", a.count, maxAbandoned)
	}
	// One that holds the lock, as after an ask that came late.
	le := mustTry(t, m)
	a.mu.Lock()
	a.queue(abandonedLease{lease: le, since: time.Now()})
	a.mu.Unlock()
	redistest.Must(t, l.Close())
	free(t, handle(newLocker(t, redistest.Mini(t).Client(t)), m), soon)
	if a.count != 0 {
		t.Errorf("%d wait after Close", a.count)
	}
}

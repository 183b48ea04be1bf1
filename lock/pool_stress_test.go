package lock

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// Three processes take, give back, consume, die and put: no value is held twice
// at any moment, and in the end there is what was put and not consumed.
func TestPoolStress(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const lockers, each, values = 3, 8, 20
		rounds := 12
		if s.Kind() != redistest.KindReal {
			rounds = 6
		}
		var (
			mu    sync.Mutex
			until = map[string]time.Time{} // until when somebody may believe that the value is theirs
			there = map[string]bool{}      // put and not consumed
		)
		watch := somePool(t, newLocker(t, s.Client(t)))
		for i := range values {
			there[fmt.Sprint("first|", i)] = true
		}
		putAll(t, watch, slices.Collect(maps.Keys(there))...)
		var wg sync.WaitGroup
		for i := range lockers {
			l := newLocker(t, s.Client(t))
			for j := range each {
				redistest.Go(&wg, func() {
					for round := range rounds {
						dies := rand.IntN(4) == 0
						p := poolHandle(l, watch)
						if dies {
							p = poolHandle(l, watch, TTL(inside.MinTTL), NoRenew())
						}
						le, err := p.Take(t.Context())
						if err != nil {
							t.Errorf("Take: %v", err)
							return
						}
						now, value := time.Now(), le.Value()
						if dies && !now.Before(le.Deadline()) {
							continue // this machine stalled: it is somebody else's by now, and rightly
						}
						mu.Lock()
						if other, ok := until[value]; ok && now.Before(other) {
							t.Errorf("%q was taken while another had it for %s more", value, other.Sub(now))
						}
						if !there[value] {
							t.Errorf("took %q, which is consumed, or never was", value)
						}
						until[value] = le.Deadline()
						if !dies {
							until[value] = now.Add(time.Hour)
						}
						mu.Unlock()
						if dies {
							continue // and never heard of again
						}
						mu.Lock()
						delete(until, value)
						consume := rand.IntN(3) == 0
						if consume {
							// Before it is so: whoever takes it now took what is consumed.
							delete(there, value)
						}
						mu.Unlock()
						if !consume {
							if err := le.Unlock(t.Context()); err != nil {
								t.Errorf("Unlock: %v", err)
							}
							continue
						}
						if err := le.Consume(t.Context()); err != nil {
							t.Errorf("Consume: %v", err)
						}
						// Another in its place, and some that are there.
						fresh := fmt.Sprintf("%d|%d|%d", i, j, round)
						mu.Lock()
						there[fresh] = true
						mu.Unlock()
						if n, err := p.Put(t.Context(), fresh, fresh); n != 1 || err != nil {
							t.Errorf("Put: %d, %v", n, err)
						}
					}
				})
			}
		}
		wg.Wait()
		redistest.Eventually(t, soon, func() bool {
			poolAudit(t, watch)
			info := inspects(t, watch)
			return info.Taken == 0 && info.Waiting == 0
		}, "all given back; %s", stringer(func() string { return dump(watch.m) }))
		info := inspects(t, watch)
		got := map[string]bool{}
		for _, value := range info.Values {
			got[value] = true
		}
		if info.Free != len(there) || !maps.Equal(got, there) {
			t.Errorf("%d values are left: %v, want %d: %v", info.Free, got, len(there), there)
		}
	})
}

// Processes come and go while the network drops what they send.
func TestPoolStressWithLostReplies(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		const values = 10
		near, far, p := through(t, s)
		watch := somePool(t, near)
		warm(t, watch.m)
		for i := range values {
			putAll(t, watch, fmt.Sprint(i))
		}
		var mu sync.Mutex
		held := map[string]bool{}
		var wg sync.WaitGroup
		for range 6 {
			redistest.Go(&wg, func() {
				pool := poolHandle(far, watch)
				for range 15 {
					le, err := pool.Take(t.Context())
					if errors.Is(err, ErrBackend) {
						continue // lost more often than the client tries
					}
					if err != nil {
						t.Errorf("Take: %v", err)
						return
					}
					mu.Lock()
					if held[le.Value()] {
						t.Errorf("%q is held twice", le.Value())
					}
					held[le.Value()] = true
					mu.Unlock()
					p.DropReplyTo(func(command []string) bool { return len(command) > 3 && command[3] == watch.m.Key() }, 1)
					mu.Lock()
					delete(held, le.Value())
					mu.Unlock()
					if err := le.Unlock(t.Context()); err != nil && !errors.Is(err, ErrBackend) {
						t.Errorf("Unlock: %v", err)
					}
				}
			})
		}
		wg.Wait()
		p.Heal()
		redistest.Eventually(t, soon, func() bool { return inspects(t, watch).Free == values }, "all values back; %s",
			stringer(func() string { return dump(watch.m) }))
		poolAudit(t, watch)
	})
}

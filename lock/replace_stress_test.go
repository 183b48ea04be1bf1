package lock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// Many come at once, each asks until it holds or is asked itself: the newest
// holds, and no two at once.
func TestStop_stress(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		name := redistest.Name(t)
		lockers := []*Locker{newLocker(t, s.Client(t)), newLocker(t, s.Client(t))}
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		var mu sync.Mutex // guards what follows
		var now, most int
		var held, came []int64
		const all = 20
		var over atomic.Int32 // those that do not hold any more, or never did
		last := make(chan struct{})
		var wg sync.WaitGroup
		for i := range all {
			redistest.Go(&wg, func() {
				defer func() {
					if over.Add(1) == all-1 {
						close(last)
					}
				}()
				l := lockers[i%len(lockers)]
				arrival, _, err := l.Mutex(name, Note(fmt.Sprint(i))).arrive(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				came = append(came, arrival)
				mu.Unlock()
				ours, stop := context.WithCancel(ctx)
				defer stop()
				m := l.Mutex(name, Note(fmt.Sprint(i)), onStop(arrival, stop))
				done := make(chan struct{})
				defer func() { <-done }()
				go func() { // asks until its wait or stay is over
					defer close(done)
					for ours.Err() == nil {
						if standing, err := m.askOlderToStop(ours); err == nil && standing != inside.First {
							stop()
						}
						select {
						case <-time.After(20 * time.Millisecond):
						case <-ours.Done():
						}
					}
				}()
				le, err := m.Lock(ours)
				if err != nil {
					return
				}
				mu.Lock()
				now++
				most = max(most, now)
				held = append(held, arrival)
				mu.Unlock()
				select {
				case <-ours.Done():
				case <-last: // all others are over, and nobody asks
				}
				stop()
				mu.Lock()
				now--
				mu.Unlock()
				if err := le.Unlock(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most != 1 || len(held) == 0 || held[len(held)-1] != slices.Max(came) || ctx.Err() != nil {
			t.Errorf("%d at once; held by %v, of %v", most, held, came)
		}
	})
}

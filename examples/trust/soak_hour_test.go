package trust

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// soakRound is how many tasks one round of the long soak has. Its servers live as long as the
// round, but for those that are killed or shut down on purpose.
const soakRound = 30_000

// soakSize is what this process holds: bytes of live heap, and goroutines.
type soakSize struct {
	heap       uint64
	goroutines int
}

func takeSoakSize() soakSize {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return soakSize{m.HeapAlloc, runtime.NumGoroutine()}
}

// soakOnAndOn plays round after round, each with a seed of its own, and prints a line a minute.
// At the end of each round, when its servers have closed and its books are balanced, memory and
// goroutines have to be what they were after the first rounds.
func soakOnAndOn(t *testing.T, length time.Duration) {
	began, s := time.Now(), seed(t)
	line := func(format string, args ...any) {
		fmt.Printf("soak %s: %s\n", time.Since(began).Round(time.Second), fmt.Sprintf(format, args...))
	}
	line("first seed %d", s)
	var sizes []soakSize
	for round := uint64(0); time.Since(began) < length && !t.Failed(); round++ {
		t.Run(fmt.Sprint("round ", round+1), func(t *testing.T) {
			soakOnce(t, s+round, soakRound, 60, func(w *soakWorld, c *soakConductor) {
				var minutes sync.WaitGroup
				over := make(chan struct{})
				t.Cleanup(func() { close(over); minutes.Wait() })
				minutes.Go(func() { // ends with the round, before its servers' Redis does
					tick := time.NewTicker(time.Minute)
					defer tick.Stop()
					for {
						select {
						case <-over:
							return
						case <-tick.C:
						}
						b, err := w.backlog()
						now := takeSoakSize()
						line("round %d: %d of %d enqueued, %d under way (%v), %d runs succeeded, %d faults, %d workers killed, %d leases lost, heap %.1f MB, %d goroutines",
							round+1, c.enqueued.Load(), soakRound, b.rest(), err, w.ledger.rdb.SCard(t.Context(), "runs that succeeded").Val(),
							c.happened.Load(), w.killed.Load(), w.ledger.lost(), float64(now.heap)/1e6, now.goroutines)
					}
				})
			})
		})
		sizes = append(sizes, takeSoakSize())
		now := sizes[len(sizes)-1]
		line("round %d is over, failed: %v; heap %.1f MB, %d goroutines", round+1, t.Failed(), float64(now.heap)/1e6, now.goroutines)
	}
	if problem := soakGrows(sizes); problem != "" {
		t.Error(problem)
	}
	line("%d rounds, %d tasks, failed: %v", len(sizes), len(sizes)*soakRound, t.Failed())
}

// soakGrows compares the last third of the rounds with the first. With fewer than three rounds
// there is nothing to compare.
func soakGrows(sizes []soakSize) string {
	third := len(sizes) / 3
	if third == 0 {
		return ""
	}
	most := func(sizes []soakSize) (m soakSize) {
		for _, s := range sizes {
			m.heap, m.goroutines = max(m.heap, s.heap), max(m.goroutines, s.goroutines)
		}
		return m
	}
	first := most(sizes[:third])
	last := slices.MinFunc(sizes[len(sizes)-third:], func(a, b soakSize) int { return int(a.heap) - int(b.heap) })
	switch {
	case last.heap > first.heap+first.heap/2+4_000_000:
		return fmt.Sprintf("the heap grows: %.1f MB at most in the first rounds, %.1f MB at least in the last", float64(first.heap)/1e6, float64(last.heap)/1e6)
	case last.goroutines > first.goroutines+5:
		return fmt.Sprintf("goroutines stay: %d at most in the first rounds, %d in the last", first.goroutines, last.goroutines)
	}
	return ""
}

// What grows is found, and what goes up and down is not.
func TestSoak_growthIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sizes []soakSize
		grows bool
	}{
		"flat":       {[]soakSize{{20e6, 30}, {22e6, 31}, {19e6, 30}}, false},
		"two rounds": {[]soakSize{{20e6, 30}, {90e6, 90}}, false},
		"heap":       {[]soakSize{{20e6, 30}, {30e6, 30}, {40e6, 30}}, true},
		"goroutines": {[]soakSize{{20e6, 30}, {20e6, 40}, {20e6, 50}}, true},
		"one peak":   {[]soakSize{{20e6, 30}, {60e6, 30}, {20e6, 30}, {20e6, 30}, {60e6, 30}, {20e6, 30}}, false},
	} {
		if got := soakGrows(c.sizes); (got != "") != c.grows {
			t.Errorf("%s: %q", name, got)
		}
	}
}

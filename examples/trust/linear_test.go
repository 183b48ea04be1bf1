package trust

import (
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// Histories of many clients in several processes, of which some die and one hears
// everything late, are those of a lock that does one thing at a time: at most N
// hold it, whoever is told that he holds it does, fences grow, nobody overtakes
// the line, and busy is who finds no slot.
func TestLinear(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		// More at once takes longer: who waits for his goroutine to run has a lease that ends.
		plan := map[string]struct{ steps, atOnce int }{
			redistest.KindReal: {size(150_000, 700_000), 64}, redistest.KindCluster: {size(40_000, 250_000), 24}, redistest.KindMini: {size(12_000, 50_000), 6},
		}[s.Kind()]
		if !redistest.All() && !*long {
			plan.steps /= 5
		}
		seed := seed(t)
		w := newLinWorld(t, s)
		kinds, verdict := w.run(seed, plan.steps, plan.atOnce, size(5*time.Minute, time.Hour))
		w.close()
		if verdict != "" {
			t.Fatal(verdict)
		}
		for _, kind := range []linKind{linTake, linJoin, linGranted, linBusy, linRelease, linExtend, linBreak, linEnd} {
			if kinds[kind] == 0 {
				t.Errorf("not one %q in these histories", kind)
			}
		}
		if w.crashes.Load() == 0 {
			t.Error("no process has died")
		}
		t.Log(kinds, "crashes", w.crashes.Load())
	})
}

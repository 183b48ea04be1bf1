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
		// More at once takes longer: who waits for his goroutine to run has a lease
		// that ends.
		plan := map[string]linPlan{
			redistest.KindReal:    {operations: size(150_000/linShare, 700_000), atOnce: 64},
			redistest.KindCluster: {operations: size(40_000/linShare, 250_000), atOnce: 24},
			redistest.KindMini:    {operations: size(12_000/linShare, 50_000), atOnce: 6},
		}[s.Kind()]
		if !redistest.All() && !*long {
			plan.operations /= 5
		}
		plan.steps, plan.deathwatches, plan.raids = 30, size(2, 20), size(10, 100)
		plan.within, plan.picture = size(5*time.Minute, time.Hour), true
		row := &row{t}
		seed := seed(t)
		w := newLinWorld(t, s, nil)
		f, verdict := w.run(seed, plan)
		w.close()
		if verdict != "" {
			t.Fatal(verdict)
		}
		if f.operations < plan.operations {
			t.Errorf("%d operations in %s, want %d", f.operations, plan.within, plan.operations)
		}
		for what, n := range map[string]int{
			"grant": f.grants, "wait": f.waits, "expiry": f.expiries, "break": f.breaks, "extension": f.extends,
			"busy answer": f.busy, "wait given up": f.unseen, "crash": f.crashes,
		} {
			if n == 0 {
				t.Errorf("not one %s in these histories", what)
			}
		}
		row.notef("%d operations, %d locks, %d clients", f.operations, f.keys, f.clients)
		row.notef("%d grants (%d in line), %d busy, %d extended", f.grants, f.waits, f.busy, f.extends)
		row.notef("%d expired, %d broken, %d crashes", f.expiries, f.breaks, f.crashes)
		row.notef("none out of order")
	})
}

package simulate

import (
	"hash/fnv"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
)

// drawer draws a plan from a seed.
type drawer struct {
	*rand.Rand
	p      *plan
	scopes []rulePlan // shared by rules, in the order in which locks are taken
}

// draw makes the world of a seed.
func draw(seed uint64) *plan {
	d := &drawer{Rand: rand.New(rand.NewPCG(seed, 0x6175746f6d757465)), p: &plan{Seed: seed}}
	for range 1 + d.IntN(3) {
		d.p.Procs = append(d.p.Procs, procPlan{
			Workers: 1 + d.IntN(6), Poll: d.span(200, 1000), Forward: d.span(1000, 5000), Shutdown: d.span(1000, 8000),
		})
	}
	if d.chance(0.5) {
		d.p.Latency = d.span(1, 40)
	}
	if d.chance(0.2) {
		d.p.Losing = d.Float64() / 2
	}
	d.rules()
	length := d.span(20_000, 120_000)
	d.tasks(length)
	if d.chance(0.6) {
		d.faults(length)
	}
	if d.chance(0.3) {
		d.operators(length)
	}
	d.controls(length)
	if d.p.Quiet = d.span(0, 1_400_000); d.p.Quiet < 1000*time.Second {
		d.p.Quiet /= 10 // quiet hours find little, and cost what a world costs
	}
	d.onceBeside()
	d.cooldowns() // only where there is no limit
	d.storage(length)
	d.gates(length)
	d.history()
	d.choices()
	d.leads(length)
	if *onlyOrder { // the others stay the worlds that they were
		d.ordered(length)
	}
	d.groups()
	d.splits(length)
	d.suspensions(length)
	return d.p
}

// aside is a drawer with dice of its own: what it draws changes nothing of what others
// draw. A new concept draws aside, in a file of its own, so that seeds go on to mean the
// same worlds but for that concept.
func (d *drawer) aside(concept string) *drawer {
	h := fnv.New64a()
	_, _ = h.Write([]byte(concept)) // never fails
	return &drawer{Rand: rand.New(rand.NewPCG(d.p.Seed, h.Sum64())), p: d.p, scopes: d.scopes}
}

// span is a time of so many milliseconds.
func (d *drawer) span(least, most int) time.Duration {
	return time.Duration(least+d.IntN(most-least+1)) * time.Millisecond
}

func (d *drawer) chance(p float64) bool { return d.Float64() < p }

func pick[T any](d *drawer, of ...T) T { return of[d.IntN(len(of))] }

// weighted picks an index by weight.
func (d *drawer) weighted(weights ...int) int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	at := d.IntN(sum)
	for i, w := range weights {
		if at -= w; at < 0 {
			return i
		}
	}
	return 0
}

// The first worlds that CI plays have rules that New takes.
func TestDraw(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // New does no I/O
	t.Cleanup(func() { _ = rdb.Close() })
	for i := range uint64(1000) {
		p := draw(defaultSeed + i)
		rules := (&process{w: &world{plan: p}}).rules()
		if _, err := automutex.New(rdb, automutex.Config{Rules: rules, HashKeys: p.secret(), MinReplicas: p.MinReplicas}); err != nil {
			t.Errorf("seed %d: %v", p.Seed, err)
		}
	}
}

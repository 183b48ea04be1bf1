package simulate

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"
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
	if d.p.Quiet = d.span(0, 1_400_000); d.p.Quiet < 1300*sec {
		d.p.Quiet /= 10 // quiet hours find little, and cost what a world costs
	}
	d.onceBeside()
	d.cooldowns() // only where there is no limit
	d.storage(length)
	d.gates(length)
	d.costs()
	d.paces(length)
	d.history()
	d.choices()
	d.leads(length)
	if *onlyOrder { // the others stay the worlds that they were
		d.ordered(length)
	}
	d.groups()
	d.inTime()
	d.clients()
	d.splits(length)
	d.suspensions(length)
	return d.p
}

// aside is a drawer with dice of its own: what it draws changes nothing of what others draw.
func (d *drawer) aside(concept string) *drawer {
	h := fnv.New64a()
	_, _ = h.Write([]byte(concept)) // never fails
	return &drawer{Rand: rand.New(rand.NewPCG(d.p.Seed, h.Sum64())), p: d.p, scopes: d.scopes}
}

// span is a time of so many milliseconds.
func (d *drawer) span(least, most int) time.Duration {
	return time.Duration(least+d.IntN(most-least+1)) * ms
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

// tasks draws what is enqueued.
func (d *drawer) tasks(length time.Duration) {
	var names []string
	for _, r := range d.p.Rules {
		if !slices.Contains(names, r.Task) {
			names = append(names, r.Task)
		}
	}
	names = append(names, "plain")
	entities := 1 + d.IntN(4)
	many := 5 + d.IntN(40)
	burst := time.Duration(-1)
	for n := range many {
		t := taskPlan{
			Task: pick(d, names...), A: d.IntN(entities), B: d.IntN(3),
			MaxRetry: pick(d, 0, 1, 3, 10, 25), Keep: d.chance(0.3), At: d.span(0, int(length/ms)),
		}
		if burst >= 0 && d.chance(0.6) {
			t.At = burst // many come at once
		}
		burst = t.At
		if d.chance(0.4) {
			t.Timeout = time.Duration(2+d.IntN(30)) * sec
		}
		for range 1 + d.weighted(4, 2, 1) {
			t.Steps = append(t.Steps, d.step())
		}
		if d.chance(0.05) && n+1 < many {
			t.Steps[0].Then = n + 2
		}
		d.p.Tasks = append(d.p.Tasks, t)
	}
	for _, t := range d.p.Tasks {
		for _, s := range t.Steps {
			if s.Then > 0 {
				d.p.Tasks[s.Then-1].At = -1
			}
		}
	}
}

// step draws one run of a handler.
func (d *drawer) step() stepPlan {
	s := stepPlan{End: []string{"ok", "fail", "soft", "panic", "skip", "revoke"}[d.weighted(12, 3, 1, 1, 1, 1)]}
	switch d.weighted(3, 5, 2, 1) {
	case 0:
	case 1:
		s.Work = d.span(1, 500)
	case 2:
		s.Work = d.span(500, 5000)
	case 3:
		s.Work = d.span(5000, 40_000)
	}
	s.Deaf = d.chance(0.15)
	if s.End == "soft" && d.chance(0.9) {
		s.End = "ok" // what never counts as a failure may go on for long
	}
	return s
}

// faults draws what goes wrong.
func (d *drawer) faults(length time.Duration) {
	kinds := []faultKind{
		refused, replyLost, swallowed, late, noScript, noPerm, cut, hung, loading, readOnly, wrapped, misconf, outOfMemory,
		setup, apart, frozen,
		stops, stops, dies, dies,
	}
	for range 1 + d.IntN(5) {
		f := faultPlan{Kind: pick(d, kinds...), Proc: d.IntN(len(d.p.Procs)), Client: pick(d, "lock", "lock", "asynq"),
			At: d.span(0, int(length/ms))}
		switch {
		case f.Kind == stops || f.Kind == dies:
			f.Client = ""
			d.p.Faults = append(d.p.Faults, f)
			if d.chance(0.7) {
				d.p.Faults = append(d.p.Faults, faultPlan{Kind: starts, Proc: f.Proc, At: f.At + d.span(9000, 60_000)})
			}
			continue
		case !f.Kind.spansTime():
			f.At, f.Nth = 0, 1+d.IntN(150)
			f.For = d.span(4000, 20_000)
		default:
			f.For = d.span(500, 20_000)
		}
		d.p.Faults = append(d.p.Faults, f)
	}
}

// operators draws what people do.
func (d *drawer) operators(length time.Duration) {
	for range 1 + d.IntN(4) {
		op := opPlan{At: d.span(0, int(length/ms)), Kind: pick(d, "delete", "archive", "run", "pause", "break"),
			Task: d.IntN(len(d.p.Tasks))}
		d.p.Ops = append(d.p.Ops, op)
		if op.Kind == "pause" {
			d.p.Ops = append(d.p.Ops, opPlan{At: op.At + d.span(1000, 30_000), Kind: "unpause", Task: op.Task})
		}
	}
}

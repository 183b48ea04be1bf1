package simulate

import "time"

// faults draws what goes wrong.
func (d *drawer) faults(length time.Duration) {
	kinds := []faultKind{
		refused, replyLost, swallowed, late, noScript, noPerm, cut, hung, loading, readOnly, wrapped, misconf, outOfMemory, setup, apart, frozen,
		stops, stops, dies, dies,
	}
	for range 1 + d.IntN(5) {
		f := faultPlan{Kind: pick(d, kinds...), Proc: d.IntN(len(d.p.Procs)), Client: pick(d, "lock", "lock", "asynq"), At: d.span(0, int(length/time.Millisecond))}
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
		op := opPlan{At: d.span(0, int(length/time.Millisecond)), Kind: pick(d, "delete", "archive", "run", "pause", "break"), Task: d.IntN(len(d.p.Tasks))}
		d.p.Ops = append(d.p.Ops, op)
		if op.Kind == "pause" {
			d.p.Ops = append(d.p.Ops, opPlan{At: op.At + d.span(1000, 30_000), Kind: "unpause", Task: op.Task})
		}
	}
}

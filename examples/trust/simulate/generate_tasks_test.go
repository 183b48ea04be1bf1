package simulate

import "time"

// tasks draws what is enqueued.
func (d *drawer) tasks(length time.Duration) {
	types := map[string]bool{}
	var names []string
	for _, r := range d.p.Rules {
		if !types[r.Task] {
			types[r.Task] = true
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
			MaxRetry: pick(d, 0, 1, 3, 10, 25), Keep: d.chance(0.3), At: d.span(0, int(length/time.Millisecond)),
		}
		if burst >= 0 && d.chance(0.6) {
			t.At = burst // many come at once
		}
		burst = t.At
		if d.chance(0.4) {
			t.Timeout = time.Duration(2+d.IntN(30)) * time.Second
		}
		for range 1 + d.weighted(4, 2, 1) {
			t.Steps = append(t.Steps, d.step())
		}
		if d.chance(0.05) && n+1 < many {
			t.Steps[0].Then = n + 2
		}
		// In the end it succeeds, or asynq archives it.
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

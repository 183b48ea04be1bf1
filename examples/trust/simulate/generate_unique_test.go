package simulate

// once draws a rule of package unique, and the Guard's rule that goes with it.
func (d *drawer) once() {
	u := uniquePlan{
		Task: "once", On: []string{"a"}, Until: pick(d, "done", "start", "start", "for"), Window: d.span(1000, 10_000),
		Duplicate: pick(d, "reject", "join", "replace", "postpone"), Delay: d.span(1000, 4000),
	}
	r := rulePlan{Task: "once", On: []string{"a"}, TTL: d.ttl(), Policy: pick(d, "retry", "park")}
	if r.Policy == "retry" && d.chance(0.5) {
		r.Wait = d.span(100, 5000)
	}
	d.p.Unique = append(d.p.Unique, u)
	d.p.Rules = append(d.p.Rules, r)
}

// onceBeside draws what meets the tasks that are enqueued once: other policies, limits,
// and a second rule.
func (d *drawer) onceBeside() {
	s := d.aside("unique")
	for i := range s.p.Rules {
		r := &s.p.Rules[i]
		if r.Task != "once" {
			continue
		}
		if s.chance(0.5) {
			r.Policy = pick(s, "retry in", "skip", "archive", "fail", "replace", "allow", "after")
			if r.Policy == "after" {
				r.After = pick(s, "busy", "done", "fail", "skip")
			}
		}
		if s.chance(0.2) {
			r.Limit = 2
		}
		if s.chance(0.2) {
			r.MaxHold = s.span(500, 5000)
		}
		if s.chance(0.2) {
			shared := s.scopes[0]
			r.Scope = r.Task
			s.p.Rules = append(s.p.Rules, rulePlan{Task: "once", Scope: shared.Scope, Limit: shared.Limit, TTL: shared.TTL, On: []string{"b"}, Policy: pick(s, "retry", "park")})
		}
		return
	}
}

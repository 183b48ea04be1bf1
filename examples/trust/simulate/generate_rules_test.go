package simulate

import (
	"time"
)

func (d *drawer) ttl() time.Duration {
	return pick(d, sec, 3*sec, 6*sec, 10*sec, 30*sec)
}

// rules draws what takes turns: one to three rules for a type, some of which share a scope with another type's.
func (d *drawer) rules() {
	for i := range 2 {
		d.scopes = append(d.scopes, rulePlan{Scope: pick(d, "account", "api") + string(rune('0'+i)), Limit: d.limit(),
			TTL: d.ttl()})
	}
	for i := range 1 + d.IntN(3) {
		task := "type" + string(rune('0'+i))
		many := 1 + d.weighted(6, 2, 1)
		for j := range many {
			r := rulePlan{Task: task, Limit: d.limit(), TTL: d.ttl()}
			shared := d.chance(0.25)
			switch {
			case j > 0: // the later ones of a type are shared, in one order
				r.Scope, r.Limit, r.TTL = d.scopes[j-1].Scope, d.scopes[j-1].Limit, d.scopes[j-1].TTL
			case many == 1 && shared:
				r.Scope, r.Limit, r.TTL = d.scopes[1].Scope, d.scopes[1].Limit, d.scopes[1].TTL
			case many > 1:
				r.Scope = task
			}
			r.On = pick(d, []string{"a"}, []string{"a"}, []string{"b"}, []string{"a", "b"}, nil)
			d.policy(&r, j)
			d.p.Rules = append(d.p.Rules, r)
		}
	}
	if d.chance(0.3) {
		d.once()
	}
}

func (d *drawer) limit() int {
	return pick(d, 1, 1, 1, 2, 3)
}

// policy draws what becomes of a busy task. Replace and a policy that drops a task do not go together on one task.
func (d *drawer) policy(r *rulePlan, nth int) {
	r.Policy = pick(d, "retry", "retry", "park", "park", "park", "retry in", "skip", "archive", "fail", "replace", "allow",
		"after")
	for _, other := range d.p.Rules {
		if other.Task == r.Task && nth > 0 {
			r.Policy = pick(d, "retry", "park", "retry in", other.Policy)
		}
	}
	if r.Policy == "after" {
		r.After = pick(d, "busy", "done", "fail", "skip")
	}
	if d.chance(0.5) {
		r.Wait = d.span(100, 8000)
	}
	if d.chance(0.1) {
		r.MaxHold = d.span(500, 5000)
	}
	if r.limit() == 1 && r.Scope == "" && d.chance(0.15) {
		r.Cooldown = d.span(500, 8000)
	}
	if len(r.On) > 0 {
		d.chance(0.05) // drawn for the seeds to stay the worlds that they are
	}
}

// cooldowns draws further cooldowns, also of tasks with several rules: for locks that no other type's rule takes.
func (d *drawer) cooldowns() {
	s := d.aside("cooldown")
	for i := range s.p.Rules {
		r := &s.p.Rules[i]
		if r.limit() == 1 && r.scope() == r.Task && r.Cooldown == 0 && s.chance(0.15) {
			r.Cooldown = s.span(500, 8000)
		}
	}
}

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

// onceBeside draws what meets the tasks that are enqueued once: other policies, limits, and a second rule.
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
			s.p.Rules = append(s.p.Rules, rulePlan{Task: "once", Scope: shared.Scope, Limit: shared.Limit, TTL: shared.TTL,
				On: []string{"b"}, Policy: pick(s, "retry", "park")})
		}
		return
	}
}

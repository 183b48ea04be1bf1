package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// What follows is about what a rule decides for each task: whether the task needs the lock, how many
// may hold it beside the task, and when its key can be made; and about processes whose Guard wraps handlers one by one.

// choices draws that.
func (d *drawer) choices() {
	s := d.aside("choices")
	if !s.chance(0.35) {
		return
	}
	for i := range s.p.Procs {
		s.p.Procs[i].Apart = s.chance(0.3)
	}
	own := map[string]bool{} // scopes whose tasks have limits of their own
	missing := map[string]bool{}
	for i := range s.p.Rules {
		r := &s.p.Rules[i]
		if _, drawn := own[r.scope()]; !drawn {
			own[r.scope()] = s.chance(0.3)
		}
		if own[r.scope()] { // all rules of a scope
			r.LimitOf, r.Limit = true, 3
			if r.scope() != r.Task {
				r.Cooldown = 0 // see cooldowns
			}
		}
		if r.Policy == "allow" {
			continue // its tasks run without a key that cannot be made
		}
		if r.LimitOf && s.chance(0.3) {
			r.LimitLater = 1 + s.IntN(2)
		}
		if len(r.On) > 0 && s.p.uniqueOf(taskPlan{Task: r.Task}) == nil && s.chance(0.2) {
			r.KeyLater = 1 + s.IntN(2)
		}
		if r.After != "" && s.chance(0.4) {
			r.After = "later"
		}
		if slices.Contains(r.On, "b") && r.KeyLater == 0 && s.chance(0.6) {
			r.Optional = true
		}
	}
	for i := range s.p.Rules { // a task may lack the field if no rule of it requires it
		r := s.p.Rules[i]
		missing[r.Task] = true
		for _, other := range s.p.Rules {
			if other.Task == r.Task && slices.Contains(other.On, "b") && !other.Optional {
				missing[r.Task] = false
			}
		}
	}
	for i := range s.p.Tasks {
		t := &s.p.Tasks[i]
		t.NoB = missing[t.Task] && s.chance(0.3)
	}
}

// needs tells whether a task of the rule's type takes the rule's lock.
func (r rulePlan) needs(t taskPlan) bool {
	return !r.Optional || !t.NoB || !slices.Contains(r.On, "b")
}

// ownLimit is how many may hold a key of the rule when the task takes it.
func (r rulePlan) ownLimit(t taskPlan) int {
	if !r.LimitOf || t.NoB {
		return 1
	}
	return 1 + t.B%r.limit()
}

// limitOf is the rule's, as the Guard takes it; nil: it has one limit for all.
func (p *process) limitOf(r rulePlan) func(context.Context, *asynq.Task) (int, error) {
	if !r.LimitOf {
		return nil
	}
	return func(ctx context.Context, t *asynq.Task) (int, error) {
		n := number(t)
		if p.w.countAsked("limit of "+r.name(), n) <= r.LimitLater {
			return 0, p.asksBack(ctx, n, errKey)
		}
		return r.ownLimit(p.w.plan.Tasks[n]), nil
	}
}

// asksBack is what a function of a rule returns to have a task come back later.
func (p *process) asksBack(ctx context.Context, n int, why error) error {
	const after = 2 * time.Second
	p.w.book.mu.Lock()
	defer p.w.book.mu.Unlock()
	p.w.book.asksBack(ctx, n, after)
	return automutex.RetryAfter(after, why)
}

// countAsked counts how often a function of a rule was asked about a task.
func (w *world) countAsked(what string, n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	what = fmt.Sprint(what, n)
	w.asked[what]++
	return w.asked[what]
}

// body is the payload of a task.
func (t taskPlan) body(n int) []byte {
	fields := payload{N: n, A: t.A}
	if !t.NoB {
		fields.B = &t.B
	}
	return must(json.Marshal(fields))
}

// middleware is the Guard's, around all handlers or around those of the types that have rules.
func (p *process) middleware(taskType string) asynq.Handler {
	handler := asynq.HandlerFunc(p.handle)
	if !p.wraps(taskType) {
		return handler
	}
	return p.guard.Middleware(handler)
}

// wraps tells whether the Guard wraps the handler of a type.
func (p *process) wraps(taskType string) bool {
	return !p.plan.Apart || slices.ContainsFunc(p.w.plan.Rules, func(r rulePlan) bool { return r.Task == taskType })
}

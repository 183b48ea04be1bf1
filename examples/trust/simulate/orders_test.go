package simulate

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/lock"
)

// controls draws pauses and limits, from a source of their own: the rest of a seed's
// world stays what it is.
func (d *drawer) controls(length time.Duration) {
	of := drawer{Rand: rand.New(rand.NewPCG(d.p.Seed, 0x636f6e74726f6c73)), p: d.p}
	if len(d.p.Tasks) == 0 || !of.chance(0.3) {
		return
	}
	for range 1 + of.IntN(2) {
		at, task := of.span(0, int(length/time.Millisecond)), of.IntN(len(d.p.Tasks))
		lasts := of.span(500, 30_000)
		switch of.IntN(3) {
		case 0:
			d.p.Ops = append(d.p.Ops, opPlan{At: at, Kind: "halt", Task: task, Whole: of.chance(0.5)}, opPlan{At: at + lasts, Kind: "resume", Task: task})
		case 1:
			d.p.Ops = append(d.p.Ops, opPlan{At: at, Kind: "halt", Task: task, For: lasts, Whole: of.chance(0.5)})
		case 2:
			d.p.Ops = append(d.p.Ops, opPlan{At: at, Kind: "limit", Task: task, Limit: 1 + of.IntN(4), Whole: of.chance(0.5)}, opPlan{At: at + lasts, Kind: "no limit", Task: task})
		}
	}
}

// controlOf is what an operator's order is for: the scope, or the key, of the first rule
// of a task. "": the task has no rule.
func (w *world) controlOf(op opPlan) (target string) {
	rules := w.plan.rulesOf(w.plan.Tasks[op.Task])
	switch {
	case len(rules) == 0:
		return ""
	case op.Whole:
		return rules[0].scope()
	}
	return rules[0].key(w.plan.Tasks[op.Task])
}

// realTarget is a target as the library has it: with HashKeys a key has no values.
func (w *world) realTarget(op opPlan) string {
	t := w.plan.Tasks[op.Task]
	rule := w.plan.rulesOf(t)[0]
	if op.Whole {
		return rule.scope()
	}
	return w.operator.locker.Mutex(rule.scope(), lock.Parts(rule.parts(t)...)).Key()
}

// controls are what operators order with. Each order takes a moment of virtual time: which of two states was
// read later is told by the time.
func (w *world) controls() *lock.Controls {
	time.Sleep(time.Microsecond)
	return w.operator.locker.Controls()
}

// control does what an operator orders, and tells whether op is such an order. One that
// fails, while Redis stands still, may be in force or not.
func (w *world) control(op opPlan) bool {
	ctx := context.Background()
	target := w.controlOf(op)
	if target == "" {
		return slices.Contains([]string{"halt", "resume", "limit", "no limit"}, op.Kind)
	}
	switch op.Kind {
	case "halt":
		until := time.Time{}
		if op.For > 0 {
			until = time.Now().Add(op.For)
		}
		w.book.halts(target, until, false)
		if w.controls().Pause(ctx, w.realTarget(op), until, "the plan") == nil {
			w.book.halts(target, until, true)
		}
	case "resume":
		for _, op.Whole = range []bool{false, true} {
			w.book.resuming(w.controlOf(op))
			err := w.controls().Resume(ctx, w.realTarget(op))
			w.book.notef("operator: resume of %s: %v", w.controlOf(op), err)
			if err == nil { // else the pause may go on, until endControls
				w.book.resumes(w.controlOf(op))
			}
		}
	case "limit":
		w.book.mu.Lock()
		o := w.book.order(target)
		o.limit = max(o.limit, op.Limit)
		w.book.mu.Unlock()
		_ = w.controls().SetLimit(ctx, w.realTarget(op), op.Limit, "the plan") // see control
	case "no limit":
		for _, op.Whole = range []bool{false, true} {
			_ = w.controls().ClearLimit(ctx, w.realTarget(op)) // see control
		}
	default:
		return false
	}
	return true
}

// endControls ends every order, when nothing is wrong any more.
func (w *world) endControls() {
	for _, op := range w.plan.Ops {
		if target := w.controlOf(op); target != "" && (op.Kind == "halt" || op.Kind == "limit") {
			w.book.resuming(target)
			if err := w.controls().Resume(context.Background(), w.realTarget(op)); err != nil {
				w.book.violationf("controls: resume of %s: %v", target, err)
			}
			if err := w.controls().ClearLimit(context.Background(), w.realTarget(op)); err != nil {
				w.book.violationf("controls: clearing the limit of %s: %v", target, err)
			}
			w.book.resumes(target)
		}
	}
}

// orders are what is known of the orders for one target.
type orders struct {
	limit   int       // the highest that was ever set
	halted  time.Time // since when a pause is certainly in Redis; zero: none is
	until   time.Time // until when that one certainly lasts, unless it is resumed
	resumed time.Time // until when one lasts, or may last
}

func (b *ledger) order(target string) *orders {
	if b.targets[target] == nil {
		b.targets[target] = &orders{}
	}
	return b.targets[target]
}

// halts notes a pause that ends by itself, or, with the zero time, does not; done: it is in
// Redis. Until it is known to be there, either it or an earlier pause, which it replaces, may
// be in force.
func (b *ledger) halts(target string, until time.Time, done bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.order(target)
	if !o.resumed.After(time.Now()) {
		o.halted = time.Time{} // an earlier pause has ended by itself
	}
	if until.IsZero() {
		until = time.Now().Add(1000 * time.Hour) // nobody knows
	}
	if done && o.halted.IsZero() {
		o.halted = time.Now()
	}
	if done || until.Before(o.until) {
		o.until = until
	}
	if done || until.After(o.resumed) {
		o.resumed = until
	}
}

// resuming notes that a pause may end from now on.
func (b *ledger) resuming(target string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.order(target).halted = time.Time{}
}

// resumes notes that a pause ends now.
func (b *ledger) resumes(target string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.order(target)
	o.halted = time.Time{}
	if o.resumed.After(time.Now()) {
		o.resumed = time.Now()
	}
}

// targetsOf are the two targets of a key.
func targetsOf(key string) [2]string {
	scope, _, _ := strings.Cut(key, "|")
	return [2]string{key, scope}
}

// limitOf is the highest number that may hold a key at once. Callers hold mu.
func (b *ledger) limitOf(key string) int {
	n := b.w.plan.ruleOfKey(key).limit()
	for _, target := range targetsOf(key) {
		if o := b.targets[target]; o != nil {
			n = max(n, o.limit)
		}
	}
	return n
}

// pausedUntil is until when a key is, or may be, paused; zero: it never was. Callers
// hold mu.
func (b *ledger) pausedUntil(key string) (until time.Time) {
	for _, target := range targetsOf(key) {
		if o := b.targets[target]; o != nil && o.resumed.After(until) {
			until = o.resumed
		}
	}
	return until
}

// obeyed is how long a process may take to learn of an order: the promise is 2 seconds.
const obeyed = 2 * time.Second

// judgePause looks whether a lock is acquired that every process knows to be paused.
// Callers hold mu.
func (b *ledger) judgePause(e automutex.Event, n int, key string) {
	if !b.isSure() {
		return // who cannot read the orders goes by those that it has read
	}
	for _, target := range targetsOf(key) {
		o := b.targets[target]
		if o == nil || o.halted.IsZero() || !o.until.After(time.Now()) {
			continue
		}
		if since := time.Since(o.halted); since > obeyed+4*b.w.plan.Latency {
			b.violatef("paused: task %d acquires %q, and %s is paused for %s", n, key, target, since)
		}
	}
}

package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// What follows is about the gate of a key: rates, holds, and cooldowns beside a limit.

var errUpstream = errors.New("simulate: the upstream says 429")

// gates draws rates for scopes, handlers that hold their key and give their task back,
// cooldowns of locks with more than one slot, and what meets them: another limit.
func (d *drawer) gates(length time.Duration) {
	s := d.aside("gates")
	if !s.chance(0.4) {
		return
	}
	rates := map[string]rulePlan{}
	for i := range s.p.Rules {
		r := &s.p.Rules[i]
		rate, drawn := rates[r.scope()]
		if !drawn && s.chance(0.6) {
			rate.Starts, rate.Per = 1+s.IntN(5), s.span(500, 10_000)
			rate.Burst = s.IntN(rate.Starts + 2)
		}
		rates[r.scope()] = rate // all rules of a scope have the same
		r.Starts, r.Per, r.Burst = rate.Starts, rate.Per, rate.Burst
		if r.limit() > 1 && r.scope() == r.Task && s.chance(0.3) {
			r.Cooldown = s.span(500, 8000)
		}
	}
	if s.chance(0.2) {
		at, task := s.span(0, int(length/ms)), s.IntN(len(s.p.Tasks))
		s.p.Ops = append(s.p.Ops, opPlan{At: at, Kind: "limit", Task: task, Limit: 1 + s.IntN(4), Whole: s.chance(0.5)},
			opPlan{At: at + s.span(500, 30_000), Kind: "no limit", Task: task})
	}
	for i := range s.p.Tasks {
		t := &s.p.Tasks[i]
		if !s.chance(0.25) {
			continue
		}
		at := s.IntN(len(t.Steps))
		if at == len(t.Steps)-1 {
			t.Steps = append(t.Steps, t.Steps[at]) // in the end the handler does what it would have
		}
		step := &t.Steps[at]
		if s.chance(0.7) {
			step.Hold = s.span(200, 12_000)
		}
		if s.chance(0.7) {
			step.End, step.Later = "later", s.span(0, 12_000)
		}
	}
}

// costs draws for half of the scopes with a rate that functions say it, and the costs of tasks.
func (d *drawer) costs() {
	s, dear := d.aside("costs"), map[string]bool{}
	for i := range s.p.Rules {
		r := &s.p.Rules[i]
		if _, drawn := dear[r.scope()]; !drawn {
			dear[r.scope()] = s.chance(0.5)
		}
		r.Dear = r.Starts > 0 && dear[r.scope()]
	}
}

func (r rulePlan) rate() automutex.Rate {
	return automutex.Rate{Starts: r.Starts, Per: r.Per, Burst: r.Burst}
}

func (r rulePlan) every() time.Duration {
	if r.Starts == 0 {
		return 0
	}
	return r.Per/time.Duration(r.Starts) + time.Microsecond
}

func (r rulePlan) burst() int { return max(r.Burst, 1) }

func (r rulePlan) cost(n int) int {
	if r.Dear {
		return n % 4
	}
	return 1
}

func (r rulePlan) largest() int { return max(r.cost(1), r.cost(3)) }

// priced has functions say the rate of the rule, and the costs of its tasks.
func (r rulePlan) priced(rule *automutex.Rule) {
	rule.Rate = automutex.Rate{}
	rule.RateOf = func(context.Context, *asynq.Task) (automutex.Rate, error) { return r.rate(), nil }
	rule.Cost = func(_ context.Context, t *asynq.Task) (int, error) { return r.cost(number(t)), nil }
}

// isGated tells whether the lock of a key can be closed with nobody in it.
func (p *plan) isGated(key string) bool {
	for _, t := range p.Tasks {
		for _, s := range t.Steps {
			if s.Hold > 0 {
				return true
			}
		}
	}
	rule := p.ruleOfKey(key)
	return rule.Starts > 0 || rule.Cooldown > 0 ||
		slices.ContainsFunc(p.Ops, func(op opPlan) bool { return op.Kind == "pace" })
}

type gateBook struct {
	starts []take // those that have begun, by when they took the lock
	holds  []holdBook
	takes  []take    // all who took the lock
	closed time.Time // until when a hold may last
}

// take is one who took a lock, or, with closed, what closed its gate for longer: after
// that a rate has nothing saved up.
type take struct {
	closed time.Time

	id   string // see ledger.balance
	at   time.Time
	cost int
}

type holdBook struct {
	n           int // whose handler said so
	from, until time.Time
}

// grantLag is how long after Redis gave a lock somebody may tell of it.
func (b *ledger) grantLag(rule rulePlan) time.Duration {
	lag := b.w.plan.grantSlack() + 4*b.w.plan.Latency
	switch {
	case !b.calm || !b.clean:
		return lag + rule.TTL + 5*sec // an exchange that was repeated
	case b.w.plan.Losing > 0:
		return lag + 3*sec // a waiter that was not told asks
	}
	return lag
}

// judgeGate looks whether a lock is taken that a hold has closed.
func (b *ledger) judgeGate(n int, key, id string) {
	b.judgeHold(n, "takes", key, 0)
	k := b.key(key)
	k.gate.takes = append(k.gate.takes, take{id: id, at: time.Now(), cost: b.ruleOf(key).cost(n)})
}

// judgeHold looks whether a task does what it may not while a hold lasts that began long ago.
func (b *ledger) judgeHold(n int, does, key string, ago time.Duration) {
	if h := b.onHold(key, ago); h != nil {
		b.violatef("hold: task %d %s %q, which task %d has put on hold for %s more", n, does, key, h.n, time.Until(h.until))
	}
}

// onHold is a hold of the key that certainly lasts, and began before ago, which all know by now.
func (b *ledger) onHold(key string, ago time.Duration) *holdBook {
	now, known := time.Now(), time.Now().Add(-ago-b.grantLag(b.ruleOf(key)))
	return find(b.key(key).gate.holds, func(h holdBook) bool {
		return known.After(h.from) && now.Before(h.until.Add(-10*ms)) && !b.w.forgot()
	})
}

// judgeStart looks whether a handler begins while one of its keys is on hold, or paused: that may have begun when the
// task had that key, and waited for the next one.
func (b *ledger) judgeStart(r *run) {
	for _, rule := range b.w.plan.rulesOf(b.books[r.n].plan) {
		key := rule.key(b.books[r.n].plan)
		b.judgePause(r.n, "begins on", key)
		if slices.Contains(r.keys, key) {
			b.judgeHold(r.n, "begins on", key, 0)
		}
	}
}

// judgeAhead looks whether a task takes its first lock although one that it needs besides was on hold when it came.
func (b *ledger) judgeAhead(n int, key string, waited time.Duration) {
	if n < 0 || !b.calm {
		return
	}
	task := b.books[n].plan
	rules := b.w.plan.rulesOf(task)
	for i, rule := range rules {
		if i > 0 && rules[0].key(task) == key && !rules[0].InOrder && rule.Policy != "allow" {
			b.judgeHold(n, "takes "+key+" and cannot have", rule.key(task), waited)
		}
	}
}

// expectGivenBack looks, some seconds after a key was put on hold or paused, whether those that come to it keep the
// locks that they have taken before.
func (b *ledger) expectGivenBack(key string) {
	if !b.calm || b.w.plan.Losing > 0 {
		return
	}
	for _, a := range b.attempts {
		rules, taken := b.w.plan.rulesOf(b.books[a.n].plan), a.taken
		if a.over || a.run != nil || taken == 0 || taken >= len(rules) || rules[taken].key(b.books[a.n].plan) != key {
			continue
		}
		time.AfterFunc(4*sec, func() {
			defer b.locked()()
			kept := rules[0].key(b.books[a.n].plan)
			all := b.key(kept).held[fmt.Sprintf("%d %s %s", a.p.n, b.books[a.n].id, rules[0].name())]
			gone := a.over || a.run != nil || a.p.isEnded() || a.taken != taken
			if !gone && len(all) > 0 && time.Since(all[0].since) > 4*sec && b.onHold(key, 2*sec) != nil {
				b.violatef("kept: task %d keeps %q, and waits for the gate of %q", a.n, kept, key)
			}
		})
	}
}

func (b *ledger) judgeStays(e automutex.Event, n int, key string) {
	rule := find(b.w.plan.Rules, func(r rulePlan) bool { return r.name() == e.Rule })
	if b.calm && slices.Contains([]string{"skip", "archive", "fail", "allow"}, rule.Policy) && e.Waited > rule.Wait+4*sec {
		b.violatef("stays: task %d has waited for %q for %s, and its Wait is %s", n, key, e.Waited, rule.Wait)
	}
}

// rateOpensBy is when the rate of a key certainly allows a start, if every ask was answered.
func (b *ledger) rateOpensBy(key string) (at time.Time) {
	rule := b.ruleOf(key)
	every := rule.every()
	for _, t := range b.key(key).gate.takes {
		if every == 0 {
			continue
		}
		at = latest(at, t.closed)
		if !t.closed.IsZero() {
			continue
		}
		at = latest(at, t.at.Add(-every*time.Duration(rule.burst()-1)))
		at = at.Add(every * time.Duration(t.cost))
	}
	if p := b.paceOf(key); p != nil { // nobody counts what it has counted
		until := p.ended
		if until.IsZero() {
			until = time.Now()
		}
		counted := p.rule.every()*time.Duration(rule.largest()) + every*time.Duration(rule.largest()+rule.burst()-1)
		at = latest(at, until.Add(obeyed+b.grantLag(rule)+counted))
	}
	return at
}

// judgeCharge looks whether the starts that there were explain for how long a rate keeps a task away.
func (b *ledger) judgeCharge(n int, key string, busy *automutex.BusyError) {
	rule, opens := b.ruleOf(key), time.Now().Add(busy.ExpiresIn)
	if busy.Reason != automutex.ReasonRate || !b.isSure() || !b.key(key).broken.IsZero() || rule.Policy == "replace" {
		return // who is replaced may have taken it
	}
	most := time.Now().Add(-rule.every() * time.Duration(rule.burst()-1))
	most = latest(most, b.rateOpensBy(key))
	if most = most.Add(b.grantLag(rule) + sec + rule.every()*time.Duration(rule.largest())); opens.After(most) {
		b.violatef("charged: task %d is kept from %q until %s, at the latest %s is explained by the starts there were", n,
			key, opens.Sub(b.began), most.Sub(b.began))
	}
}

// opensBy is when the gate of a key is certainly open: of a rate only where every ask is answered.
func (b *ledger) opensBy(key string) time.Time {
	return latest(b.key(key).gate.closed, b.rateOpensBy(key))
}

func (b *ledger) judgeRate(r *run, key string, taken time.Time) {
	k, rule := b.key(key), b.ruleOf(key)
	if rule.every() == 0 && b.pace == nil {
		return
	}
	k.gate.starts = append(k.gate.starts, take{at: taken, cost: rule.cost(r.n)})
	if b.w.forgot() {
		return
	}
	lag, largest := b.grantLag(rule), rule.largest()
	for _, first := range k.gate.starts {
		from, n := first.at, 0
		rule, ok := b.rateBetween(key, from, taken, lag)
		if from.After(taken) || !ok {
			continue
		}
		for _, one := range k.gate.starts {
			if !one.at.Before(from) && !one.at.After(taken) {
				n += one.cost
			}
		}
		if most := rule.burst() - 1 + largest + int((taken.Sub(from)+lag)/(rule.Per/time.Duration(rule.Starts))); n > most {
			b.violatef("rate: task %d is the %d. start of %q within %s; %s allows %d", r.n, n, key, taken.Sub(from), rule.rate(),
				most)
			return
		}
	}
}

// judgeCooldownBeside looks whether a handler begins, on a lock with several slots, when its cooldown had begun: it may
// begin beside the run that ends with it.
func (b *ledger) judgeCooldownBeside(r *run, key string) {
	k, rule := b.key(key), b.ruleOf(key)
	if rule.Cooldown == 0 || rule.limit() == 1 || !b.isSure() {
		return
	}
	for _, o := range k.successes {
		if !o.lapsed[key] && b.beganAfter(r, o, key) && r.began.Before(o.began.Add(rule.Cooldown-10*ms)) &&
			k.broken.Before(o.began) {
			b.violatef("cooldown: task %d begins on %q %s after the success of task %d began; the cooldown is %s", r.n, key,
				r.began.Sub(o.began), o.n, rule.Cooldown)
		}
	}
}

func (b *ledger) beganAfter(r, o *run, key string) bool {
	released, ok := o.released[key]
	return ok && r.began.Add(-b.grantLag(b.ruleOf(key))).After(released)
}

func (b *ledger) holds(n int, key string, d time.Duration, began time.Time, err error) {
	defer b.locked()()
	b.addf("task %d puts %q on hold for %s: %v", n, key, d, err)
	k := b.key(key)
	k.closes(time.Now().Add(d))
	if err == nil && k.broken.Before(began) {
		k.gate.holds = append(k.gate.holds, holdBook{n, time.Now(), began.Add(d)})
		b.expectGivenBack(key)
	}
}

func (k *keyBook) closes(until time.Time) {
	k.gate.takes = append(k.gate.takes, take{closed: until})
	k.gate.closed = latest(k.gate.closed, until)
}

func (k *keyBook) opens() {
	k.broken = time.Now()
	k.gate.starts, k.gate.holds = nil, nil // closed stays: nobody knows
}

func (b *ledger) judgeHeld(n int, key, reason, how string) {
	switch {
	case reason == automutex.ReasonClosed || reason == automutex.ReasonPaused:
		b.violatef("held: task %d is %s although %q is only on hold or paused", n, how, key)
	case reason == automutex.ReasonRate && b.isSure() && b.opensBefore(key, time.Now()):
		// Redis may have given a start to somebody who has not told of it yet.
		dropped := time.Now()
		time.AfterFunc(b.grantLag(b.ruleOf(key))+100*ms, func() { b.judgeRateDrop(n, key, how, dropped) })
	}
}

// judgeRateDrop is the second half of judgeHeld: a moment later every start before the drop is known.
func (b *ledger) judgeRateDrop(n int, key, how string, dropped time.Time) {
	defer b.locked()()
	if b.opensBefore(key, dropped) {
		b.violatef("dropped: task %d is %s for the rate of %q, which allows a start since %s", n, how, key,
			dropped.Sub(b.opensBy(key)))
	}
}

// opensBefore tells whether the gate of a key was certainly open when a task was told at asked that it is closed.
func (b *ledger) opensBefore(key string, asked time.Time) bool {
	return asked.Add(-b.grantLag(b.ruleOf(key)) - 3*sec).After(b.opensBy(key))
}

func (p *process) hold(ctx context.Context, r *run, step stepPlan) {
	if step.Hold == 0 || r.innermost == "" {
		return
	}
	began := time.Now()
	err := automutex.CloseGate(ctx, step.Hold)
	if !p.isEnded() {
		p.w.book.holds(r.n, r.innermost, step.Hold, began, err)
	}
}

func (b *ledger) later(r *run, after time.Duration) {
	b.asksBack(r.ctx, r.n, after)
	if retried, _ := asynq.GetRetryCount(r.ctx); retried >= b.books[r.n].plan.MaxRetry &&
		!r.p.wraps(b.books[r.n].plan.Task) {
		b.books[r.n].ends[endArchived] = true // nobody keeps it in its worker
	}
}

// asksBack says that a handler, or a function of a rule, asks for a task to come back later.
func (b *ledger) asksBack(ctx context.Context, n int, after time.Duration) {
	retried, _ := asynq.GetRetryCount(ctx)
	if retried < b.books[n].plan.MaxRetry {
		return
	}
	// it waits for a second at least
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline)-1100*ms < max(after, sec) {
		b.books[n].ends[endLate] = true // there is no time left to wait in its worker
	}
}

// controls draws pauses and limits, from a source of their own: the rest of a seed's world stays what it is.
func (d *drawer) controls(length time.Duration) {
	of := drawer{Rand: rand.New(rand.NewPCG(d.p.Seed, 0x636f6e74726f6c73)), p: d.p}
	if len(d.p.Tasks) == 0 || !of.chance(0.3) {
		return
	}
	for range 1 + of.IntN(2) {
		at, task := of.span(0, int(length/ms)), of.IntN(len(d.p.Tasks))
		lasts := of.span(500, 30_000)
		switch of.IntN(3) {
		case 0:
			d.p.Ops = append(d.p.Ops, opPlan{At: at, Kind: "halt", Task: task, Whole: of.chance(0.5)},
				opPlan{At: at + lasts, Kind: "resume", Task: task})
		case 1:
			d.p.Ops = append(d.p.Ops, opPlan{At: at, Kind: "halt", Task: task, For: lasts, Whole: of.chance(0.5)})
		case 2:
			d.p.Ops = append(d.p.Ops, opPlan{At: at, Kind: "limit", Task: task, Limit: 1 + of.IntN(4), Whole: of.chance(0.5)},
				opPlan{At: at + lasts, Kind: "no limit", Task: task})
		}
	}
}

// paces draws a rate that an operator orders, one in a world at most.
func (d *drawer) paces(length time.Duration) {
	s := d.aside("paces")
	if len(s.p.Tasks) == 0 || !s.chance(0.2) {
		return
	}
	op := opPlan{At: s.span(0, int(length/ms)), Kind: "pace", Task: s.IntN(len(s.p.Tasks)),
		Pace: &rulePlan{Starts: 1 + s.IntN(5), Per: s.span(500, 10_000), Burst: s.IntN(4)}, Whole: s.chance(0.7)}
	s.p.Ops = append(s.p.Ops, op)
	op.At, op.Kind = op.At+s.span(3000, 40_000), "no pace"
	s.p.Ops = append(s.p.Ops, op)
}

type paceBook struct {
	target       string
	rule         rulePlan  // its rate
	begun, known time.Time // when it was sent, and was certainly in Redis
	ending       time.Time // when its end was sent
	ended        time.Time // when it had certainly ended
}

func (b *ledger) paceOf(key string) *paceBook {
	if b.pace != nil && (key == b.pace.target || strings.HasPrefix(key, b.pace.target+"|")) {
		return b.pace
	}
	return nil
}

// rateBetween is the rate that two starts, each told of within lag, certainly were under; ok: one is known.
func (b *ledger) rateBetween(key string, from, to time.Time, lag time.Duration) (rule rulePlan, ok bool) {
	rule, p := b.ruleOf(key), b.paceOf(key)
	switch slack := obeyed + 4*b.w.plan.Latency + lag; {
	case p == nil, to.Before(p.begun), !p.ended.IsZero() && from.After(p.ended.Add(slack)):
		return rule, rule.Starts > 0
	case p.known.IsZero() || from.Before(p.known.Add(slack)) || !p.ending.IsZero() || !b.isSure():
		return rule, false
	}
	return p.rule, true
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

// control does what an operator orders, and tells whether op is such an order.
func (w *world) control(op opPlan) bool {
	ctx := context.Background()
	target := w.controlOf(op)
	if target == "" {
		return slices.Contains([]string{"halt", "resume", "limit", "no limit", "pace", "no pace"}, op.Kind)
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
			w.book.tracef("operator: resume of %s: %v", w.controlOf(op), err)
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
	case "pace":
		p := &paceBook{target: target, rule: *op.Pace, begun: time.Now()}
		w.book.mu.Lock()
		w.book.pace = p
		w.book.mu.Unlock()
		if w.controls().SetRate(ctx, w.realTarget(op), op.Pace.Starts, op.Pace.Per, op.Pace.Burst, "the plan") == nil {
			w.book.mu.Lock()
			p.known = time.Now()
			w.book.mu.Unlock()
		}
	case "no pace":
		w.endPace(op)
	default:
		return false
	}
	return true
}

func (w *world) endPace(op opPlan) {
	w.book.mu.Lock()
	p := w.book.pace
	if p != nil && p.ending.IsZero() {
		p.ending = time.Now()
	}
	w.book.mu.Unlock()
	if err := w.controls().ClearRate(context.Background(), w.realTarget(op)); err == nil && p != nil {
		w.book.mu.Lock()
		p.ended = time.Now()
		w.book.mu.Unlock()
	}
}

func (w *world) endControls() {
	for _, op := range w.plan.Ops {
		if op.Kind == "pace" && w.controlOf(op) != "" {
			w.endPace(op)
		}
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

func (b *ledger) halts(target string, until time.Time, done bool) {
	defer b.locked()()
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

func (b *ledger) resuming(target string) {
	defer b.locked()()
	b.order(target).halted = time.Time{}
}

func (b *ledger) resumes(target string) {
	defer b.locked()()
	o := b.order(target)
	o.halted = time.Time{}
	if o.resumed.After(time.Now()) {
		o.resumed = time.Now()
	}
}

func targetsOf(key string) [2]string {
	scope, _, _ := strings.Cut(key, "|")
	return [2]string{key, scope}
}

func (b *ledger) limitOf(key string) int {
	n, leave := b.ownLimitOf(key), b.ruleOf(key).LeaveIdle
	for _, p := range b.w.plan.Procs {
		if leave > 0 {
			n += max(0, p.Workers-leave)
		}
	}
	return n
}

func (b *ledger) ownLimitOf(key string) int {
	n := b.ruleOf(key).limit()
	for _, target := range targetsOf(key) {
		if o := b.targets[target]; o != nil {
			n = max(n, o.limit)
		}
	}
	return n
}

// judgeBorrowed looks whether a run above the limit of its key has left workers idle: those were not whose handlers had
// begun before it took the key. An ask sent again goes by what was idle before.
func (b *ledger) judgeBorrowed(r *run, key string) {
	rule, beside, busy := b.ruleOf(key), 0, 0
	for _, o := range b.runs {
		if o.lives() && slices.Contains(o.keys, key) {
			beside++
		}
		if o.lives() && o.p == r.p && o.began.Add(ms+4*b.w.plan.Latency).Before(r.taken[key]) {
			busy++
		}
	}
	if idle := r.p.plan.Workers - busy - 1; rule.LeaveIdle > idle && beside >= b.ownLimitOf(key) && !b.mayNotKnow(key) &&
		b.w.calmAt(r.p, r.taken[key], 0) {
		b.violatef("borrowed: task %d begins beside %d on %q, and leaves %d workers idle", r.n, beside, key, idle)
	}
}

// judgeEven looks whether a key has had less than .7 of another's starts in 20 seconds, from when each has begun
// three until one has begun its last.
func (b *ledger) judgeEven() {
	starts, from, until := map[string][]time.Time{}, b.began, time.Now()
	for _, r := range b.runs {
		starts[r.keys[0]] = append(starts[r.keys[0]], r.began)
	}
	for _, all := range starts {
		from = latest(from, all[2])
		if last := all[len(all)-1]; last.Before(until) {
			until = last
		}
	}
	for ; b.isSure() && from.Add(20*sec).Before(until); from = from.Add(100 * ms) {
		least, most := len(b.runs), 0
		for _, all := range starts {
			n := 0
			for _, at := range all {
				if !at.Before(from) && at.Before(from.Add(20*sec)) {
					n++
				}
			}
			least, most = min(least, n), max(most, n)
		}
		if least*10 < most*7 {
			b.violatef("uneven: one key has %d starts in the 20 seconds from %s, and another %d", least, from.Sub(b.began),
				most)
			return
		}
	}
}

// pausedUntil is until when a key is, or may be, paused; zero: it never was.
func (b *ledger) pausedUntil(key string) (until time.Time) {
	for _, target := range targetsOf(key) {
		if o := b.targets[target]; o != nil && o.resumed.After(until) {
			until = o.resumed
		}
	}
	return until
}

const obeyed = 2 * sec

func (b *ledger) judgePause(n int, does, key string) {
	if !b.isSure() {
		return // who cannot read the orders goes by those that it has read
	}
	for _, target := range targetsOf(key) {
		o := b.targets[target]
		if o == nil || o.halted.IsZero() || !o.until.After(time.Now()) {
			continue
		}
		if since := time.Since(o.halted); since > obeyed+4*b.w.plan.Latency {
			b.violatef("paused: task %d %s %q, and %s is paused for %s", n, does, key, target, since)
		}
	}
}

// What follows is about what a rule decides for each task: whether the task needs the lock, how many
// may hold it beside the task, and when its key can be made; and about processes whose Guard wraps handlers one by one.

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

func (r rulePlan) needs(t taskPlan) bool {
	return !r.Optional || !t.NoB || !slices.Contains(r.On, "b")
}

func (r rulePlan) ownLimit(t taskPlan) int {
	if !r.LimitOf || t.NoB {
		return 1
	}
	return 1 + t.B%r.limit()
}

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

func (p *process) asksBack(ctx context.Context, n int, why error) error {
	const after = 2 * sec
	defer p.w.book.locked()()
	p.w.book.asksBack(ctx, n, after)
	return automutex.RetryAfter(after, why)
}

func (w *world) countAsked(what string, n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	what = fmt.Sprint(what, n)
	w.asked[what]++
	return w.asked[what]
}

func (t taskPlan) body(n int) []byte {
	fields := payload{N: n, A: t.A}
	if !t.NoB {
		fields.B = &t.B
	}
	return must(json.Marshal(fields))
}

func (p *process) middleware(taskType string) asynq.Handler {
	handler := asynq.HandlerFunc(p.handle)
	if !p.wraps(taskType) {
		return handler
	}
	return p.guard.Middleware(handler)
}

func (p *process) wraps(taskType string) bool {
	return !p.plan.Apart || slices.ContainsFunc(p.w.plan.Rules, func(r rulePlan) bool { return r.Task == taskType })
}

// What follows is about asynq's groups: a task that is enqueued with asynq.Group waits until a server's
// GroupAggregator makes one task of all tasks of its group.

type groupPlan struct {
	Grace    time.Duration
	MaxDelay time.Duration
	MaxSize  int
}

func (d *drawer) groups() {
	s := d.aside("groups")
	if !s.chance(0.3) {
		return
	}
	s.p.Groups = &groupPlan{Grace: s.span(1000, 6000), MaxDelay: pick(s, 0, s.span(6000, 20_000)),
		MaxSize: pick(s, 0, 0, 1, 2, 5)}
	types := []string{"plain"}
	for _, r := range s.p.Rules {
		if !r.InOrder && s.p.uniqueOf(taskPlan{Task: r.Task}) == nil { // aggregators enqueue with a client of asynq's
			types = append(types, r.Task)
		}
	}
	for i := range s.p.Tasks {
		t := &s.p.Tasks[i]
		if s.p.orderOf(*t) != nil || !s.chance(0.4) {
			continue
		}
		t.Group = pick(s, "g0", "g1")
		for range 3 { // it may be aggregated again after a fault
			made := taskPlan{At: -1, Task: pick(s, types...), A: s.IntN(4), B: s.IntN(3), MaxRetry: pick(s, 0, 1, 3, 25),
				Keep: s.chance(0.3), Aggregated: true}
			for range 1 + s.weighted(4, 2, 1) {
				made.Steps = append(made.Steps, s.step())
			}
			s.p.Tasks = append(s.p.Tasks, made)
		}
	}
}

func (p *process) aggregate(_ string, members []*asynq.Task) *asynq.Task {
	n := p.w.book.aggregates(p, members)
	if n < 0 {
		return nil // asynq does not enqueue it, and aggregates the group again
	}
	t := p.w.plan.Tasks[n]
	return asynq.NewTask(t.Task, t.body(n), append(t.options(), asynq.TaskID(p.w.plan.id(n)))...)
}

// aggregates says that tasks are aggregated, and gives the number of the task that is made; -1: none is.
func (b *ledger) aggregates(p *process, members []*asynq.Task) int {
	defer b.locked()()
	n := slices.IndexFunc(b.books, func(t *taskBook) bool { return t.asked == 0 && b.books[t.n].plan.Aggregated })
	if n < 0 || p.isEnded() {
		return -1
	}
	t := b.books[n]
	for _, member := range members {
		t.members = append(t.members, number(member))
	}
	b.addf("process %d makes task %d of %v", p.n, n, t.members)
	t.id, t.asked, t.acceptAt = b.w.plan.id(n), b.seq, b.seq
	for _, m := range t.members {
		o := b.books[m]
		o.into, o.aggregated, o.ends[endAggregated] = append(o.into, n), time.Now(), true
		if o.refused > 0 && !b.deliversLate(b.books[m].plan, frozen) {
			b.violatef("refused: task %d is aggregated although its producer was told that nothing was enqueued", m)
		}
	}
	return n
}

// judgeGroup looks whether a task that was aggregated is in one task that ran or is stored: only faults of asynq's
// client, and operators, have asynq aggregate it again.
func (b *ledger) judgeGroup(t *taskBook) {
	in := 0
	for _, made := range t.into {
		if !b.neverCame(b.books[made]) {
			in++
		}
	}
	switch {
	case in == 0 && t.state == "gone" && !t.op:
		b.violatef("group: task %d is gone, and so is each task that was made of it: %v", t.n, t.into)
	case (in > 1 || t.success > 0) && b.clean && !t.op:
		b.violatef("group: task %d has succeeded %d times, and %d tasks were made of it: %v", t.n, t.success, in, t.into)
	}
}

func (b *ledger) neverCame(t *taskBook) bool { return t.most < 0 && t.state == "gone" }

// isReadBeside tells whether a task may have been told to be a duplicate of one that asynq has aggregated and not yet
// deleted, so that the aggregated task may have run already.
func (b *ledger) isReadBeside(t *taskBook) bool {
	return slices.ContainsFunc(append(b.alike(t), t), func(o *taskBook) bool {
		return len(o.into) > 0 && (!b.clean || time.Since(o.aggregated) < b.deletedIn())
	})
}

// deletedIn is how long after its aggregation a task is deleted by asynq, and a producer that has seen it is answered.
func (b *ledger) deletedIn() time.Duration { return 500*ms + 16*b.w.plan.Latency }

// judgeClaim looks whether a task is refused although each other of its key has ended: it was aggregated, refused,
// joined, or a newer one took its place.
func (b *ledger) judgeClaim(t *taskBook, u *uniquePlan) {
	if !b.calm || !b.clean || u.Until == "for" {
		return
	}
	aggregated := -1
	for _, o := range b.alike(t) {
		switch {
		case o.refused > 0, o.joined > 0, o.asked == 0:
		case len(o.into) > 0 && !o.op && o.starts == 0 && time.Since(o.aggregated) > b.deletedIn()+5*sec:
			aggregated = o.n
		case o.acceptAt == 0 || !o.ends[endNewer]:
			return
		}
	}
	if aggregated >= 0 {
		b.violatef("claim: task %d is refused, and the last of its key, task %d, was aggregated", t.n, aggregated)
	}
}

// madeEndsUnrun tells whether a task was made of this one that did not run, for a reason, or that asynq keeps in its
// group.
func (b *ledger) madeEndsUnrun(t *taskBook) bool {
	return t.state == "aggregating" || slices.ContainsFunc(t.into, func(n int) bool {
		o := b.books[n]
		return o.endsUnrun() || o.starts == 0 && b.exhausted(o)
	})
}

func (w *world) inGroups() (left []string) {
	m, base := w.redis.mini, "asynq:{"+queue+"}:"
	groups, _ := m.SMembers(base + "groups") // no such key: none
	for _, group := range groups {
		ids, _ := m.ZMembers(base + "g:" + group)
		for _, id := range ids {
			left = append(left, "group "+group+": "+id)
		}
	}
	sets, _ := m.ZMembers(base + "aggregation_sets")
	return append(left, sets...)
}

// What follows is about leadership: in some worlds each process is a candidate, by a client of its own.

const leadClient = "lead"

func (d *drawer) leads(length time.Duration) {
	s := d.aside("leads")
	if !s.chance(0.2) {
		return
	}
	s.p.Lead = s.span(1000, 60_000)
	if len(s.p.Faults) == 0 {
		return
	}
	for range s.IntN(3) {
		f := faultPlan{Kind: pick(s, refused, replyLost, swallowed, late, cut, hung, loading, readOnly, apart),
			Proc: s.IntN(len(s.p.Procs)), Client: leadClient}
		if f.Kind.spansTime() {
			f.At, f.For = s.span(0, int(length/ms)), s.span(500, 20_000)
		} else {
			f.Nth, f.For = 1+s.IntN(60), s.span(4000, 20_000)
		}
		s.p.Faults = append(s.p.Faults, f)
	}
}

type candidate struct {
	end    *endpoint
	cancel context.CancelFunc
	over   chan struct{} // closed when it has given up, and closed its Locker
}

func (p *process) campaigns() *candidate {
	if p.w.plan.Lead == 0 {
		return nil
	}
	c := &candidate{end: p.w.redis.endpoint(p.n, leadClient, p.w.plan.Seed+2, p.w.plan.Faults), over: make(chan struct{})}
	rdb := c.end.client()
	locker := lock.New(rdb, lock.Options{Owner: fmt.Sprintf("process-%d", p.n), TTL: 6 * sec,
		Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go func() { // until resigns
		defer close(c.over)
		for ctx.Err() == nil {
			if err := locker.Lead(ctx, "leader", p.lead); err != nil && ctx.Err() == nil {
				p.w.book.violationf("lead: process %d gives up: %v", p.n, err)
				break
			}
		}
		_ = locker.Close() // an error is that Redis did not hear of it
		_ = rdb.Close()
	}()
	return c
}

func (p *process) lead(ctx context.Context) error {
	t := p.w.book.leads(p, ctx)
	timer := time.NewTimer(p.w.plan.Lead)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	p.w.book.led(t)
	return nil
}

func (c *candidate) resigns() {
	if c != nil {
		c.cancel()
		<-c.over
	}
}

type term struct {
	p    *process
	ctx  context.Context // of its function, which ends when it has to stop
	over bool
}

func (b *ledger) leads(p *process, ctx context.Context) *term {
	defer b.locked()()
	t := &term{p: p, ctx: ctx}
	if p.isEnded() {
		return t
	}
	b.addf("process %d leads", p.n)
	for _, o := range b.terms {
		if o.lives() && !b.w.forgot() {
			b.violatef("lead: process %d leads beside process %d", p.n, o.p.n)
		}
	}
	b.terms = append(b.terms, t)
	return t
}

func (b *ledger) led(t *term) {
	defer b.locked()()
	t.over = true
	hit := slices.ContainsFunc(b.w.plan.Faults, func(f faultPlan) bool { return f.Client == leadClient })
	if cause := context.Cause(t.ctx); errors.Is(cause, lock.ErrLost) && b.calm && !hit && !b.w.forgot() && !t.p.isEnded() {
		b.violatef("lead: process %d loses its leadership, and nothing was wrong", t.p.n)
	}
}

func (t *term) lives() bool { return !t.over && t.ctx.Err() == nil && !t.p.isEnded() }

// endLeads looks, when nothing is wrong any more, whether somebody leads, and has all candidates resign.
func (w *world) endLeads() {
	if w.plan.Lead == 0 {
		return
	}
	lasts := 45 * sec // a pause of a campaign, and the lease of one that has died
	if w.forgot() {
		lasts += afterAStep
	}
	for began := time.Now(); !w.book.isLed(); time.Sleep(100 * ms) {
		if time.Since(began) > lasts {
			w.book.violationf("lead: nobody leads for %s", lasts)
			break
		}
	}
	for _, p := range w.all {
		if !p.isEnded() {
			p.candidate.resigns()
		}
	}
}

func (b *ledger) isLed() bool {
	defer b.locked()()
	return slices.ContainsFunc(b.terms, (*term).lives)
}

func (p *plan) secret() string {
	if p.HashKeys {
		return "the secret of the simulation"
	}
	return ""
}

func (d *drawer) storage(length time.Duration) {
	s := d.aside("storage")
	s.p.HashKeys = s.chance(0.2)
	if !s.chance(0.15) {
		return
	}
	s.p.MinReplicas = 1
	if s.chance(0.5) {
		s.p.Faults = append(s.p.Faults, faultPlan{
			Kind: noReplicas, Client: "lock", At: s.span(0, int(length/ms)), For: s.span(500, 10_000),
		})
	}
}

func (d *drawer) history() {
	if s := d.aside("history"); s.chance(0.3) {
		s.p.History = 1 + s.IntN(5)
	}
}

func isHistory(key string) bool {
	return strings.HasSuffix(key, ":history") || strings.HasSuffix(key, ":{stats}:histories")
}

func (w *world) judgeHistory() {
	kept := 0
	for _, key := range w.redis.mini.Keys() {
		if !strings.HasSuffix(key, ":history") {
			continue
		}
		kept++
		if runs, err := w.redis.mini.Stream(key); err != nil || len(runs) == 0 || len(runs) > w.plan.History {
			w.book.violationf("history: %q has %d runs, and %d are kept of a key; %v", key, len(runs), w.plan.History, err)
		}
	}
	guarded := slices.ContainsFunc(w.book.runs, func(r *run) bool { return len(w.plan.rulesOf(w.plan.Tasks[r.n])) > 0 })
	if w.book.calm && w.book.clean && w.plan.History > 0 && guarded && kept == 0 {
		w.book.violationf("history: no key has one")
	}
}

// losesReplicas tells whether replicas are away at some time: then grants are undone and
// asked for again at growing intervals, and what a wait may take is not judged.
func (p *plan) losesReplicas() bool {
	return slices.ContainsFunc(p.Faults, func(f faultPlan) bool { return f.Kind == noReplicas })
}

// grantSlack is how long after Redis granted a lease its task may hear of that: with
// replicas, they have to acknowledge it before.
func (p *plan) grantSlack() time.Duration {
	slack := 50 * ms
	if p.MinReplicas > 0 {
		slack += engine.ReplicasWithin + 4*p.Latency
	}
	return slack
}

func (w *world) keyNames() map[string]string {
	names := map[string]string{}
	for _, t := range w.plan.Tasks {
		for _, r := range w.plan.rulesOf(t) {
			names[inBraces(w.lockOf(r, t).Key())] = r.key(t)
		}
	}
	return names
}

func inBraces(key string) string {
	_, key, _ = strings.Cut(key, "{")
	if end := strings.LastIndexByte(key, '}'); end >= 0 {
		key = key[:end]
	}
	return key
}

func (w *world) lockOf(r rulePlan, t taskPlan) *lock.Lock {
	return w.operator.locker.Semaphore(r.scope(), r.limit(), lock.Parts(r.parts(t)...))
}

// wait answers WAIT, which miniredis does not know: all replicas have everything, or,
// while they are away, none has it when the time that the command gives them is over.
func (p *peer) wait(command []string) {
	s := p.redis
	s.mu.Lock()
	away := time.Now().Before(s.replicasAway)
	s.mu.Unlock()
	away = away || p.conn.end.suffers(split)
	if !away {
		p.conn.deliver([]byte(":1\r\n"))
		return
	}
	n, err := strconv.Atoi(command[len(command)-1])
	if err != nil {
		panic("simulate: not a WAIT: " + strings.Join(command, " "))
	}
	time.AfterFunc(time.Duration(n)*ms, func() { p.conn.deliver([]byte(":0\r\n")) })
}

func (s *redisServer) loseReplicas(length time.Duration) {
	s.faulted()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicasAway = time.Now().Add(length)
	s.freezes = append(s.freezes, activeFault{noReplicas, time.Now(), s.replicasAway})
}

// What follows is about a split brain: a replica becomes the master of the locks, without the last writes, while one
// process goes on to use the old one. Then that process finds the new master, and what it wrote is lost.

func (d *drawer) splits(length time.Duration) {
	s := d.aside("split brain")
	if s.p.isOrdered() || !s.chance(0.15) {
		return // what tasks in order do when keys are lost is judged elsewhere
	}
	f := faultPlan{Kind: split, Proc: s.IntN(len(s.p.Procs)), Client: "lock", At: s.span(0, int(length/ms)),
		For: s.span(500, 40_000)}
	if s.p.MinReplicas == 0 { // otherwise the new master has all that counts
		f.Lag = s.span(0, 2000)
	}
	s.p.Faults = append(s.p.Faults, f)
}

func (p *plan) isSplit() bool {
	return slices.ContainsFunc(p.Faults, func(f faultPlan) bool { return f.Kind == split })
}

func (w *world) split(f faultPlan) {
	s, e := w.redis, w.process(f.Proc).locks
	s.tick()
	replica, old := s.newMaster(), s.newMaster()
	copyLocks(replica, s.mini)
	time.Sleep(f.Lag)
	w.mu.Lock()
	w.splitUntil = time.Now().Add(f.For)
	w.mu.Unlock()
	s.commands.Lock()
	s.advance()
	replica.FastForward(f.Lag)
	old.SetTime(s.clock)
	copyLocks(old, s.mini)
	copyLocks(s.mini, replica)
	replica.Close()
	s.old = old
	e.start(f)
	s.commands.Unlock()
	time.Sleep(f.For)
	e.breakAll()
	s.commands.Lock()
	s.old = nil
	s.commands.Unlock()
	time.Sleep(ms) // its subscriptions end meanwhile
	old.Close()
}

// mayHaveTwo tells whether a key with that TTL may have two holders: a split brain lasts, or a holder has not renewed
// since. With MinReplicas none has.
func (w *world) mayHaveTwo(ttl time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.plan.MinReplicas == 0 && time.Now().Before(w.splitUntil.Add(ttl+sec))
}

// masterOf is the master that executes a command of the endpoint. Callers hold commands.
func (s *redisServer) masterOf(e *endpoint, command []string) *miniredis.Miniredis {
	if s.old != nil && e.suffers(split) && slices.ContainsFunc(command, isLockKey) {
		return s.old
	}
	return s.mini
}

func isLockKey(word string) bool { return strings.HasPrefix(word, "automutex:") }

func copyLocks(to, from *miniredis.Miniredis) {
	for _, key := range to.Keys() {
		if isLockKey(key) {
			to.Del(key)
		}
	}
	for _, key := range from.Keys() {
		if !isLockKey(key) {
			continue
		}
		switch kind := from.Type(key); kind {
		case "string":
			text, _ := from.Get(key) // it is there, and of that type, as below
			_ = to.Set(key, text)    // the key is new, as below
		case "zset":
			scores, _ := from.SortedSet(key)
			for member, score := range scores {
				_, _ = to.ZAdd(key, score, member)
			}
		case "hash":
			names, _ := from.HKeys(key)
			for _, name := range names {
				to.HSet(key, name, from.HGet(key, name))
			}
		case "stream":
			entries, _ := from.Stream(key)
			for _, entry := range entries {
				_, _ = to.XAdd(key, entry.ID, entry.Values)
			}
		default:
			panic("simulate: " + key + " is a " + kind)
		}
		if ttl := from.TTL(key); ttl > 0 {
			to.SetTTL(key, ttl)
		}
	}
}

type store struct {
	fence   int64
	writers []*run // whose writes it took
}

// judgeFenceOf looks whether the fence of a run is above that of each who took the lock before, of whatever master: all
// masters have one clock here.
func (b *ledger) judgeFenceOf(r *run, key string) {
	if !b.w.plan.isSplit() || b.limitOf(key) > 1 {
		return // with one master judgeFences is stricter
	}
	for _, o := range b.runs {
		if o.fences[key] >= r.fences[key] && r.taken[key].After(o.taken[key].Add(b.toldWithin(r, key))) {
			b.violatef("fence: task %d has %d on %q, and task %d, which took it before, has %d", r.n, r.fences[key], key, o.n,
				o.fences[key])
		}
	}
}

// writes has the handler of a run write to the store of each of its keys, and judges whether a write is taken after
// that of somebody who took the lock later.
func (b *ledger) writes(r *run) {
	for key, fence := range r.fences {
		k := b.key(key)
		if fence < k.store.fence || b.limitOf(key) > 1 {
			continue
		}
		for _, o := range k.store.writers {
			if o.taken[key].After(r.taken[key].Add(b.toldWithin(o, key))) {
				b.violatef("stale write: task %d writes with %d for %q after task %d, which took it later, with %d", r.n, fence,
					key, o.n, o.fences[key])
			}
		}
		k.store.fence = fence
		k.store.writers = append(k.store.writers, r)
	}
}

func (b *ledger) toldWithin(r *run, key string) time.Duration {
	repeated := b.ruleOf(key).TTL + 8*sec // an exchange, or a message got lost
	disturbed := slices.ContainsFunc(b.w.windows(r.p), func(a activeFault) bool {
		return a.kind != split && a.since.Before(r.taken[key]) && a.until.After(r.taken[key].Add(-repeated))
	})
	if disturbed || b.w.plan.Losing > 0 {
		return repeated
	}
	return b.w.plan.grantSlack() + 8*b.w.plan.Latency
}

// What follows is about tasks that run in the order of their Enqueue calls.

// ordered draws a type of tasks in order, its tasks, and what meets them: producers whose commands fail, as
// those of a producer that dies do, and operators.
func (d *drawer) ordered(length time.Duration) {
	s := d.aside("in order")
	if !s.chance(0.35) {
		return
	}
	s.p.Rules = append(s.p.Rules, rulePlan{
		Task: "ordered", InOrder: true, On: pick(s, []string{"a"}, []string{"a"}, []string{"a", "b"}, nil), TTL: s.ttl(),
		Policy:    "park",
		OnArchive: pick(s, "hold", "continue"), MaxQueued: pick(s, 0, 0, 0, 0, 2, 5),
	})
	if s.chance(0.15) { // and a wide limit, which others share
		shared := s.scopes[0]
		s.p.Rules[len(s.p.Rules)-1].Scope = "ordered"
		wide := rulePlan{Task: "ordered", Scope: shared.Scope, Limit: shared.Limit, TTL: shared.TTL, On: []string{"b"},
			Policy: "park"}
		for _, r := range s.p.Rules {
			if r.scope() == wide.Scope {
				// all rules of a scope have the same
				wide.Limit, wide.LimitOf, wide.Dear = r.Limit, r.LimitOf, r.Dear
				wide.Starts, wide.Per, wide.Burst = r.Starts, r.Per, r.Burst
			}
		}
		s.p.Rules = append(s.p.Rules, wide)
	}
	from, entities := len(s.p.Tasks), 1+s.IntN(3)
	burst := time.Duration(-1)
	for range 4 + s.IntN(25) {
		t := taskPlan{
			Task: "ordered", A: s.IntN(entities), B: s.IntN(2), MaxRetry: pick(s, 0, 1, 3, 10, 25), Keep: s.chance(0.3),
			At: s.span(0, int(length/ms)), Plain: s.chance(0.08),
		}
		if burst >= 0 && s.chance(0.7) {
			t.At = burst + s.span(0, 30) // one after the other
		}
		burst = t.At
		if s.chance(0.3) {
			t.Timeout = time.Duration(5+s.IntN(30)) * sec
		}
		for range 1 + s.weighted(4, 2, 1) {
			t.Steps = append(t.Steps, s.step())
		}
		s.p.Tasks = append(s.p.Tasks, t)
	}
	if s.chance(0.4) {
		for range 1 + s.IntN(3) {
			f := faultPlan{Kind: pick(s, refused, replyLost, swallowed, late, noPerm, cut, hung, misconf, apart, frozen),
				Proc:   -1,
				Client: pick(s, "lock", "asynq"), Nth: 1 + s.IntN(40), For: s.span(4000, 20_000)}
			s.p.Faults = append(s.p.Faults, f)
		}
	}
	if s.chance(0.4) {
		for range 1 + s.IntN(4) {
			s.p.Ops = append(s.p.Ops, opPlan{
				At: s.span(0, int(length/ms)), Kind: pick(s, "delete", "archive", "run", "run", "skip", "skip", "lose"),
				Task: from + s.IntN(len(s.p.Tasks)-from),
			})
		}
	}
}

func (p *plan) orderOf(t taskPlan) *rulePlan {
	return find(p.Rules, func(r rulePlan) bool { return r.Task == t.Task && r.InOrder })
}

func (p *plan) isOrdered() bool {
	return slices.ContainsFunc(p.Rules, func(r rulePlan) bool { return r.InOrder })
}

func (r rulePlan) onArchive() automutex.OnArchive {
	if r.OnArchive == "continue" {
		return automutex.Continue
	}
	return automutex.HoldKey
}

func (w *world) newOrdered() *automutex.Client {
	if !slices.ContainsFunc(w.plan.Tasks, w.plan.byClient) {
		return nil
	}
	return must(automutex.NewClient(w.producerRedis[1], w.producer, automutex.Config{
		Rules: (&process{w: w}).rules(), HashKeys: w.plan.secret(), Private: true, Logger: slog.New(slog.DiscardHandler),
	}))
}

func (d *drawer) clients() {
	s := d.aside("clients")
	s.p.Clients = s.chance(0.2)
	for i := range s.p.Tasks {
		if s.chance(0.1) {
			s.p.Tasks[i].Slow = s.span(0, 12_000)
		}
	}
}

func (p *plan) byClient(t taskPlan) bool {
	return p.Clients || p.orderOf(t) != nil || p.startsWithin(t) > 0
}

type slowKey struct{}

func (w *world) enqueueByClient(n int, task *asynq.Task, opts []asynq.Option) {
	id := w.plan.id(n)
	w.book.named(n, id)
	ctx := context.WithValue(context.Background(), slowKey{}, w.plan.Tasks[n].Slow)
	info, err := w.ordered.EnqueueContext(ctx, task, append(opts, asynq.TaskID(id))...)
	full, failed := (*automutex.FullError)(nil), (*automutex.EnqueueError)(nil)
	switch t := w.plan.Tasks[n]; {
	case errors.As(err, &full):
		w.book.isFull(n, full)
	case errors.Is(err, asynq.ErrTaskIDConflict) && w.plan.orderOf(t) == nil && t.As == 0: // go-redis sent it again
		w.book.enqueued(n, &asynq.TaskInfo{ID: id}, nil)
	case errors.As(err, &failed) && !failed.Unknown, failed == nil && errors.Is(err, asynq.ErrTaskIDConflict):
		// it may conflict with itself
		w.book.notEnqueued(n, err)
	default:
		w.book.enqueued(n, info, err)
	}
}

func (b *ledger) named(n int, id string) {
	defer b.locked()()
	b.books[n].id = id
}

func (b *ledger) notEnqueued(n int, err error) {
	defer b.locked()()
	b.addf("task %d: enqueue answered: %v", n, err)
	b.seq++
	t := b.books[n]
	t.refused, t.id = b.seq, ""
	if errors.Is(err, lock.ErrBackend) {
		t.ghost = time.Now()
	}
	if b.calm && b.books[n].plan.As == 0 {
		b.violatef("enqueue: task %d: %v", n, err)
	}
}

// leftOrder tells whether a task of an ordered key may have left the order, by what is known of its end.
func (b *ledger) leftOrder(n int) bool {
	t, task := b.books[n], b.books[n].plan
	switch {
	case t.success > 0, t.late, t.ends[endTooLate], t.ends[endDeleted] && !t.deletedInHold, t.ends[endGivenUp],
		t.ends[endLost]:
		return true
	case b.w.plan.orderOf(task).OnArchive != "continue":
		return false
	}
	return t.ends[endArchived] || t.ends[endByHand] || t.ends[endLate] || t.spent[1]+b.slack() > task.MaxRetry ||
		b.w.isArchived(t.id)
}

func (w *world) isArchived(id string) bool {
	ids, _ := w.redis.mini.ZMembers("asynq:{" + queue + "}:archived") // no such key: none
	return slices.Contains(ids, id)
}

// judgeOrder looks whether all tasks of the key have ended whose Enqueue had returned before that of r's task began.
func (b *ledger) judgeOrder(r *run) {
	task := b.books[r.n].plan
	rule, mine := b.w.plan.orderOf(task), b.books[r.n]
	if rule == nil {
		return
	}
	b.judgeStarts(r)
	b.judgeRetry(r)
	if task.Plain || mine.ends[endLost] || b.w.forgot() {
		return
	}
	for i, t := range b.books {
		other := b.books[i].plan
		if i == r.n || !t.accepted || other.Plain || other.Task != task.Task || rule.key(other) != rule.key(task) ||
			t.acceptAt > mine.asked {
			continue
		}
		if !b.leftOrder(i) {
			b.violatef("order: task %d begins, and task %d of %q has not ended, whose Enqueue had returned before", r.n, i,
				rule.key(task))
		}
	}
}

func (b *ledger) deletes(n int) {
	defer b.locked()()
	t := b.books[n]
	t.ends[endDeleted] = true
	t.deletedInHold = !t.blocked.IsZero() && time.Since(t.blocked) > 2*sec && b.locksCalm()
}

// judgeRetry looks whether a task that asked to come back later comes before that time.
func (b *ledger) judgeRetry(r *run) {
	for _, o := range slices.Backward(b.runs) {
		if o.n != r.n {
			continue
		}
		later := b.books[r.n].plan.step(o.nth).Later
		since := r.began.Sub(o.ended)
		if o.end == "later" && !o.ended.IsZero() && b.calm && b.clean && !b.books[r.n].op && since > 3*sec &&
			since < later-3*sec {
			b.violatef("early: task %d begins %s after its handler asked to come back in %s", r.n, since, later)
		}
		return
	}
}

// judgeStarts looks whether a handler begins more often than its caller allowed, or after it was done.
func (b *ledger) judgeStarts(r *run) {
	task, t := b.books[r.n].plan, b.books[r.n]
	if task.Plain || t.op || t.ends[endLost] {
		return
	}
	spent := 0
	for _, o := range b.runs {
		// What runs when its process stops goes back to its queue, and counts for nothing, also if its
		// handler has ended and its lock is not released when the time is up.
		stopped := o.p.isStopping()
		if o.n == r.n && (stopped.IsZero() || o.ended.Before(stopped)) &&
			(o.counted || o.ended.IsZero() && o.p.isEnded() && stopped.IsZero()) {
			spent++
		}
	}
	if spent > task.MaxRetry {
		b.violatef("starts: the handler of task %d, whose MaxRetry is %d, begins after %d of its runs have failed", r.n,
			task.MaxRetry, spent)
	}
	if t.success > 0 && b.locksCalm() {
		b.violatef("again: task %d begins after it was done", r.n)
	}
}

func (b *ledger) locksCalm() bool {
	return len(b.deaths) == 0 && !slices.ContainsFunc(b.w.plan.harms(), func(f faultPlan) bool {
		return f.Proc >= 0 && f.Client != "asynq" || f.Kind == frozen
	})
}

const (
	endGivenUp = "its place was given up by the operator"
	endLost    = "its place was lost with its key"
)

// operateInOrder does what an operator does to an ordered key, and tells whether op is such an act.
func (w *world) operateInOrder(op opPlan) bool {
	if op.Kind != "skip" && op.Kind != "lose" {
		return false
	}
	t := w.plan.Tasks[op.Task]
	rule := w.plan.orderOf(t)
	if rule == nil {
		return true
	}
	key := w.lockOf(*rule, t).Key()
	if op.Kind == "skip" {
		w.book.mu.Lock()
		id := w.book.books[op.Task].id
		w.book.mu.Unlock()
		if id != "" {
			w.skip(key, queue+"/"+id) // which explains no more attempts, and no further run
		}
		return true
	}
	w.book.losesKey(*rule, t)
	for _, one := range w.redis.mini.Keys() {
		if one == key || op.Task%3 > 0 && strings.HasPrefix(one, key+":") { // sometimes the word alone, as a hand deletes it
			w.redis.mini.Del(one)
		}
	}
	return true
}

func (w *world) skip(key, note string) {
	n := numberOf(strings.TrimPrefix(note, queue+"/"))
	before := n >= 0 && w.book.givesUp(n)
	e := *inside.At(w.skipper.locker)
	_, err := e.Skip(context.Background(), engine.Ref{Key: key, Limit: 1}, note, 0)
	w.book.tracef("operator: skip of %s: %v", note, err)
	if err == nil {
		blocked.WakeNext(context.Background(), e, w.skipper.inspector, key)
	}
	if n >= 0 && !before && (errors.Is(err, engine.ErrNotHead) || errors.Is(err, engine.ErrHeadRuns)) {
		defer w.book.locked()()
		delete(w.book.books[n].ends, endGivenUp)
	}
}

func (b *ledger) givesUp(n int) (before bool) {
	defer b.locked()()
	before = b.books[n].ends[endGivenUp]
	b.books[n].ends[endGivenUp] = true
	return before
}

func (b *ledger) losesKey(rule rulePlan, t taskPlan) {
	b.breaks(rule.key(t))
	defer b.locked()()
	for i, other := range b.w.plan.Tasks {
		if other.Task == t.Task && rule.key(other) == rule.key(t) && b.books[i].asked > 0 {
			b.books[i].ends[endLost] = true
		}
	}
}

func (w *world) endHolds() (found bool) {
	if !w.plan.isOrdered() {
		return false
	}
	heads, err := blocked.Heads(context.Background(), *inside.At(w.operator.locker))
	if err != nil {
		w.book.violationf("order: the heads cannot be read: %v", err)
		return false
	}
	for _, head := range heads {
		if !head.Held() {
			continue
		}
		found = true
		id := strings.TrimPrefix(head.Note, queue+"/")
		if w.held[id]++; w.held[id] == 1 && len(w.held)%2 == 0 {
			if n := numberOf(id); n >= 0 {
				w.book.touch(n)
			}
			if w.operator.inspector.RunTask(queue, id) == nil {
				continue
			}
		}
		w.skip(head.Key, head.Note)
	}
	return found
}

// stands tells, and notes, whether ordered keys stand still, while tasks are left and nothing is wrong any more.
func (w *world) stands(left []string) bool {
	most := 4 * time.Minute // asynq's recoverer, a look and its delay
	if slices.ContainsFunc(w.plan.Ops, func(op opPlan) bool { return op.Kind == "lose" }) {
		most = 15 * time.Minute // nobody knows any more who is parked
	}
	defer w.book.locked()()
	last := w.book.quietSince
	for _, r := range w.book.runs {
		if r.lives() {
			return false
		}
		for _, at := range []time.Time{r.began, r.ended} {
			last = latest(last, at)
		}
	}
	for _, text := range left {
		_, id, _ := strings.Cut(text, " ")
		if n := numberOf(id); n < 0 || w.plan.orderOf(w.plan.Tasks[n]) == nil {
			return false
		}
	}
	idle := time.Since(last)
	if idle <= most || w.forgot() {
		return false
	}
	w.book.violatef("stands: nobody has run for %s, and these wait: %s", idle, strings.Join(left, ", "))
	return true
}

// mayStay tells whether an ordered key may have a place yet for a task that has ended, if nobody is behind it who would
// look: for 30 days.
func (w *world) mayStay(key string) bool {
	lock, _, _ := strings.Cut(key, "}")
	info := lock + "}:info"
	fields, _ := w.redis.mini.HKeys(info) // no such key: none
	places, archived := 0, true
	for _, field := range fields {
		if !strings.HasPrefix(field, "o:") {
			continue
		}
		record := w.redis.mini.HGet(info, field)
		if state := record[:1]; state != "i" && state != "a" && (state != "w" || w.book.calm) {
			return false
		}
		places++
		archived = archived && w.isArchived(record[strings.LastIndex(record, "/")+1:])
	}
	// A task that was late leaves its order, and nobody may come who sees that a holder has died.
	return w.book.endedLate() && !w.book.calm ||
		places > 0 && (archived || !w.book.calm || !w.book.clean || len(w.plan.Ops) > 0)
}

func (b *ledger) isFull(n int, full *automutex.FullError) {
	defer b.locked()()
	b.addf("task %d: enqueue answered: %v", n, full)
	b.seq++
	task := b.books[n].plan
	rule := b.w.plan.orderOf(task)
	queued := 0
	for i, t := range b.books {
		other := b.books[i].plan
		// What has ended a moment ago may count yet: its release is on its way, or was lost.
		if i != n && t.asked > 0 && (t.refused == 0 || b.mayCount(t)) && rule.key(other) == rule.key(task) &&
			other.Task == task.Task {
			if t.success > 0 && b.calm && b.clean && !t.left.IsZero() && time.Since(t.left) > 5*sec {
				continue
			}
			queued++
		}
	}
	if queued < rule.MaxQueued || full.Max != rule.MaxQueued {
		b.violatef("full: task %d is told that its key is full (%d of %d), and %d tasks of it have not ended", n, full.Queued,
			full.Max, queued)
	}
	b.books[n].refused, b.books[n].id = b.seq, ""
}

// mayCount tells whether the stamp of a task that was not enqueued may count as one of its key: Redis may have executed
// it after its producer had given up, at the latest when the faults ended, and then it counts for ten seconds.
func (b *ledger) mayCount(t *taskBook) bool {
	since := b.quietSince
	since = latest(since, t.ghost)
	return !t.ghost.IsZero() && (b.quietSince.IsZero() || time.Since(since) < 12*sec)
}

// startsWithin is how long after it was due a task may start, by the earliest of its rules; 0: at any time.
func (p *plan) startsWithin(t taskPlan) (within time.Duration) {
	for _, r := range p.rulesOf(t) {
		if r.StartWithin > 0 && (within == 0 || r.StartWithin < within) {
			within = r.StartWithin
		}
	}
	return within
}

func (p *process) late(r rulePlan) automutex.Policy {
	if r.Late == "after" {
		return automutex.AfterFailure(func(_ context.Context, _ *asynq.Task, busy *automutex.BusyError) error { return busy })
	}
	return simple[r.Late]
}

// judgeLate looks at a task that is told to be late: it was not in time, and had not begun. due is counted from before
// its Enqueue.
func (b *ledger) judgeLate(n int, e automutex.Event) {
	t := b.books[n]
	t.ends[endTooLate], t.reason = true, e.Busy.Reason
	if early := time.Until(t.due.Add(b.w.plan.startsWithin(t.plan))); early > ms {
		b.violatef("late: task %d is refused as late, %s before its time", n, early)
	}
	if t.starts > 0 && t.success == 0 && !t.lostStart && !b.w.forgot() { // one that was done may be enqueued once more
		b.violatef("late: task %d is refused as late, and has begun before", n)
	}
}

func (b *ledger) endedLate() bool {
	return slices.ContainsFunc(b.books, func(t *taskBook) bool { return t.ends[endTooLate] })
}

func (b *ledger) judgeInTime(r *run) {
	t := b.books[r.n]
	retried, _ := asynq.GetRetryCount(r.ctx)
	within := b.w.plan.startsWithin(t.plan)
	byHand := t.ends[endTooLate] && t.op // an operator runs it from the archive
	if late := time.Since(t.due.Add(within)); within > 0 && r.nth == 0 && retried == 0 && late > 0 && !t.plan.Plain &&
		!t.due.IsZero() && !byHand && b.w.plan.uniqueOf(t.plan) == nil { // else it is not due before it has its claim
		b.violatef("late: task %d starts %s after its time", r.n, late)
	}
}

func (d *drawer) inTime() {
	s := d.aside("start within")
	for i := range s.p.Rules {
		r := &s.p.Rules[i]
		grouped := slices.ContainsFunc(s.p.Tasks, func(t taskPlan) bool { return t.Task == r.Task && t.Group != "" })
		if s.chance(0.1) && s.p.uniqueOf(taskPlan{Task: r.Task}) == nil && !grouped {
			r.StartWithin, r.Late = s.span(300, 20_000), pick(s, "archive", "skip", "after")
		}
	}
}

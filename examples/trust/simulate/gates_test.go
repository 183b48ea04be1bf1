package simulate

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// What follows is about the gate of a key: rates, holds, and cooldowns beside a limit.

// errUpstream is what a handler met that gives its task back.
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
		at, task := s.span(0, int(length/time.Millisecond)), s.IntN(len(s.p.Tasks))
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

// rate is the rule's, as the Guard takes it.
func (r rulePlan) rate() automutex.Rate {
	return automutex.Rate{Starts: r.Starts, Per: r.Per, Burst: r.Burst}
}

// every is the time from one start to the next; 0: there is no rate.
func (r rulePlan) every() time.Duration {
	if r.Starts == 0 {
		return 0
	}
	return r.Per/time.Duration(r.Starts) + time.Microsecond
}

func (r rulePlan) burst() int { return max(r.Burst, 1) }

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
	return rule.Starts > 0 || rule.Cooldown > 0
}

// gateBook is what is known of the gate of one key.
type gateBook struct {
	starts []time.Time // when those that have begun took the lock
	holds  []holdBook
	takes  []take    // all who took the lock
	closed time.Time // until when a hold may last
}

// take is one who took a lock, or, with closed, what closed its gate for longer: after
// that a rate has nothing saved up.
type take struct {
	closed time.Time

	id string // see ledger.balance
	at time.Time
}

// holdBook is a time in which nobody may take the lock.
type holdBook struct {
	n           int // whose handler said so
	from, until time.Time
}

// grantLag is how long after Redis gave a lock somebody may tell of it.
func (b *ledger) grantLag(rule rulePlan) time.Duration {
	lag := b.w.plan.grantSlack() + 4*b.w.plan.Latency
	switch {
	case !b.calm || !b.clean:
		return lag + rule.TTL + 5*time.Second // an exchange that was repeated
	case b.w.plan.Losing > 0:
		return lag + 3*time.Second // a waiter that was not told asks
	}
	return lag
}

// judgeGate looks whether a lock is taken that a hold has closed. Callers hold mu.
func (b *ledger) judgeGate(n int, key, id string) {
	k, rule, now := b.key(key), b.w.plan.ruleOfKey(key), time.Now()
	given := now.Add(-b.grantLag(rule))
	for _, h := range k.gate.holds {
		if given.After(h.from) && now.Before(h.until.Add(-10*ms)) && !b.w.forgot() {
			b.violatef("hold: task %d takes %q, which task %d has put on hold for %s more", n, key, h.n, h.until.Sub(now))
		}
	}
	k.gate.takes = append(k.gate.takes, take{id: id, at: now})
}

// rateOpensBy is when the rate of a key certainly allows a start, if every ask was
// answered. Callers hold mu.
func (b *ledger) rateOpensBy(key string) (at time.Time) {
	rule := b.w.plan.ruleOfKey(key)
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
		at = at.Add(every)
	}
	return at
}

// judgeCharge looks whether the starts that there were explain for how long a rate
// keeps a task away. One more may have been given just now, of which nobody has told yet,
// or which is not given back yet. Callers hold mu.
func (b *ledger) judgeCharge(n int, key string, busy *automutex.BusyError) {
	rule, opens := b.w.plan.ruleOfKey(key), time.Now().Add(busy.ExpiresIn)
	if busy.Reason != automutex.ReasonRate || !b.isSure() || !b.key(key).broken.IsZero() {
		return
	}
	most := time.Now().Add(-rule.every() * time.Duration(rule.burst()-1))
	most = latest(most, b.rateOpensBy(key))
	if most = most.Add(b.grantLag(rule) + time.Second + rule.every()); opens.After(most) {
		b.violatef("charged: task %d is kept from %q until %s, at the latest %s is explained by the starts there were", n, key, opens.Sub(b.began), most.Sub(b.began))
	}
}

// opensBy is when the gate of a key is certainly open: of a rate only where every ask
// is answered. Callers hold mu.
func (b *ledger) opensBy(key string) time.Time {
	return latest(b.key(key).gate.closed, b.rateOpensBy(key))
}

// judgeRate looks whether a key has had more starts, in any time up to now, than its
// rate allows. A start counts from when the task took the lock. Callers hold mu.
func (b *ledger) judgeRate(r *run, key string, taken time.Time) {
	k, rule := b.key(key), b.w.plan.ruleOfKey(key)
	if rule.every() == 0 {
		return
	}
	k.gate.starts = append(k.gate.starts, taken)
	if b.w.forgot() {
		return
	}
	lag := b.grantLag(rule)
	for _, from := range k.gate.starts {
		if from.After(taken) {
			continue
		}
		n := 0
		for _, at := range k.gate.starts {
			if !at.Before(from) && !at.After(taken) {
				n++
			}
		}
		if most := rule.burst() + int((taken.Sub(from)+lag)/(rule.Per/time.Duration(rule.Starts))); n > most {
			b.violatef("rate: task %d is the %d. start of %q within %s; %s allows %d", r.n, n, key, taken.Sub(from), rule.rate(), most)
			return
		}
	}
}

// judgeCooldownBeside looks whether a task took a slot of a lock whose cooldown had
// begun: one slot may be taken beside the run that ends with it. Callers hold mu.
func (b *ledger) judgeCooldownBeside(r *run, key string, taken time.Time) {
	k, rule := b.key(key), b.w.plan.ruleOfKey(key)
	if rule.Cooldown == 0 || rule.limit() == 1 || !b.isSure() {
		return
	}
	for _, o := range k.successes {
		if !o.lapsed[key] && b.tookAfter(r, o, key) && taken.Before(o.began.Add(rule.Cooldown-10*ms)) && k.broken.Before(o.began) {
			b.violatef("cooldown: task %d takes %q %s after the success of task %d began; the cooldown is %s", r.n, key, taken.Sub(o.began), o.n, rule.Cooldown)
		}
	}
}

// tookAfter tells whether a run certainly took a lock after another had released it.
// Callers hold mu.
func (b *ledger) tookAfter(r, o *run, key string) bool {
	released, ok := o.released[key]
	return ok && r.taken[key].Add(-b.grantLag(b.w.plan.ruleOfKey(key))).After(released)
}

// holds notes what came of a hold, which was asked for at began.
func (b *ledger) holds(n int, key string, d time.Duration, began time.Time, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addf("task %d puts %q on hold for %s: %v", n, key, d, err)
	k := b.key(key)
	k.closes(time.Now().Add(d))
	if err == nil && k.broken.Before(began) {
		k.gate.holds = append(k.gate.holds, holdBook{n, time.Now(), began.Add(d)})
	}
}

// closes notes that the gate may be closed until then.
func (k *keyBook) closes(until time.Time) {
	k.gate.takes = append(k.gate.takes, take{closed: until})
	k.gate.closed = latest(k.gate.closed, until)
}

// opens notes that an operator has broken a lock: that ends a hold, and the gate of a
// rate that the hold had moved. Callers hold mu.
func (k *keyBook) opens() {
	k.broken = time.Now()
	k.gate.starts, k.gate.holds = nil, nil // closed stays: nobody knows
}

// judgeHeld looks whether a closed gate explains what becomes of a task. Callers hold mu.
func (b *ledger) judgeHeld(n int, key, reason, how string) {
	switch {
	case reason == automutex.ReasonClosed || reason == automutex.ReasonPaused:
		b.violatef("held: task %d is %s although %q is only on hold or paused", n, how, key)
	case reason == automutex.ReasonRate && b.isSure() && b.opensBefore(key, time.Now()):
		// Redis may have given a start to somebody who has not told of it yet.
		dropped := time.Now()
		time.AfterFunc(b.grantLag(b.w.plan.ruleOfKey(key))+100*ms, func() { b.judgeRateDrop(n, key, how, dropped) })
	}
}

// judgeRateDrop goes on with judgeHeld when whoever was given a start before that time has
// told of it.
func (b *ledger) judgeRateDrop(n int, key, how string, dropped time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.opensBefore(key, dropped) {
		b.violatef("dropped: task %d is %s for the rate of %q, which allows a start since %s", n, how, key, dropped.Sub(b.opensBy(key)))
	}
}

// opensBefore tells whether the gate of a key was certainly open when a task was told at
// asked that it is closed. Callers hold mu.
func (b *ledger) opensBefore(key string, asked time.Time) bool {
	return asked.Add(-b.grantLag(b.w.plan.ruleOfKey(key)) - 3*time.Second).After(b.opensBy(key))
}

// hold does what the plan says about holds, at the end of a handler.
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

// later notes that a handler gives its task back. Callers hold mu.
func (b *ledger) later(r *run, after time.Duration) {
	b.asksBack(r.ctx, r.n, after)
	if retried, _ := asynq.GetRetryCount(r.ctx); retried >= b.books[r.n].plan.MaxRetry && !r.p.wraps(b.books[r.n].plan.Task) {
		b.books[r.n].ends[endArchived] = true // nobody keeps it in its worker
	}
}

// asksBack notes that a handler, or a function of a rule, asks for a task to come back later. Callers hold mu.
func (b *ledger) asksBack(ctx context.Context, n int, after time.Duration) {
	retried, _ := asynq.GetRetryCount(ctx)
	if retried < b.books[n].plan.MaxRetry {
		return
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline)-1100*ms < max(after, time.Second) { // it waits for a second at least
		b.books[n].ends[endLate] = true // there is no time left to wait in its worker
	}
}

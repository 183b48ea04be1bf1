package simulate

import (
	"context"
	"slices"
	"time"

	"github.com/hibiken/asynq"
)

// attempt is one call of the middleware.
type attempt struct {
	p        *process
	ctx      context.Context // to see how it ended
	n        int
	came     time.Time
	retried  int
	most     int
	run      *run
	taken    int // how many of its locks it has taken
	over     bool
	late     bool // the deadline passed before the handler began
	deadline time.Time
}

// arrive notes that the middleware is called.
func (b *ledger) arrive(p *process, ctx context.Context, n int) *attempt {
	a := &attempt{p: p, ctx: ctx, n: n, came: time.Now()}
	a.retried, _ = asynq.GetRetryCount(ctx)
	a.most, _ = asynq.GetMaxRetry(ctx)
	a.deadline, _ = ctx.Deadline()
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.isEnded() {
		return a
	}
	b.attempts = append(b.attempts, a)
	b.addf("task %d comes to process %d, attempt %d of %d", n, p.n, a.retried, a.most)
	t := b.books[n]
	t.blocked = time.Time{}
	if t.most < 0 || a.most < t.most {
		t.most = a.most
	}
	unique := b.w.plan.uniqueOf(b.books[n].plan) != nil
	again := b.comesAgain(t)
	switch slack := b.slack(); {
	case unique && len(t.ends) > 0, t.op:
	case a.retried > t.spent[1]+slack:
		b.violatef("attempts: of task %d asynq counts %d as spent, at most %d were", n, a.retried, t.spent[1])
		t.spent = [2]int{a.retried, a.retried}
	case again && a.retried == a.most: // it was archived
	case b.clean && a.retried < t.spent[0]:
		b.violatef("attempts: of task %d asynq counts %d as spent, at least %d were", n, a.retried, t.spent[0])
		t.spent = [2]int{a.retried, a.retried}
	}
	b.comesTo(a, 0)
	if !a.deadline.IsZero() {
		context.AfterFunc(ctx, func() { b.deadlinePassed(a) })
	}
	return a
}

// comesTo notes that an attempt comes to the next of its locks, of which it has taken so
// many. Callers hold mu.
func (b *ledger) comesTo(a *attempt, taken int) {
	rules := b.w.plan.rulesOf(b.books[a.n].plan)
	if a.taken = taken; taken >= len(rules) {
		return
	}
	t, key := b.books[a.n], rules[taken].key(b.books[a.n].plan)
	if t.came == nil {
		t.came = map[string]time.Time{}
	}
	if t.came[key].IsZero() {
		t.came[key] = time.Now()
	}
	b.expectReplaced(a, rules[taken], key)
}

// expectReplaced looks, some seconds after a task came to a lock under Replace, whether
// older ones still wait there, or for their further locks. Callers hold mu.
func (b *ledger) expectReplaced(a *attempt, rule rulePlan, key string) {
	if !b.calm || b.w.plan.Losing > 0 || rule.Policy != "replace" || rule.limit() > 1 {
		return
	}
	task := b.books[a.n].plan
	for _, older := range b.attempts {
		other := b.books[older.n].plan
		if older.over || older.run != nil || older.p.isEnded() || other.Task != task.Task {
			continue
		}
		at := slices.IndexFunc(b.w.plan.rulesOf(other), func(r rulePlan) bool { return r.key(other) == key })
		if older.taken > at && rule.MaxHold > 0 {
			continue // it may have lost the lock to MaxHold while it waits for its next one, and is not told then
		}
		// Which of two is older is decided in Redis, where their messages may come in another order.
		if came := b.books[older.n].came[key]; at >= 0 && older.taken >= at && came.Add(2*b.w.plan.Latency).Before(b.books[a.n].came[key]) {
			time.AfterFunc(4*time.Second, func() { b.judgeReplaced(older, a, key) })
		}
	}
}

func (b *ledger) judgeReplaced(older, newer *attempt, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.limitOf(key) > 1:
		return // an operator has let several hold it
	case newer.over && newer.run == nil:
		return // from a closed gate, say: it may have asked between two waits of the older one, and asks again
	}
	task := b.books[newer.n].plan
	for _, rule := range b.w.plan.rulesOf(task) {
		if !b.pausedUntil(rule.key(task)).IsZero() {
			return // a paused task asks nobody to stop
		}
	}
	if !older.over && older.run == nil && !older.p.isEnded() && older.p.isStopping().IsZero() {
		b.violatef("replaced: task %d still waits, 4s after the newer task %d came to %q", older.n, newer.n, key)
	}
}

// slack is how many attempts of any task asynq's recoverer, or a failed answer, may
// have counted.
func (b *ledger) slack() int {
	if b.clean {
		return 0
	}
	n := 2 * len(b.deaths)
	for _, f := range b.w.plan.harms() {
		if f.Client != "lock" || f.Kind == stops || f.Kind == frozen {
			n += 2
		}
	}
	return n
}

// deadlinePassed is called when the context of an attempt ends, in time or after it.
func (b *ledger) deadlinePassed(a *attempt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.over || a.p.isEnded() || a.ctx.Err() != context.DeadlineExceeded {
		return
	}
	b.books[a.n].left = time.Now()
	switch {
	case a.run != nil && !a.run.counted:
		b.unheard(a, 1, "the task's deadline passed while its handler ran")
	case a.run == nil:
		a.late = true
		if b.calm && a.retried < a.most {
			b.violatef("deadline: task %d waited until its own deadline, which costs an attempt", a.n)
		}
		b.spendLocked(a.n, 1, 1, "the task's deadline passed before its handler began")
	}
	if a.retried >= a.most {
		b.books[a.n].ends[endLate] = true
	}
}

// unheard notes that asynq counts a failure although the handler may have succeeded: its locks are being released yet. Callers
// hold mu.
func (b *ledger) unheard(a *attempt, least int, why string) {
	a.run.counted = true
	if a.run.succeeded {
		b.books[a.n].success--
		b.books[a.n].late = true
	}
	b.spendLocked(a.n, least, 1, why)
}

// depart notes that the middleware has returned, or panicked: that goes on.
func (b *ledger) depart(a *attempt, panicked any) {
	b.mu.Lock()
	a.over = true
	if !a.p.isEnded() {
		b.books[a.n].left = time.Now()
		if panicked != nil && (a.run == nil || a.run.end != "panic") {
			b.spendLocked(a.n, 1, 1, "panic")
		}
		left := time.Until(a.deadline)
		if a.run == nil && left <= 0 && !a.deadline.IsZero() && !a.late {
			a.late = true
			b.spendLocked(a.n, 0, 1, "it returned in the moment of its deadline, of which asynq may have heard first")
		}
		if a.run != nil && left <= 0 && !a.deadline.IsZero() && !a.run.counted {
			b.unheard(a, 0, "its handler ended in the moment of its deadline, of which asynq may have heard first")
			if a.retried >= a.most {
				b.books[a.n].ends[endLate] = true
			}
		}
		waited := a.run == nil || a.run.end == "later" // for its locks, for the first time or again
		if waited && a.retried >= a.most && !a.deadline.IsZero() && left < 1500*time.Millisecond {
			b.books[a.n].ends[endLate] = true
		}
		b.addf("task %d leaves process %d", a.n, a.p.n)
	}
	b.mu.Unlock()
	if panicked != nil {
		panic(panicked)
	}
}

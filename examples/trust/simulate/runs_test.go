package simulate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// run is one run of a handler.
type run struct {
	p         *process
	ctx       context.Context // the handler's
	alive     context.Context // ends with the lease, and nothing else
	n, nth    int
	id        string
	seq       int
	keys      []string
	began     time.Time
	ended     time.Time
	end       string
	counted   bool // asynq has counted its failure already
	succeeded bool // and that counts as the task's success
	// fences are by key: two rules may share one.
	fences map[string]int64

	// lapsed are the keys whose lease was lost after the handler had ended, and before the
	// Guard told of the release: whether a cooldown of the success began is not known.
	lapsed map[string]bool

	innermost string               // the key that was taken last
	taken     map[string]time.Time // by key
	released  map[string]time.Time // by key, when the Guard told of it
}

// begin notes that a handler begins, and judges whether it may. nil: its process is
// dead.
func (b *ledger) begin(p *process, ctx context.Context, n int) *run {
	id, _ := asynq.GetTaskID(ctx)
	r := &run{p: p, ctx: ctx, n: n, id: id, began: time.Now(), taken: map[string]time.Time{}, released: map[string]time.Time{}}
	innermost, _ := automutex.Lease(ctx)
	rules := map[string]string{} // by key
	task := b.books[n].plan
	r.alive = context.Background()
	var without []string
	for _, rule := range b.w.plan.rulesOf(task) {
		lease, ok := automutex.LeaseOf(ctx, rule.name())
		if !ok {
			if rule.Policy != "allow" {
				without = append(without, rule.key(task))
			}
			continue
		}
		r.keys = append(r.keys, rule.key(task))
		rules[rule.key(task)] = rule.name()
		if lease == innermost {
			r.innermost = rule.key(task)
		}
		r.alive = lease.Bind(r.alive)
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	if p.isEnded() {
		return nil
	}
	t := b.books[n]
	r.nth = t.starts
	t.starts++
	b.seq++
	r.seq = b.seq
	b.addf("task %d (%s) begins on process %d, keys %s", n, id, p.n, strings.Join(r.keys, " "))
	if len(without) > 0 {
		b.violatef("unguarded: task %d runs without its lock %q", n, without)
	}
	if t.refused > 0 && !b.deliversLate(task, frozen) {
		b.violatef("refused: task %d runs although its producer was told that nothing was enqueued", n)
	}
	if a := b.attemptOf(p, n); a != nil {
		a.run = r
	}
	b.judgeBeside(r)
	for key, rule := range rules {
		if all := b.key(key).held[fmt.Sprintf("%d %s %s", p.n, id, rule)]; len(all) > 0 {
			h := all[len(all)-1]
			r.taken[key] = h.since
			h.started = true
			b.judgeRate(r, key, h.since)
			b.judgeCooldownBeside(r, key, h.since)
		}
	}
	b.judgeCooldown(r)
	b.judgeTimeLeft(r)
	b.judgeOrder(r)
	b.runs = append(b.runs, r)
	return r
}

// judgeFences looks at the fences of a run, of the rules that have one.
func (b *ledger) judgeFences(r *run) {
	task := b.books[r.n].plan
	for _, rule := range b.w.plan.rulesOf(task) {
		lease, ok := automutex.LeaseOf(r.ctx, rule.name())
		if !ok || rule.limit() != 1 {
			continue
		}
		key := rule.key(task)
		fence, err := lease.Fence()
		b.mu.Lock()
		if k := b.key(key); err == nil && r.fences[key] == 0 && !r.p.isEnded() {
			if fence <= k.fence && !b.w.forgot() && b.limitOf(key) == 1 {
				b.violatef("fence: task %d has %d on %q, after %d", r.n, fence, key, k.fence)
			}
			k.fence = max(k.fence, fence)
			if r.fences == nil {
				r.fences = map[string]int64{}
			}
			r.fences[key] = fence
			b.judgeFenceOf(r, key)
		}
		b.mu.Unlock()
	}
}

// lives tells whether a run is under way, and may believe in its leases.
func (r *run) lives() bool {
	return r.ended.IsZero() && !r.p.isEnded() && r.alive.Err() == nil
}

// mayNotKnow tells whether a holder of the key may have lost it and not know yet: it learns of a
// step of Redis' clock, of another master, or of an operator's Break, at its next renewal.
func (b *ledger) mayNotKnow(key string) bool {
	ttl := b.w.plan.ruleOfKey(key).TTL
	return b.w.mayHaveTwo(ttl) || time.Since(b.key(key).broken) < ttl
}

// judgeBeside looks at who is at work beside a run that begins.
func (b *ledger) judgeBeside(r *run) {
	for _, key := range r.keys {
		var there []int
		limit := b.limitOf(key)
		for _, o := range b.runs {
			if o.lives() && slices.Contains(o.keys, key) {
				there = append(there, o.n)
			}
		}
		if len(there) >= limit && !b.mayNotKnow(key) {
			b.violatef("overlap: task %d begins on %q, whose limit is %d, beside %v", r.n, key, limit, there)
		}
	}
	for _, o := range b.runs {
		// Rules that allow may have let each of the two run with another key, or with none.
		shared := slices.ContainsFunc(o.keys, func(key string) bool { return slices.Contains(r.keys, key) && !b.mayNotKnow(key) })
		if o.id == r.id && o.lives() && shared {
			b.violatef("beside itself: task %d (%s) begins while an earlier attempt of it runs", r.n, r.id)
		}
	}
}

// judgeCooldown looks whether a key's last success is long enough ago.
func (b *ledger) judgeCooldown(r *run) {
	for _, key := range r.keys {
		rule := b.w.plan.ruleOfKey(key)
		if rule.Cooldown == 0 || rule.limit() > 1 {
			continue
		}
		raised := b.limitOf(key) > 1 // by an operator: one may take the lock beside the run that ends with a cooldown
		for _, o := range b.key(key).successes {
			if o.lapsed[key] || raised && !b.tookAfter(r, o, key) {
				continue
			}
			apart := r.began.Sub(o.began)
			if apart < rule.Cooldown-10*time.Millisecond && !b.w.forgot() && !o.p.isEnded() && !b.w.longFault(o.p, o.ended, rule.TTL/2) &&
				b.key(key).broken.Before(o.began) {
				b.violatef("cooldown: task %d begins on %q %s after the success of task %d began; the cooldown is %s", r.n, key, apart, o.n, rule.Cooldown)
			}
		}
	}
}

// judgeTimeLeft looks whether waiting in a worker has eaten a task's own time.
func (b *ledger) judgeTimeLeft(r *run) {
	task := b.books[r.n].plan
	deadline, ok := r.ctx.Deadline()
	if !ok || task.Timeout == 0 || !b.calm {
		return
	}
	if b.w.plan.uniqueOf(task).supersedes() {
		return // it may have the options of an earlier task, of which it only replaced the payload
	}
	retried, _ := asynq.GetRetryCount(r.ctx)
	for _, rule := range b.w.plan.rulesOf(task) {
		if rule.Policy != "park" || retried >= task.MaxRetry {
			return // a wait in the worker is what was asked for
		}
	}
	rules := len(b.w.plan.rulesOf(task))
	if left := time.Until(deadline); rules == 1 && left < task.Timeout/2-time.Second {
		b.violatef("time left: task %d begins with %s of its %s left, after it waited in a worker under Park", r.n, left, task.Timeout)
	}
}

// end notes how a handler ended.
func (b *ledger) end(r *run, step stepPlan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	how := step.End
	if r.p.isEnded() {
		return
	}
	b.seq++
	r.ended, r.end = time.Now(), how
	if how != "cut short" {
		b.writes(r)
	}
	cause := context.Cause(r.ctx)
	b.addf("task %d ends on process %d: %s, context: %v", r.n, r.p.n, how, cause)
	t := b.books[r.n]
	requeued := !r.p.isStopping().IsZero() && time.Since(r.p.isStopping()) >= r.p.plan.Shutdown
	switch how {
	case "ok":
		if requeued {
			t.late = true // asynq has taken it, or has queued it again
		}
		if r.counted || requeued {
			break
		}
		t.success, r.succeeded = t.success+1, true
		for _, key := range r.keys {
			if b.w.plan.ruleOfKey(key).Cooldown > 0 && r.alive.Err() == nil { // a lost lease keeps nothing taken
				b.key(key).successes = append(b.key(key).successes, r)
				b.key(key).closes(r.began.Add(b.w.plan.ruleOfKey(key).Cooldown))
			}
		}
	case "skip":
		t.ends[endArchived] = true
	case "later":
		b.later(r, step.Later)
	case "revoke":
		if !r.counted {
			t.success, r.succeeded = t.success+1, true
		}
	case "soft":
		if retried, _ := asynq.GetRetryCount(r.ctx); retried >= b.books[r.n].plan.MaxRetry {
			t.ends[endArchived] = true // asynq archives the last attempt for any error
		}
	default:
		if retried, _ := asynq.GetRetryCount(r.ctx); how == "fail" && retried >= b.books[r.n].plan.MaxRetry {
			t.ends[endArchived] = true // asynq may have counted more attempts than were seen to fail
		}
		replaced := cause == automutex.ErrReplaced && how != "panic" // which asynq counts whatever the Guard makes of it
		switch {
		case r.counted || replaced:
		case requeued:
			b.spendLocked(r.n, 0, 1, how+", beside the end of the process")
		default:
			b.spendLocked(r.n, 1, 1, how)
			r.counted = true
		}
	}
}

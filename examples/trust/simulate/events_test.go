package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/automutex/automutex"
)

// nameOf is the plan's name for a key in Redis.
func (b *ledger) nameOf(key string) string {
	if name, ok := b.names[inBraces(key)]; ok {
		return name
	}
	return inBraces(key)
}

// taskOf is the number of an event's task: plain tasks carry it in their ID, others
// are found by who is in the middleware.
func (b *ledger) taskOf(p *process, e automutex.Event) int {
	if n := numberOf(e.TaskID); n >= 0 && !slices.ContainsFunc(b.w.plan.Tasks, func(t taskPlan) bool { return t.As > 0 }) {
		return n
	}
	for i := len(b.attempts) - 1; i >= 0; i-- {
		if a := b.attempts[i]; a.p == p && !a.over && b.books[a.n].id == e.TaskID {
			return a.n
		}
	}
	return -1
}

// event takes a public event into the books.
func (b *ledger) event(p *process, e automutex.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, n, key := fmt.Sprintf("%d %s %s", p.n, e.TaskID, e.Rule), b.taskOf(p, e), b.nameOf(e.Key)
	b.balance[balanced{id, e.Kind}]++
	b.addf("event %s, task %d (%s), rule %s, key %q, waited %s, delay %s, err %v", e.Kind, n, e.TaskID, e.Rule, key, e.Waited, e.Delay, e.Err)
	switch e.Kind {
	case automutex.EventAcquired:
		b.judgeWait(p, e, key, id)
		b.key(key).taken = time.Now()
		b.judgePause(e, n, key)
		b.judgeGate(n, key, id)
		b.key(key).held[id] = append(b.key(key).held[id], &holding{proc: p, since: time.Now(), wait: e.Waited})
		b.goesOn(p, n, e.Rule)
	case automutex.EventReleased:
		k := b.key(key)
		h := k.holdingOf(id, e)
		if k.held[id] = slices.DeleteFunc(k.held[id], func(o *holding) bool { return o == h }); len(k.held[id]) == 0 {
			delete(k.held, id)
		}
		k.freeSince = time.Now()
		for _, r := range b.runs {
			if r.p == p && r.n == n && r.taken[key].Equal(h.since) && r.released[key].IsZero() {
				r.released[key] = time.Now()
			}
		}
	case automutex.EventWaited:
		b.judgeWait(p, e, key, id)
	case automutex.EventLost:
		h := b.key(key).holdingOf(id, e)
		b.judgeLoss(p, e, key, h)
		b.lapses(p, n, key, h)
	case automutex.EventBackendError:
		b.unanswered[id] = time.Now()
	case automutex.EventBusy:
		b.judgeCharge(n, key, e.Busy)
		b.busy(n, e, key)
	case automutex.EventSkipped:
		if n >= 0 {
			b.books[n].ends[endSkipped] = true
			b.judgeDrop(n, e, key, "skipped")
		}
	case automutex.EventBlocked:
		if n >= 0 && b.books[n].blocked.IsZero() {
			b.books[n].blocked = time.Now()
		}
	case automutex.EventParked:
		if n >= 0 {
			b.books[n].parked = true
		}
	case automutex.EventReplaced:
		if n >= 0 {
			b.books[n].ends[endReplaced] = true
		}
	case automutex.EventKeyError:
		b.violatef("key error: task %d is archived although its key can be made: %v", n, e.Err)
	}
}

// goesOn notes that a task has taken the lock of a rule, and comes to its next one. Callers
// hold mu.
func (b *ledger) goesOn(p *process, n int, rule string) {
	if a := b.attemptOf(p, n); a != nil {
		rules := b.w.plan.rulesOf(b.books[n].plan)
		b.comesTo(a, 1+slices.IndexFunc(rules, func(r rulePlan) bool { return r.name() == rule }))
	}
}

// busy notes what a policy does with a task that finds its key taken.
func (b *ledger) busy(n int, e automutex.Event, key string) {
	if n < 0 || e.Busy == nil {
		return
	}
	b.books[n].reason = e.Busy.Reason
	if e.Busy.SameTask || e.Busy.Reason == automutex.ReasonClosed {
		if e.Policy == automutex.Skip || e.Policy == automutex.Archive || e.Policy == automutex.Fail {
			b.violatef("event: task %d met its own earlier attempt or a hold of %q, and the event names the policy %s", n, key, e.Policy)
		}
		return
	}
	switch e.Policy {
	case automutex.Archive:
		b.books[n].ends[endArchived] = true
		b.judgeDrop(n, e, key, "archived")
	case automutex.Fail:
		b.spendLocked(n, 1, 1, "policy Fail")
	}
}

// judgeDrop looks whether a policy may end a task. Callers hold mu.
func (b *ledger) judgeDrop(n int, e automutex.Event, key, how string) {
	if reason := b.books[n].reason; reason == automutex.ReasonHeld || reason == automutex.ReasonCooldown {
		b.judgeBusy(n, e, key)
	} else {
		b.judgeHeld(n, key, reason, how)
	}
}

// judgeBusy looks whether anybody can have held the key for which a task is dropped.
func (b *ledger) judgeBusy(n int, e automutex.Event, key string) {
	k := b.key(key)
	rule := b.w.plan.ruleOfKey(key)
	if len(k.held) > 0 || b.w.forgot() {
		return
	}
	grace := 3 * time.Second // a release that is on its way, a replica of an ask that is undone
	if b.w.plan.Latency > 0 || !b.calm {
		grace += 5 * time.Second
	}
	if time.Since(k.freeSince) < grace || time.Since(b.pausedUntil(key)) < grace+obeyed {
		return
	}
	for _, o := range k.successes {
		if time.Since(o.began) < rule.Cooldown+time.Second {
			return
		}
	}
	// A lease of a dead process, or of an attempt that a fault hid, lasts for its TTL.
	for _, at := range b.deaths {
		if time.Since(at) < rule.TTL+grace {
			return
		}
	}
	if b.w.faultWithin(rule.TTL + grace) {
		return
	}
	// Redis may have granted the key to somebody who has not told of it yet.
	dropped := time.Now()
	time.AfterFunc(3*b.w.plan.Latency+100*time.Millisecond, func() { b.judgeDropped(n, key, dropped) })
}

// judgeDropped goes on with judgeBusy when whoever had the key at that time has told of it.
func (b *ledger) judgeDropped(n int, key string, dropped time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.key(key); k.taken.Before(dropped) {
		b.violatef("dropped: task %d is dropped as busy, and nobody has had %q for %s", n, key, dropped.Sub(k.freeSince))
	}
}

// patience is how long the head of a line may wait behind a free key: what a waiter
// that died unnoticed costs, and a message that got lost.
const patience = 5 * time.Second

// afterAStep is how much longer it may wait when Redis' clock was stepped: what the dead
// have left lasts up to 31 s by the new clock.
const afterAStep = 40 * time.Second

// longestRetry is how long a task on its last attempt, which Redis did not answer, may take
// until it asks again.
const longestRetry = 30 * time.Second

// judgeWait looks whether a task has waited behind a free key.
func (b *ledger) judgeWait(p *process, e automutex.Event, key, id string) {
	k := b.key(key)
	rule := b.w.plan.ruleOfKey(key)
	if rule.limit() > 1 || rule.InOrder || len(k.held) > 0 || e.Waited == 0 || b.w.plan.losesReplicas() {
		return
	}
	patience := patience
	if b.w.forgot() {
		patience += afterAStep
	}
	since := time.Now().Add(-e.Waited)
	since = latest(since, k.freeSince)
	for _, o := range k.successes {
		since = latest(since, o.began.Add(rule.Cooldown))
	}
	since = latest(since, b.pausedUntil(key).Add(obeyed))
	since = latest(since, b.opensBy(key))
	if at := b.unanswered[id]; !at.Before(time.Now().Add(-e.Waited)) {
		since = latest(since, at.Add(longestRetry)) // it was not in line: it was to ask again
	}
	if rule.Starts > 0 && (!b.calm || !b.clean) {
		return // starts may have been counted that nobody has told of
	}
	for _, at := range b.deaths {
		since = latest(since, at.Add(rule.TTL))
	}
	if idle := time.Since(since); idle > patience && !b.w.faultWithin(idle+rule.TTL) {
		b.violatef("stalled: task %s on process %d waited for %q, which was free for %s", e.TaskID, p.n, key, idle)
	}
}

// judgeLoss looks whether anything explains that a lease is lost.
func (b *ledger) judgeLoss(p *process, e automutex.Event, key string, h *holding) {
	rule := *find(b.w.plan.Rules, func(r rulePlan) bool { return r.name() == e.Rule })
	k := b.key(key)
	switch {
	case rule.MaxHold > 0 && e.Held >= rule.MaxHold-b.w.plan.grantSlack(), b.w.forgot():
		return
	case !p.isStopping().IsZero() && time.Since(p.isStopping()) > p.plan.Shutdown+time.Second:
		return // its Guard's Close has given up: leases last until their deadlines
	case !k.broken.IsZero() && k.broken.After(h.since.Add(-time.Second)): // it may have been granted a while before
		return
	case rule.limit() > 1 && !k.broken.IsZero():
		return
	}
	within := rule.TTL
	if h.wait > 0 && time.Since(h.since) < rule.TTL {
		// Granted by a release: short at first, and made longer at once.
		within = min(rule.TTL, 3*time.Second)
	}
	lately := rule.TTL + time.Second
	if !h.started {
		lately = max(lately, time.Since(h.since)) // it is told when the task has its last lock, which may be long after
	}
	// The last renewal was up to a third ago, and a tenth is the margin.
	if away := b.w.away(p, lately); away < within*2/3-within/10-500*time.Millisecond {
		b.violatef("lost: task %s on process %d lost %q (TTL %s, held for %s), and Redis was away for %s of it", e.TaskID, p.n, key, rule.TTL, e.Held, away)
		return
	}
	if h.wait > 0 && time.Since(h.since) > 200*time.Millisecond && rule.TTL >= 10*time.Second {
		if away := b.w.away(p, rule.TTL+time.Second); away < rule.TTL/2 && b.w.calmAt(p, h.since, 150*time.Millisecond) {
			b.violatef("lost: task %s on process %d lost %q (TTL %s), granted by a release, and Redis was away for %s", e.TaskID, p.n, key, rule.TTL, away)
		}
	}
}

// holding is a lease between Acquired and Released. A key has them by process, task and rule, the oldest first. A task has two
// for a moment when its earlier attempt, which ran past its timeout, hands the key over to its retry in the same process: the
// retry may tell that it has the key before the earlier attempt tells that it has released it.
type holding struct {
	proc    *process
	since   time.Time
	wait    time.Duration
	started bool // a handler has begun under it
}

// holdingOf is the lease that an event is about: that which began the nearest to when the event says.
func (k *keyBook) holdingOf(id string, e automutex.Event) *holding {
	if len(k.held[id]) == 0 {
		return &holding{}
	}
	began := time.Now().Add(-e.Held)
	return slices.MinFunc(k.held[id], func(x, y *holding) int { return cmp.Compare(x.since.Sub(began).Abs(), y.since.Sub(began).Abs()) })
}

// lapses notes that a lease was lost. If the handler had ended by then, its success, which is
// noted already, begins no cooldown: a lease that is lost keeps nothing taken. The cooldown may
// have begun all the same, if Redis lost the reply to the release. Callers hold mu.
func (b *ledger) lapses(p *process, n int, key string, h *holding) {
	for _, r := range b.runs {
		if r.p == p && r.n == n && r.taken[key].Equal(h.since) && !r.ended.IsZero() && r.released[key].IsZero() {
			if r.lapsed == nil {
				r.lapsed = map[string]bool{}
			}
			r.lapsed[key] = true
		}
	}
}

package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// How a task may end without that its handler said so.
const (
	endSkipped  = "skipped"
	endReplaced = "replaced"
	endDropped  = "dropped by AfterFailure"
	endArchived = "archived by AfterFailure or the policy"
	endDeleted  = "deleted by the operator"
	endByHand   = "archived by the operator"
	endLate     = "its own time was up on the last attempt"
	endNewer    = "a newer one took its place"
	endTooLate  = "it did not start in time"
	endUnsure   = "its enqueue was not answered"

	endAggregated = "aggregated"
)

// ledger is what an observer outside knows: which handler ran when, what it saw, and the public events.
// Its mutex guards everything in it, and what is in runs, attempts and tasks; the callers of those functions hold it
// that do not take it. Nothing is called with it held but what takes no lock of the library's own making wait.
type ledger struct {
	w  *world
	mu sync.Mutex

	began      time.Time
	quietSince time.Time // since when nothing is wrong any more
	seq        int       // grows with everything that happens
	runs       []*run
	attempts   []*attempt
	terms      []*term     // of leaders
	books      []*taskBook // by number
	keys       map[string]*keyBook
	names      map[string]string // of keys, by what Redis calls them; never changes
	balance    map[balanced]int
	targets    map[string]*orders // of operators, by scope or key
	pace       *paceBook          // the rate that an operator has ordered
	touches    map[string]int     // by task ID: seq when an operator last did something to it
	violations []string
	trace      []string

	deaths     []time.Time
	unanswered map[string]time.Time // by process, task and rule: when a Guard last told that Redis failed
	clean      bool                 // no fault of asynq's client, no death: attempts must balance exactly
	calm       bool                 // nor any other fault
}

type balanced struct {
	id   string
	kind automutex.EventKind
}

type taskBook struct {
	n        int
	plan     taskPlan
	id       string
	came     map[string]time.Time // by key: when it first came to the lock
	first    time.Time            // when it first came to a worker; zero: it never did
	shown    time.Time            // when a Guard first told that it had come to a lock
	spent    [2]int               // attempts, at least and at most
	ends     map[string]bool
	most     int // the least MaxRetry with which it came; -1: it never came
	starts   int
	success  int
	late     bool      // a handler succeeded in the moment in which its server gave it up
	accepted bool      // it was enqueued
	refused  int       // seq of a DuplicateError; 0: none
	ghost    time.Time // when its stamp failed; zero: it did not
	joined   int       // seq at which it was joined to another; 0: not
	asked    int       // seq before its enqueue
	due      time.Time // when that was

	lostStart bool      // Redis failed twice when its start was to be stored
	acceptAt  int       // seq of its acceptance
	op        bool      // an operator touched it
	parked    bool      // it has parked
	left      time.Time // when an attempt of it last ended
	blocked   time.Time // when a Guard told that it holds its key, archived; zero: it did not, or the task came again
	again     bool      // it came when it had succeeded, as a parked task may; see comesAgain
	reason    string    // why it last did not get a lock

	members    []int     // of which it was made
	into       []int     // what was made of it
	aggregated time.Time // when it last was
	readBeside bool      // see isReadBeside
	state      string    // in asynq, at the end
	lastErr    string    // so
	lastBegan  int       // asynq's count of its attempts when its handler last began; -1: it did not

	deletedInHold bool // an operator deleted it while it held its key, archived
}

type keyBook struct {
	fence     int64
	held      map[string][]*holding // by process, task and rule; none is empty
	taken     time.Time             // when somebody last told of having it
	freeSince time.Time
	successes []*run // with the rule's Cooldown
	broken    time.Time
	gate      gateBook
	store     store
}

func newLedger(w *world) *ledger {
	b := &ledger{
		w: w, began: time.Now(), keys: map[string]*keyBook{}, clean: true, calm: true,
		touches: map[string]int{}, targets: map[string]*orders{},
		unanswered: map[string]time.Time{}, balance: map[balanced]int{},
	}
	for n, t := range w.plan.Tasks {
		b.books = append(b.books, &taskBook{n: n, plan: t, ends: map[string]bool{}, most: -1, lastBegan: -1})
	}
	for _, f := range w.plan.harms() {
		b.calm = b.calm && f.Kind == stops
		b.clean = b.clean && f.Client == "lock" && f.Proc >= 0 && f.Kind != frozen && f.Kind != stops
	}
	return b
}

// locked takes the mutex: defer b.locked()().
func (b *ledger) locked() (unlock func()) {
	b.mu.Lock()
	return b.mu.Unlock
}

func (b *ledger) ruleOf(key string) rulePlan { return b.w.plan.ruleOfKey(key) }

func (b *ledger) at() time.Duration { return time.Since(b.began) }

// tracef adds a line to the trace. For those that do not hold mu.
func (b *ledger) tracef(format string, args ...any) {
	defer b.locked()()
	b.addf(format, args...)
}

func (b *ledger) addf(format string, args ...any) {
	b.seq++
	const most = 4000
	if len(b.trace) < most {
		b.trace = append(b.trace, fmt.Sprintf("%12s  ", b.at())+fmt.Sprintf(format, args...))
	}
}

// violationf reports what must not happen. The text up to the first colon is its kind.
func (b *ledger) violationf(format string, args ...any) {
	defer b.locked()()
	b.violatef(format, args...)
}

func (b *ledger) violatef(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	b.addf("VIOLATION %s", text)
	const most = 20
	if len(b.violations) < most {
		b.violations = append(b.violations, fmt.Sprintf("%s (at %s)", text, b.at()))
	}
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// alike are the other tasks of a task's key of package unique.
func (b *ledger) alike(t *taskBook) (others []*taskBook) {
	for _, o := range b.books {
		if o != t && o.plan.Task == t.plan.Task && o.plan.A == t.plan.A {
			others = append(others, o)
		}
	}
	return others
}

func (b *ledger) attemptOf(p *process, n int) *attempt {
	for _, a := range slices.Backward(b.attempts) {
		if a.n == n && a.p == p && !a.over {
			return a
		}
	}
	return nil
}

// isSure tells whether nothing was wrong, so that what happens is known to the second.
func (b *ledger) isSure() bool { return b.calm && b.clean && !b.w.forgot() }

func (b *ledger) key(key string) *keyBook {
	k := b.keys[key]
	if k == nil {
		k = &keyBook{held: map[string][]*holding{}, freeSince: b.began}
		b.keys[key] = k
	}
	return k
}

func (b *ledger) explain(n int, how string) {
	defer b.locked()()
	b.books[n].ends[how] = true
}

func (b *ledger) spend(n, least, most int, why string) {
	defer b.locked()()
	b.spendLocked(n, least, most, why)
}

func (b *ledger) spendLocked(n, least, most int, why string) {
	b.books[n].spent[0] += least
	b.books[n].spent[1] += most
	b.addf("task %d: %d to %d attempts spent: %s", n, b.books[n].spent[0], b.books[n].spent[1], why)
}

func (b *ledger) died(p *process) {
	defer b.locked()()
	b.addf("process %d is gone", p.n)
	if p.isStopping().IsZero() {
		b.deaths = append(b.deaths, time.Now())
		b.clean = false
	}
	for key, k := range b.keys {
		for id, all := range k.held {
			if all[0].proc == p { // the process is part of id
				delete(k.held, id)
				k.freeSince = time.Now().Add(b.ruleOf(key).TTL) // nobody releases it
			}
		}
	}
}

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

func (b *ledger) arrive(p *process, ctx context.Context, n int) *attempt {
	a := &attempt{p: p, ctx: ctx, n: n, came: time.Now()}
	a.retried, _ = asynq.GetRetryCount(ctx)
	a.most, _ = asynq.GetMaxRetry(ctx)
	a.deadline, _ = ctx.Deadline()
	defer b.locked()()
	if p.isEnded() {
		return a
	}
	b.attempts = append(b.attempts, a)
	b.addf("task %d comes to process %d, attempt %d of %d", n, p.n, a.retried, a.most)
	t := b.books[n]
	t.blocked = time.Time{}
	if t.first.IsZero() {
		t.first = time.Now()
	}
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

// comesTo says that an attempt comes to the next of its locks, of which it has taken so many.
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
// older ones still wait there, or for their further locks.
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
		// Which of two is older is decided in Redis, where their messages may come in another order.
		if came := b.books[older.n].came[key]; at >= 0 && older.taken >= at &&
			came.Add(2*b.w.plan.Latency).Before(b.books[a.n].came[key]) {
			time.AfterFunc(4*sec, func() { b.judgeReplaced(older, a, key) })
		}
	}
}

func (b *ledger) judgeReplaced(older, newer *attempt, key string) {
	defer b.locked()()
	switch {
	case b.limitOf(key) > 1:
		return // an operator has let several hold it
	case newer.over && newer.run == nil:
		return // from a closed gate, say: it may have asked between two waits of the older one, and asks again
	}
	task := b.books[newer.n].plan
	for _, rule := range b.w.plan.rulesOf(task) {
		if rule.LimitLater > 0 || !b.pausedUntil(rule.key(task)).IsZero() {
			return // a paused task asks nobody to stop
		}
	}
	if !older.over && older.run == nil && !older.p.isEnded() && older.p.isStopping().IsZero() {
		b.violatef("replaced: task %d still waits, 4s after the newer task %d came to %q", older.n, newer.n, key)
	}
}

// slack is how many attempts of any task asynq's recoverer, or a failed answer, may have counted.
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
	defer b.locked()()
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

// unheard says that asynq counts a failure although the handler may have returned nil: its locks are still being
// released, and asynq does not wait for that.
func (b *ledger) unheard(a *attempt, least int, why string) {
	a.run.counted = true
	if a.run.succeeded {
		b.books[a.n].success--
		b.books[a.n].late = true
	}
	b.spendLocked(a.n, least, 1, why)
}

// depart says that the middleware has returned, or panicked: that goes on.
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
		if waited && a.retried >= a.most && !a.deadline.IsZero() && left < 1500*ms {
			b.books[a.n].ends[endLate] = true
		}
		b.addf("task %d leaves process %d", a.n, a.p.n)
	}
	b.mu.Unlock()
	if panicked != nil {
		panic(panicked)
	}
}

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

// begin says that a handler begins, and judges whether it may. nil: its process is dead.
func (b *ledger) begin(p *process, ctx context.Context, n int) *run {
	id, _ := asynq.GetTaskID(ctx)
	r := &run{p: p, ctx: ctx, n: n, id: id, began: time.Now(), taken: map[string]time.Time{},
		released: map[string]time.Time{}}
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

	defer b.locked()()
	if p.isEnded() {
		return nil
	}
	t := b.books[n]
	r.nth = t.starts
	t.starts++
	t.lastBegan, _ = asynq.GetRetryCount(ctx)
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
			b.judgeBorrowed(r, key)
			b.judgeRate(r, key, h.since)
			b.judgeCooldownBeside(r, key)
		}
	}
	b.judgeCooldown(r)
	b.judgeNewest(r)
	b.judgeStart(r)
	b.judgeTimeLeft(r)
	b.judgeWorker(r)
	b.judgeOrder(r)
	b.judgeInTime(r)
	b.runs = append(b.runs, r)
	return r
}

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

func (r *run) lives() bool {
	return r.ended.IsZero() && !r.p.isEnded() && r.alive.Err() == nil
}

// mayNotKnow tells whether a holder of the key may have lost it and not know yet: it learns of a
// step of Redis' clock, of another master, or of an operator's Break, at its next renewal.
func (b *ledger) mayNotKnow(key string) bool {
	ttl := b.ruleOf(key).TTL
	return b.w.mayHaveTwo(ttl) || time.Since(b.key(key).broken) < ttl
}

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
		shared := slices.ContainsFunc(o.keys, func(key string) bool {
			return slices.Contains(r.keys, key) && !b.mayNotKnow(key)
		})
		if o.id == r.id && o.lives() && shared {
			b.violatef("beside itself: task %d (%s) begins while an earlier attempt of it runs", r.n, r.id)
		}
	}
}

func (b *ledger) judgeCooldown(r *run) {
	for _, key := range r.keys {
		rule := b.ruleOf(key)
		if rule.Cooldown == 0 || rule.limit() > 1 {
			continue
		}
		raised := b.limitOf(key) > 1 // by an operator: one may take the lock beside the run that ends with a cooldown
		for _, o := range b.key(key).successes {
			if o.lapsed[key] || raised && !b.beganAfter(r, o, key) {
				continue
			}
			apart := r.began.Sub(o.began)
			if apart < rule.Cooldown-10*ms && !b.w.forgot() && !o.p.isEnded() &&
				!b.w.longFault(o.p, o.ended, rule.TTL/2) &&
				b.key(key).broken.Before(o.began) {
				b.violatef("cooldown: task %d begins on %q %s after the success of task %d began; the cooldown is %s", r.n, key,
					apart, o.n, rule.Cooldown)
			}
		}
	}
}

// judgeNewest looks whether a run under Replace begins although as many newer tasks of its key as it has slots have
// come before it took the lock, and begun: the last result is the newest's.
func (b *ledger) judgeNewest(r *run) {
	t := b.books[r.n]
	if t.op || t.late || t.success > 0 || len(t.ends) > 0 || b.w.forgot() {
		return // it has ended before, and is run or delivered again: it is new
	}
	for _, key := range r.keys {
		var newer []int
		for _, o := range b.books {
			if b.replaces(o, key) && o.starts > 0 && !o.ends[endLate] && !t.shown.IsZero() && t.shown.Before(o.first) &&
				o.first.Before(r.taken[key]) {
				newer = append(newer, o.n)
			}
		}
		if b.replaces(t, key) && len(newer) >= b.limitOf(key) && !b.mayNotKnow(key) {
			b.violatef("newest: task %d begins on %q after the newer %v", r.n, key, newer)
		}
	}
}

func (b *ledger) replaces(t *taskBook, key string) bool {
	return slices.ContainsFunc(b.w.plan.rulesOf(t.plan), func(r rulePlan) bool {
		return r.Policy == "replace" && r.key(t.plan) == key
	})
}

// judgeReplacing looks whether there are newer tasks, for which one was revoked: with LimitOf, as many as the least
// limit of a task.
func (b *ledger) judgeReplacing(t *taskBook, key string) {
	newer, rule := 0, b.w.plan.ruleOfKey(key)
	limit := rule.limit()
	for _, o := range b.books {
		isNewer := o != t && b.replaces(o, key) && !o.first.Add(2*b.w.plan.Latency).Before(t.first)
		if isNewer {
			newer++
		}
		if rule.LimitOf && (isNewer || o == t) {
			limit = min(limit, rule.ownLimit(o.plan))
		}
	}
	if b.calm && !b.w.forgot() && newer < limit && len(b.w.plan.Ops) == 0 {
		b.violatef("replaced: task %d is revoked on %q, and %d newer ones have come", t.n, key, newer)
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
	if left := time.Until(deadline); rules == 1 && left < task.Timeout/2-sec {
		b.violatef("time left: task %d begins with %s of its %s left, after it waited in a worker under Park", r.n, left,
			task.Timeout)
	}
}

// judgeWorker looks how long a task has waited that has a time for this: of a key that nobody else wants, for a worker,
// which the tasks of others kept.
func (b *ledger) judgeWorker(r *run) {
	task := b.books[r.n].plan
	if waited := b.at() - task.At; task.Within > 0 && waited > task.Within && r.nth == 0 && b.isSure() {
		b.violatef("worker: task %d begins %s after it was enqueued; want %s", r.n, waited, task.Within)
	}
}

func (b *ledger) end(r *run, step stepPlan) {
	defer b.locked()()
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
			if b.ruleOf(key).Cooldown > 0 && r.alive.Err() == nil { // a lost lease keeps nothing taken
				b.key(key).successes = append(b.key(key).successes, r)
				b.key(key).closes(r.began.Add(b.ruleOf(key).Cooldown))
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
		a := b.attempts[i] // its producer may not know the ID yet
		if id, _ := asynq.GetTaskID(a.ctx); a.p == p && !a.over && id == e.TaskID {
			return a.n
		}
	}
	return -1
}

func (b *ledger) event(p *process, e automutex.Event) {
	defer b.locked()()
	id, n, key := fmt.Sprintf("%d %s %s", p.n, e.TaskID, e.Rule), b.taskOf(p, e), b.nameOf(e.Key)
	b.balance[balanced{id, e.Kind}]++
	b.addf("event %s, task %d (%s), rule %s, key %q, waited %s, delay %s, err %v", e.Kind, n, e.TaskID, e.Rule, key,
		e.Waited, e.Delay, e.Err)
	switch e.Kind {
	case automutex.EventAcquired, automutex.EventWaiting, automutex.EventBusy:
		if n >= 0 && b.books[n].shown.IsZero() {
			b.books[n].shown = time.Now()
		}
	}
	switch e.Kind {
	case automutex.EventAcquired:
		b.judgeWait(p, e, key, id)
		b.key(key).taken = time.Now()
		b.judgePause(n, "acquires", key)
		b.judgeGate(n, key, id)
		b.judgeAhead(n, key, e.Waited)
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
		b.judgeStays(e, n, key)
	case automutex.EventLost:
		h := b.key(key).holdingOf(id, e)
		b.judgeLoss(p, e, key, h)
		b.lapses(p, n, key, h)
	case automutex.EventBackendError:
		b.unanswered[id] = time.Now()
		if n >= 0 && strings.Contains(e.Err.Error(), "automutex:start:") {
			b.books[n].lostStart = true
		}
	case automutex.EventBusy:
		b.judgeCharge(n, key, e.Busy)
		b.busy(p, n, e, key)
	case automutex.EventSkipped:
		if n >= 0 {
			b.books[n].ends[endSkipped] = true
			if !b.books[n].ends[endTooLate] {
				b.judgeDrop(n, e, key, "skipped")
			}
		}
	case automutex.EventLate:
		if n >= 0 {
			b.judgeLate(n, e)
		}
	case automutex.EventBlocked:
		if n >= 0 && b.books[n].blocked.IsZero() {
			b.books[n].blocked = time.Now()
		}
	case automutex.EventRetried:
		b.judgeLostUnseen(e, n, key)
	case automutex.EventParked:
		if n >= 0 {
			b.books[n].parked = true
		}
	case automutex.EventReplaced:
		if n >= 0 {
			b.books[n].ends[endReplaced] = true
			if e.Rule != "" { // else by package unique
				b.judgeReplacing(b.books[n], key)
			}
		}
	case automutex.EventKeyError:
		b.violatef("key error: task %d is archived although its key can be made: %v", n, e.Err)
	}
}

func (b *ledger) goesOn(p *process, n int, rule string) {
	if a := b.attemptOf(p, n); a != nil {
		rules := b.w.plan.rulesOf(b.books[n].plan)
		b.comesTo(a, 1+slices.IndexFunc(rules, func(r rulePlan) bool { return r.name() == rule }))
	}
}

func (b *ledger) busy(p *process, n int, e automutex.Event, key string) {
	if n < 0 || e.Busy == nil {
		return
	}
	b.books[n].reason = e.Busy.Reason
	isOther := func(r rulePlan) bool { return r.name() == e.Rule && r.Policy != "archive" }
	back := e.Busy.SameTask || slices.Contains([]string{automutex.ReasonClosed, automutex.ReasonPaused}, e.Busy.Reason)
	other := back || slices.ContainsFunc(b.w.plan.rulesOf(b.books[n].plan), isOther)
	if a := b.attemptOf(p, n); e.Policy == automutex.Archive && other && a != nil && a.retried >= a.most {
		b.books[n].ends[endArchived] = true // no attempt is left
		return
	}
	if back {
		if e.Policy == automutex.Skip || e.Policy == automutex.Archive || e.Policy == automutex.Fail {
			b.violatef("event: task %d met its own attempt, a hold or a pause of %q, and the event names the policy %s", n, key,
				e.Policy)
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
	rule := b.ruleOf(key)
	if len(k.held) > 0 || b.w.forgot() {
		return
	}
	grace := 3 * sec // a release that is on its way, a replica of an ask that is undone
	if b.w.plan.Latency > 0 || !b.calm {
		grace += 5 * sec
	}
	if time.Since(k.freeSince) < grace || time.Since(b.pausedUntil(key)) < grace+obeyed {
		return
	}
	for _, o := range k.successes {
		if time.Since(o.began) < rule.Cooldown+sec {
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
	time.AfterFunc(3*b.w.plan.Latency+100*ms, func() { b.judgeDropped(n, key, dropped) })
}

// judgeDropped is the second half of judgeBusy: a moment later every task is known that had the key then.
func (b *ledger) judgeDropped(n int, key string, dropped time.Time) {
	defer b.locked()()
	if k := b.key(key); k.taken.Before(dropped) {
		b.violatef("dropped: task %d is dropped as busy, and nobody has had %q for %s", n, key, dropped.Sub(k.freeSince))
	}
}

// patience is how long the head of a line may wait behind a free key: what a waiter
// that died unnoticed costs, and a message that got lost.
const patience = 5 * sec

// afterAStep is how much longer it may wait when Redis' clock was stepped: what the dead
// have left lasts up to 31 s by the new clock.
const afterAStep = 40 * sec

// longestRetry is how long a task on its last attempt, which Redis did not answer, may take until it asks again.
const longestRetry = 30 * sec

func (b *ledger) judgeWait(p *process, e automutex.Event, key, id string) {
	k := b.key(key)
	rule := b.ruleOf(key)
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
	if (rule.Starts > 0 || b.paceOf(key) != nil) && (!b.calm || !b.clean) {
		return // starts may have been counted that nobody has told of
	}
	for _, at := range b.deaths {
		since = latest(since, at.Add(rule.TTL))
	}
	if idle := time.Since(since); idle > patience && !b.w.faultWithin(idle+rule.TTL) {
		b.violatef("stalled: task %s on process %d waited for %q, which was free for %s", e.TaskID, p.n, key, idle)
	}
}

func (b *ledger) judgeLoss(p *process, e automutex.Event, key string, h *holding) {
	rule := *find(b.w.plan.Rules, func(r rulePlan) bool { return r.name() == e.Rule })
	k := b.key(key)
	switch {
	case rule.MaxHold > 0 && h.started && e.Held >= rule.MaxHold-b.w.plan.grantSlack(), b.w.forgot():
		return
	case !p.isStopping().IsZero() && time.Since(p.isStopping()) > p.plan.Shutdown+sec:
		return // its Guard's Close has given up: leases last until their deadlines
	case !k.broken.IsZero() && k.broken.After(h.since.Add(-sec)): // it may have been granted a while before
		return
	case rule.limit() > 1 && !k.broken.IsZero():
		return
	}
	within := rule.TTL
	if h.wait > 0 && time.Since(h.since) < rule.TTL {
		// Granted by a release: short at first, and made longer at once.
		within = min(rule.TTL, 3*sec)
	}
	lately := rule.TTL + sec
	if !h.started {
		lately = max(lately, time.Since(h.since)) // it is told when the task has its last lock, which may be long after
	}
	// The last renewal was up to a third ago, and a tenth is the margin.
	if away := b.w.away(p, lately); away < within*2/3-within/10-500*ms {
		b.violatef("lost: task %s on process %d lost %q (TTL %s, held for %s), and Redis was away for %s of it", e.TaskID,
			p.n, key, rule.TTL, e.Held, away)
		return
	}
	if h.wait > 0 && time.Since(h.since) > 200*ms && rule.TTL >= 10*sec {
		if away := b.w.away(p, rule.TTL+sec); away < rule.TTL/2 && b.w.calmAt(p, h.since, 150*ms) {
			b.violatef("lost: task %s on process %d lost %q (TTL %s), granted by a release, and Redis was away for %s", e.TaskID,
				p.n, key, rule.TTL, away)
		}
	}
}

func (b *ledger) judgeLostUnseen(e automutex.Event, n int, key string) {
	if b.calm && !b.w.forgot() && b.key(key).broken.IsZero() && e.Err != nil &&
		strings.Contains(e.Err.Error(), "was lost before the handler began") {
		b.violatef("lost: task %d lost %q before its handler began: %v", n, key, e.Err)
	}
}

// holding is a lease between Acquired and Released. A key has them by process, task and rule, the oldest first. A task
// has two for a moment when its earlier attempt, which ran past its timeout, hands the key over to its retry in the
// same process, which may tell of that first.
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
	return slices.MinFunc(k.held[id], func(x, y *holding) int {
		return cmp.Compare(x.since.Sub(began).Abs(), y.since.Sub(began).Abs())
	})
}

// lapses says that a lease was lost. If the handler had ended by then, its success, which is known already, begins no
// cooldown: a lease that is lost keeps nothing taken.
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

func (b *ledger) asks(n int) {
	defer b.locked()()
	b.addf("task %d is enqueued", n)
	b.books[n].asked, b.books[n].due = b.seq, time.Now()
}

func (b *ledger) isNew(n int) bool {
	defer b.locked()()
	return b.books[n].asked == 0
}

func (b *ledger) enqueued(n int, info *asynq.TaskInfo, err error) {
	defer b.locked()()
	b.addf("task %d: enqueue answered: %v", n, err)
	t := b.books[n]
	u := b.w.plan.uniqueOf(t.plan)
	var duplicate *unique.DuplicateError
	switch {
	case errors.As(err, &duplicate) && !b.calm && u.Until == "done": // a reply may have been lost
		t.ends[endUnsure], t.ends[endNewer] = true, true // the task in the way may be this call's own
	case errors.As(err, &duplicate):
		t.refused = b.seq
		t.ends[endNewer] = true
		t.readBeside = b.isReadBeside(t)
		b.judgeRefusal(t)
		b.judgeClaim(t, u)
	case err != nil:
		t.ends[endUnsure] = true
		if b.calm {
			b.violatef("enqueue: task %d: %v", n, err)
		}
	default:
		t.id = info.ID
		t.op = t.op || b.touches[t.id] > t.asked
		t.acceptAt = b.seq
		if u != nil && !strings.Contains(string(info.Payload), fmt.Sprintf(`"n":%d,`, n)) {
			t.joined = b.seq
			t.readBeside = b.isReadBeside(t)
			t.ends[endNewer] = true
			return
		}
		t.accepted = true
		if u.supersedes() {
			b.supersede(t)
		}
	}
}

func (b *ledger) supersede(t *taskBook) {
	for _, o := range b.alike(t) {
		if o.acceptAt > 0 && o.acceptAt < b.seq && o.starts == 0 {
			o.ends[endNewer] = true
		}
		if o.accepted && o.acceptAt > t.asked {
			t.ends[endNewer] = true
		}
	}
}

func (b *ledger) judgeRefusal(t *taskBook) {
	if !slices.ContainsFunc(b.alike(t), func(o *taskBook) bool {
		return o.accepted || o.ends[endUnsure] || o.asked > 0 && o.acceptAt == 0 && o.refused == 0
	}) {
		b.violatef("refused: task %d is told to be a duplicate, and no other was enqueued for its key", t.n)
	}
}

func (b *ledger) working() (left []string) {
	defer b.locked()()
	for _, a := range b.attempts {
		if !a.over && !a.p.isEnded() {
			left = append(left, fmt.Sprintf("in a worker: %d", a.n))
		}
	}
	return left
}

func (b *ledger) judgeIdle() {
	defer b.locked()()
	for key, k := range b.keys {
		for id := range k.held {
			b.violatef("held: %s holds %q although no task is left", id, key)
		}
	}
}

func (b *ledger) judgeEnds() {
	for _, t := range b.books {
		state, lastErr := "gone", ""
		if t.id != "" {
			info, err := b.w.operator.inspector.GetTaskInfo(queue, t.id)
			switch {
			case err == nil:
				state, lastErr = info.State.String(), info.LastErr
			case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
			default:
				panic(err) // no fault hits the operator
			}
		}
		b.mu.Lock()
		t.state, t.lastErr = state, lastErr
		b.mu.Unlock()
	}
	defer b.locked()()
	for _, t := range b.books {
		b.judgeEnd(t)
	}
	if b.w.plan.Even {
		b.judgeEven()
	}
}

func (b *ledger) judgeEnd(t *taskBook) {
	n, task, state := t.n, t.plan, t.state
	if len(t.into) > 0 {
		b.judgeGroup(t)
	}
	if state == "aggregating" && (t.op || !b.clean) { // put back; asynq lists the group with its next task
		return
	}
	if u := b.w.plan.uniqueOf(task); u != nil {
		b.judgeUnique(t, u)
		return
	}
	// never enqueued, or not for certain
	if t.id == "" || b.w.plan.byClient(task) && !t.accepted && state == "gone" || task.Aggregated && !b.clean &&
		b.neverCame(t) {
		return
	}
	exhausted := t.spent[1]+b.slack() > task.MaxRetry
	switch state {
	case "gone", "completed":
		if t.success == 0 && !t.late && !t.mayEnd(endSkipped, endReplaced, endDropped, endDeleted, endAggregated) {
			b.violatef("ended: task %d is %s, and nothing explains it: %d runs, %v", n, state, t.starts, t.ends)
		}
	case "archived":
		if b.calm && !t.op && strings.Contains(t.lastErr, "its last run did not return") && t.lastBegan < task.MaxRetry {
			b.violatef("archived: task %d as one whose last attempt has begun, and its handler last began in attempt %d of %d",
				n, t.lastBegan, task.MaxRetry)
		}
		if !t.mayEnd(endArchived, endByHand, endLate, endTooLate) && !exhausted {
			b.violatef("archived: task %d, and nothing explains it: %d runs, at most %d attempts spent of %d, %v", n, t.starts,
				t.spent[1], task.MaxRetry, t.ends)
		}
	default:
		b.violatef("stuck: task %d is %s at the end", n, state)
	}
	if b.clean && t.success > 1 && !t.op && !t.again {
		b.violatef("twice: task %d has succeeded %d times", n, t.success)
	}
}

func (b *ledger) judgeUnique(t *taskBook, u *uniquePlan) {
	if b.w.plan.isSplit() {
		return // Redis has lost claims
	}
	exhausted := b.exhausted(t) // policies spend attempts too
	unsure := b.deliversLate(t.plan) || u.supersedes() && b.supersededUnsure(t)
	if t.accepted && t.starts == 0 && len(t.ends) == 0 && !exhausted && !t.op && !unsure {
		b.violatef("lost: task %d was accepted by package unique, and never ran", t.n)
	}
	// Only in scenarios: a task that runs and fails between the look at it and its deletion is
	// superseded all the same, as package unique's documentation says.
	if b.w.plan.Name != "" && b.clean && t.accepted && t.starts > 0 && t.success == 0 && len(t.ends) == 0 && !exhausted &&
		!t.late && !t.op {
		b.violatef("superseded: task %d was taken away after its handler had begun", t.n)
	}
	if u.Until != "start" || t.refused == 0 && t.joined == 0 || t.readBeside {
		return
	}
	for _, o := range append(b.alike(t), t) {
		// asynq may have lost it to a server that did not get it, and archived it for that.
		if o.op || o.accepted && o.starts == 0 && b.exhausted(o) || o.endsUnrun() || b.madeEndsUnrun(o) {
			return // what was in the way did not run, for a reason
		}
	}
	for _, r := range b.runs {
		if r.seq > t.asked && slices.ContainsFunc(append(b.books[r.n].members, r.n), func(m int) bool {
			return b.books[m] == t || slices.Contains(b.alike(t), b.books[m])
		}) {
			return
		}
	}
	b.violatef("update lost: task %d was told that another of its key waits, and no run of the key began after that", t.n)
}

// supersededUnsure tells whether a task may have made room for one that ran, or was aggregated, though its Enqueue
// failed.
func (b *ledger) supersededUnsure(t *taskBook) bool {
	return slices.ContainsFunc(b.alike(t), func(o *taskBook) bool {
		return o.ends[endUnsure] && o.starts+len(o.into) > 0 && o.asked > t.asked
	})
}

func (b *ledger) exhausted(t *taskBook) bool {
	most := t.plan.MaxRetry
	if t.most >= 0 {
		most = min(most, t.most)
	}
	return t.spent[1]+b.slack() > most
}

func (t *taskBook) mayEnd(hows ...string) bool {
	return slices.ContainsFunc(hows, func(how string) bool { return t.ends[how] })
}

// endsUnrun tells whether a policy, or the task's own time, may have ended the task before it ran.
func (t *taskBook) endsUnrun() bool {
	return t.mayEnd(endSkipped, endReplaced, endDropped, endArchived, endLate, endTooLate)
}

// deliversLate tells whether a command of the producers may have been executed when the producer had sent it again and
// gone on.
func (b *ledger) deliversLate(t taskPlan, kinds ...faultKind) bool {
	u := b.w.plan.uniqueOf(t)
	return u != nil && u.Until == "done" && slices.ContainsFunc(b.w.plan.Faults, func(f faultPlan) bool {
		return f.Kind == frozen && slices.Contains(kinds, frozen) || f.Kind == late && f.Proc < 0 && f.Client == "asynq"
	})
}

func (b *ledger) judgeBalance() {
	defer b.locked()()
	if len(b.deaths) > 0 {
		return
	}
	stopped := map[string]bool{}
	for _, f := range b.w.plan.Faults {
		if f.Kind == stops {
			stopped[fmt.Sprint(f.Proc)] = true // it exits while handlers run
		}
	}
	for one, n := range b.balance {
		proc, _, _ := strings.Cut(one.id, " ")
		other := map[automutex.EventKind]automutex.EventKind{
			automutex.EventAcquired: automutex.EventReleased, automutex.EventReleased: automutex.EventAcquired,
			automutex.EventWaiting: automutex.EventWaited, automutex.EventWaited: automutex.EventWaiting,
		}[one.kind]
		if m := b.balance[balanced{one.id, other}]; other != "" && m != n && !stopped[proc] {
			b.violatef("events: %s: %d %s, %d %s", one.id, n, one.kind, m, other)
		}
	}
}

func (w *world) judgeKeys() {
	w.redis.tick()
	crashes := !w.book.calm || !w.book.clean
	isUnended := func(key string) bool { // the arrival of a task that ended in no worker, or without Redis
		return (crashes || len(w.plan.Ops) > 0) && (strings.HasSuffix(key, ":arrivals") || strings.HasSuffix(key, ":newest"))
	}
	look := func(when string, allowed func(key string, left time.Duration) bool) {
		for _, key := range w.redis.mini.Keys() {
			if !strings.HasPrefix(key, "automutex:") {
				continue
			}
			left := w.redis.mini.TTL(key)
			if left <= 0 {
				w.book.violationf("left: %q has no TTL", key)
			} else if !allowed(key, left) {
				w.book.violationf("left: %q %s: TTL %s, %v", key, when, left, w.members(key))
			}
		}
	}
	look("after all processes have ended", func(key string, left time.Duration) bool {
		if crashes || isHistory(key) || isStart(key) || strings.HasSuffix(key, ":claim") || isUnended(key) {
			return true
		}
		for _, r := range w.plan.Rules {
			if name := w.book.nameOf(key); strings.HasPrefix(name, r.scope()) && (r.InOrder || w.plan.isGated(name)) {
				return true
			}
		}
		// handlers that an exit cut off
		return slices.ContainsFunc(w.plan.Faults, func(f faultPlan) bool { return f.Kind == stops })
	})
	w.judgeHistory()
	time.Sleep(2 * time.Hour)
	w.redis.tick()
	look("two hours later", func(key string, _ time.Duration) bool {
		return strings.HasSuffix(key, ":claim") || isHistory(key) || isStart(key) || w.mayStay(key) || isUnended(key)
	})
}

// isStart tells whether a key says that a task has begun, or was archived as late: for three days, of one that is not
// done.
func isStart(key string) bool { return strings.HasPrefix(key, "automutex:start:") }

func (w *world) members(key string) []string {
	members, _ := w.redis.mini.ZMembers(key) // of another type: none
	fields, _ := w.redis.mini.HKeys(key)
	for _, field := range fields {
		members = append(members, field+" "+w.redis.mini.HGet(key, field))
	}
	return members
}

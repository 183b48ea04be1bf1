package simulate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
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
	endUnsure   = "its enqueue was not answered"
)

// ledger is what an observer outside of the library knows: which handler ran when, what
// it saw, and the public events. Its mutex guards everything in it, and what is in runs,
// attempts and tasks; nothing is called with it held but what takes no lock of the
// library's own making wait.
type ledger struct {
	w  *world
	mu sync.Mutex

	began      time.Time
	seq        int // grows with everything that happens
	runs       []*run
	attempts   []*attempt
	books      []*taskBook // by number
	keys       map[string]*keyBook
	names      map[string]string                      // of keys, by what Redis calls them; never changes
	balance    map[string]map[automutex.EventKind]int // by process, task and rule
	events     map[automutex.EventKind]int
	targets    map[string]*orders // of operators, by scope or key
	touches    map[string]int     // by task ID: seq when an operator last did something to it
	violations []string
	trace      []string

	deaths     []time.Time
	unanswered map[string]time.Time // by process, task and rule: when a Guard last told that Redis failed
	clean      bool                 // no fault of asynq's client, no death: attempts must balance exactly
	calm       bool                 // nor any other fault
}

// taskBook is what is known of one task.
type taskBook struct {
	id       string
	came     map[string]time.Time // by key: when it first came to the lock
	spent    [2]int               // attempts, at least and at most
	ends     map[string]bool
	most     int // the least MaxRetry with which it came; -1: it never came
	starts   int
	success  int
	late     bool      // a handler succeeded in the moment in which its server gave it up
	accepted bool      // it was enqueued
	refused  int       // seq of a DuplicateError; 0: none
	joined   int       // seq at which it was joined to another; 0: not
	asked    int       // seq before its enqueue
	acceptAt int       // seq of its acceptance
	op       bool      // an operator touched it
	parked   bool      // it has parked
	left     time.Time // when an attempt of it last ended
	again    bool      // it came when it had succeeded, as a parked task may; see comesAgain
	reason   string    // why it last did not get a lock
}

// keyBook is what is known of one lock.
type keyBook struct {
	fence     int64
	held      holdings
	taken     time.Time // when somebody last told of having it
	freeSince time.Time
	successes []*run // with the rule's Cooldown
	broken    time.Time
	gate      gateBook
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
	counted   bool            // asynq has counted its failure already
	succeeded bool            // and that counts as the task's success
	fenced    map[string]bool // keys whose fence was told; two rules may share one

	// lapsed are the keys whose lease was lost after the handler had ended, and before the
	// Guard told of the release: whether a cooldown of the success began is not known.
	lapsed map[string]bool

	innermost string               // the key that was taken last
	taken     map[string]time.Time // by key
	released  map[string]time.Time // by key, when the Guard told of it
}

func newLedger(w *world) *ledger {
	b := &ledger{
		w: w, began: time.Now(), keys: map[string]*keyBook{}, clean: true, calm: true,
		touches:    map[string]int{},
		unanswered: map[string]time.Time{}, balance: map[string]map[automutex.EventKind]int{}, events: map[automutex.EventKind]int{},
	}
	for range w.plan.Tasks {
		b.books = append(b.books, &taskBook{ends: map[string]bool{}, most: -1})
	}
	for _, f := range w.plan.Faults {
		switch f.Kind {
		case starts:
		case stops:
			b.clean = false
		default:
			b.calm = false
			b.clean = b.clean && f.Client == "lock" && f.Proc >= 0 && f.Kind != frozen
		}
	}
	return b
}

func (b *ledger) at() time.Duration { return time.Since(b.began) }

// notef adds a line to the trace. For those that do not hold mu.
func (b *ledger) notef(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
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
	b.mu.Lock()
	defer b.mu.Unlock()
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

func (b *ledger) key(key string) *keyBook {
	k := b.keys[key]
	if k == nil {
		k = &keyBook{held: holdings{}, freeSince: b.began}
		b.keys[key] = k
	}
	return k
}

// explain notes how a task may have ended.
func (b *ledger) explain(n int, how string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.books[n].ends[how] = true
}

// spend counts attempts of a task that asynq has certainly, and possibly, counted.
func (b *ledger) spend(n, least, most int, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spendLocked(n, least, most, why)
}

func (b *ledger) spendLocked(n, least, most int, why string) {
	b.books[n].spent[0] += least
	b.books[n].spent[1] += most
	b.addf("task %d: %d to %d attempts spent: %s", n, b.books[n].spent[0], b.books[n].spent[1], why)
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
	if t.most < 0 || a.most < t.most {
		t.most = a.most
	}
	unique := b.w.plan.uniqueOf(b.w.plan.Tasks[n]) != nil
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
	rules := b.w.plan.rulesOf(b.w.plan.Tasks[a.n])
	if a.taken = taken; taken >= len(rules) {
		return
	}
	t, key := b.books[a.n], rules[taken].key(b.w.plan.Tasks[a.n])
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
	task := b.w.plan.Tasks[a.n]
	for _, older := range b.attempts {
		other := b.w.plan.Tasks[older.n]
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
	task := b.w.plan.Tasks[newer.n]
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
	for _, f := range b.w.plan.Faults {
		if f.Kind != starts && (f.Client != "lock" || f.Kind == stops || f.Kind == frozen) {
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
		a.run.counted = true
		if a.run.succeeded { // asynq does not hear of it: its locks are being released yet
			b.books[a.n].success--
			b.books[a.n].late = true
		}
		b.spendLocked(a.n, 1, 1, "the task's deadline passed while its handler ran")
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

// endsAtDeadline notes that a handler ended in the very moment of its task's deadline, before
// the ledger was told of the deadline. asynq goes by either of the two. Callers hold mu.
func (b *ledger) endsAtDeadline(a *attempt) {
	a.run.counted = true
	if a.run.succeeded {
		b.books[a.n].success--
		b.books[a.n].late = true
	}
	b.spendLocked(a.n, 0, 1, "its handler ended in the moment of its deadline, of which asynq may have heard first")
	if a.retried >= a.most {
		b.books[a.n].ends[endLate] = true
	}
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
			b.endsAtDeadline(a)
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

// begin notes that a handler begins, and judges whether it may. nil: its process is
// dead.
func (b *ledger) begin(p *process, ctx context.Context, n int) *run {
	id, _ := asynq.GetTaskID(ctx)
	r := &run{p: p, ctx: ctx, n: n, id: id, began: time.Now(), taken: map[string]time.Time{}, released: map[string]time.Time{}}
	innermost, _ := automutex.Lease(ctx)
	rules := map[string]string{} // by key
	task := b.w.plan.Tasks[n]
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
	for _, a := range slices.Backward(b.attempts) {
		if a.n == n && a.p == p && !a.over {
			a.run = r
			break
		}
	}
	b.judgeBeside(r)
	for key, rule := range rules {
		if h := b.key(key).latest(fmt.Sprintf("%d %s %s", p.n, id, rule)); h != nil {
			r.taken[key] = h.since
			h.started = true
			b.judgeRate(r, key, h.since)
			b.judgeCooldownBeside(r, key, h.since)
		}
	}
	b.judgeCooldown(r)
	b.judgeTimeLeft(r)
	b.runs = append(b.runs, r)
	return r
}

// judgeFences has a run ask for its fences, as a handler does first. Who gets no answer
// does not write.
func (b *ledger) judgeFences(r *run) {
	task := b.w.plan.Tasks[r.n]
	for _, rule := range b.w.plan.rulesOf(task) {
		lease, ok := automutex.LeaseOf(r.ctx, rule.name())
		if !ok || rule.limit() != 1 {
			continue
		}
		key := rule.key(task)
		fence, err := lease.Fence(r.ctx)
		b.mu.Lock()
		if k := b.key(key); err == nil && !r.fenced[key] && !r.p.isEnded() {
			if fence <= k.fence && !b.w.stepped() && b.limitOf(key) == 1 {
				b.violatef("fence: task %d has %d on %q, after %d", r.n, fence, key, k.fence)
			}
			k.fence = max(k.fence, fence)
			if r.fenced == nil {
				r.fenced = map[string]bool{}
			}
			r.fenced[key] = true
		}
		b.mu.Unlock()
	}
}

// lives tells whether a run is under way, and may believe in its leases.
func (r *run) lives() bool {
	return r.ended.IsZero() && !r.p.isEnded() && r.alive.Err() == nil
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
		// Whose lock an operator broke may learn of it at the next renewal.
		broken := time.Since(b.key(key).broken) < b.w.plan.ruleOfKey(key).TTL
		if len(there) >= limit && !b.w.stepped() && !broken {
			b.violatef("overlap: task %d begins on %q, whose limit is %d, beside %v", r.n, key, limit, there)
		}
	}
	for _, o := range b.runs {
		// Rules that allow may have let each of the two run with another key, or with none.
		shared := slices.ContainsFunc(o.keys, func(key string) bool { return slices.Contains(r.keys, key) })
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
			if apart < rule.Cooldown-10*time.Millisecond && !b.w.stepped() && !o.p.isEnded() && !b.w.longFault(o.p, o.ended, rule.TTL/2) &&
				b.key(key).broken.Before(o.began) {
				b.violatef("cooldown: task %d begins on %q %s after the success of task %d began; the cooldown is %s", r.n, key, apart, o.n, rule.Cooldown)
			}
		}
	}
}

// judgeTimeLeft looks whether waiting in a worker has eaten a task's own time.
func (b *ledger) judgeTimeLeft(r *run) {
	task := b.w.plan.Tasks[r.n]
	deadline, ok := r.ctx.Deadline()
	if !ok || task.Timeout == 0 || !b.calm {
		return
	}
	if u := b.w.plan.uniqueOf(task); u != nil && (u.Duplicate == "replace" || u.Duplicate == "postpone") {
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
		if retried, _ := asynq.GetRetryCount(r.ctx); retried >= b.w.plan.Tasks[r.n].MaxRetry {
			t.ends[endArchived] = true // asynq archives the last attempt for any error
		}
	default:
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

// died notes that nothing of a process counts any more.
func (b *ledger) died(p *process) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addf("process %d is gone", p.n)
	if p.isStopping().IsZero() {
		b.deaths = append(b.deaths, time.Now())
		b.clean = false
	}
	for key, k := range b.keys {
		for id, all := range k.held {
			if all[0].proc == p { // the process is part of id
				delete(k.held, id)
				k.freeSince = time.Now().Add(b.w.plan.ruleOfKey(key).TTL) // nobody releases it
			}
		}
	}
}

package simulate

import (
	"fmt"
	"slices"
	"sync"
	"time"

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

	endAggregated = "aggregated"
)

// ledger is what an observer outside of the library knows: which handler ran when, what
// it saw, and the public events. Its mutex guards everything in it, and what is in runs,
// attempts and tasks; nothing is called with it held but what takes no lock of the
// library's own making wait.
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
	touches    map[string]int     // by task ID: seq when an operator last did something to it
	violations []string
	trace      []string

	deaths     []time.Time
	unanswered map[string]time.Time // by process, task and rule: when a Guard last told that Redis failed
	clean      bool                 // no fault of asynq's client, no death: attempts must balance exactly
	calm       bool                 // nor any other fault
}

// balanced are events of one process, task and rule.
type balanced struct {
	id   string
	kind automutex.EventKind
}

// taskBook is what is known of one task.
type taskBook struct {
	n        int
	plan     taskPlan
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
	ghost    time.Time // when its stamp failed; zero: it did not
	joined   int       // seq at which it was joined to another; 0: not
	asked    int       // seq before its enqueue
	acceptAt int       // seq of its acceptance
	op       bool      // an operator touched it
	parked   bool      // it has parked
	left     time.Time // when an attempt of it last ended
	blocked  time.Time // when a Guard told that it holds its key, archived; zero: it did not, or the task came again
	again    bool      // it came when it had succeeded, as a parked task may; see comesAgain
	reason   string    // why it last did not get a lock

	members    []int     // of which it was made
	into       []int     // what was made of it
	aggregated time.Time // when it last was
	readBeside bool      // see isReadBeside
	state      string    // in asynq, at the end

	deletedInHold bool // an operator deleted it while it held its key, archived
}

// keyBook is what is known of one lock.
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
		b.books = append(b.books, &taskBook{n: n, plan: t, ends: map[string]bool{}, most: -1})
	}
	for _, f := range w.plan.harms() {
		b.calm = b.calm && f.Kind == stops
		b.clean = b.clean && f.Client == "lock" && f.Proc >= 0 && f.Kind != frozen && f.Kind != stops
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

// latest is the last one of times.
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

// attemptOf is the one that is under way; nil: there is none.
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

package simulate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/automutex/automutex/unique"
)

// plan is everything that happens in one world. Times count from its beginning.
type plan struct {
	Name        string // of a scenario
	Seed        uint64
	Procs       []procPlan
	Rules       []rulePlan
	Unique      []uniquePlan
	Tasks       []taskPlan
	Faults      []faultPlan
	Ops         []opPlan
	Latency     time.Duration // one way, at most; 0: none
	Losing      float64       // the share of Pub/Sub messages that are lost
	HashKeys    bool          // keeps the values of payload fields out of keys
	History     int           // how many runs of a key are kept
	Lead        time.Duration // how long a leader's function lasts; 0: nobody leads
	Groups      *groupPlan    // how groups are aggregated; nil: there are none
	Clients     bool          // all tasks are enqueued by a Client
	MinReplicas int           // how many replicas have to know of a lease
	Quiet       time.Duration // how long the servers go on when all tasks have ended
	Even        bool          // keys with tasks share the workers evenly
}

// procPlan is one process: an asynq server with a Guard.
type procPlan struct {
	Workers  int
	Poll     time.Duration // TaskCheckInterval
	Forward  time.Duration // DelayedTaskCheckInterval
	Shutdown time.Duration // ShutdownTimeout
	Apart    bool          // the Guard wraps the handlers of the types with rules one by one
}

type rulePlan struct {
	Task       string
	Scope      string
	On         []string
	Limit      int
	LeaveIdle  int
	TTL        time.Duration
	Wait       time.Duration
	MaxHold    time.Duration
	Cooldown   time.Duration
	Starts     int // of the rate; 0: none
	Per        time.Duration
	Burst      int
	Dear       bool // functions say the rate, and for how many starts a task counts; see cost
	Policy     string
	After      string // what the function of AfterFailure answers: "busy", "done", "fail", "skip" or "later"
	KeyFails   int    // how often each task's key function fails before it gives the key
	KeyLater   int    // how often it then asks for the task to come back
	LimitOf    bool   // each task of the rule has a limit of its own, at most Limit; see ownLimit
	LimitLater int    // how often that asks for the task to come back
	Optional   bool   // a task without the field b takes no lock of the rule
	InOrder    bool
	OnArchive  string // "hold" or "continue"
	MaxQueued  int

	StartWithin time.Duration // 0: no bound
	Late        string        // "archive", "skip" or "after"; "": archive
}

func (r rulePlan) limit() int { return max(1, r.Limit) }

// fenced: about half of the mutexes have a fence; the others are taken as strings. Rules of one scope have one TTL.
func (r rulePlan) fenced() bool { return r.limit() == 1 && r.LeaveIdle == 0 && r.TTL/sec%2 == 0 }

// name is unique: each rule of a task has its own scope.
func (r rulePlan) name() string { return r.Task + "/" + r.scope() }

func (r rulePlan) scope() string { return cmp.Or(r.Scope, r.Task) }

// parts are the values of a task that its key has.
func (r rulePlan) parts(t taskPlan) (parts []string) {
	for _, field := range r.On {
		parts = append(parts, fmt.Sprint(map[string]int{"a": t.A, "b": t.B}[field]))
	}
	return parts
}

// key names the lock that a task needs under the rule, in the words of the plan.
func (r rulePlan) key(t taskPlan) string {
	return strings.Join(append([]string{r.scope()}, r.parts(t)...), "|")
}

// find is the first one that is meant; nil: there is none.
func find[T any](all []T, meant func(T) bool) *T {
	if i := slices.IndexFunc(all, meant); i >= 0 {
		return &all[i]
	}
	return nil
}

// uniquePlan is one rule of package unique. The Guards have a rule with an equal Task, Scope and On.
type uniquePlan struct {
	Task      string
	On        []string
	Until     string // "done", "start" or "for"
	Window    time.Duration
	Duplicate string // "reject", "join", "replace" or "postpone"
	Delay     time.Duration
}

func (u *uniquePlan) supersedes() bool {
	return u != nil && (u.Duplicate == "replace" || u.Duplicate == "postpone")
}

func (u *uniquePlan) rule() unique.Rule {
	r := unique.Rule{Task: u.Task, On: u.On}
	switch u.Until {
	case "start":
		r.Until = unique.UntilStart
	case "for":
		r.Until = unique.For(u.Window)
	}
	switch u.Duplicate {
	case "join":
		r.Duplicate = unique.Join
	case "replace":
		r.Duplicate = unique.Replace
	case "postpone":
		r.Duplicate = unique.Postpone(u.Delay)
	}
	return r
}

type taskPlan struct {
	At       time.Duration // when it is enqueued; negative: by the handler of another
	Task     string
	A, B     int  // payload fields that keys are made from
	NoB      bool // the payload lacks b
	MaxRetry int
	Timeout  time.Duration
	Keep     bool   // Retention of a day
	Plain    bool   // enqueued without a place in order
	Group    string // asynq's; empty: none
	// Aggregated has a GroupAggregator make the task, and nobody else.
	Aggregated bool
	// As is the task, plus one, whose ID it takes; 0: it has its own.
	As int
	// Within is how soon after its enqueueing its handler begins, if nothing is wrong; 0: it does not matter.
	Within time.Duration
	Slow   time.Duration // between the two commands with which a Client enqueues it
	Steps  []stepPlan    // what its runs do; the last one goes for all further ones
}

func (p *plan) id(n int) string {
	if as := p.Tasks[n].As; as > 0 {
		n = as - 1
	}
	return fmt.Sprintf("n%d", n)
}

// numberOf is the number of the task that has an ID of its own; -1: of none.
func numberOf(id string) (n int) {
	if _, err := fmt.Sscanf(id, "n%d", &n); err != nil {
		return -1
	}
	return n
}

func (t taskPlan) step(n int) stepPlan {
	if len(t.Steps) == 0 || n > 40 { // what never counts as a failure would go on for ever
		return stepPlan{End: "ok"}
	}
	return t.Steps[min(n, len(t.Steps)-1)]
}

type stepPlan struct {
	Work time.Duration
	// End is how it ends: "ok", "fail", "soft" (an error that IsFailure does not
	// count), "panic", "skip" (SkipRetry), "revoke" (RevokeTask), "later" (RetryAfter).
	End   string
	Later time.Duration // of RetryAfter
	Hold  time.Duration // puts its key on hold before it ends
	Deaf  bool          // does not look at its context
	// Then is the task that it enqueues first, plus one; 0: none.
	Then int
}

type faultPlan struct {
	Kind   faultKind
	Proc   int    // whose; -1: the producer's
	Client string // "lock", "asynq", "lead" or "skip"; "": all of the process
	// Nth is the one command of that client with which it begins, and begins not again; 0: it begins at At.
	Nth int
	// Saying has the fault hit the first command, from At after its client was made, of which a word ends with this text.
	Saying string
	At     time.Duration
	For    time.Duration
	Lag    time.Duration // of a split brain: what the new master lacks was written for so long
}

type opPlan struct {
	At time.Duration
	// Kind is "delete", "archive", "run", "pause" or "unpause" (the queue), "break", or an
	// order for the lock: "halt", "resume", "limit", "no limit", "pace", "no pace". Of a task in order also
	// "skip", and "lose" (its key, as a failover does).
	Kind  string
	Task  int           // whose task, or whose lock
	For   time.Duration // of halt: it ends by itself; 0: with resume
	Limit int
	Pace  *rulePlan `json:",omitempty"` // a rate
	Whole bool      // for the scope of that lock
}

// String has no lines for what is zero.
func (p *plan) String() string {
	return regexp.MustCompile(`(?m)^ +"\w+": (0|""|false|null),?\n`).ReplaceAllString(string(must(json.MarshalIndent(p, "",
		" "))), "")
}

func (p *plan) clone() *plan {
	c := new(plan)
	return must(c, json.Unmarshal(must(json.Marshal(p)), c))
}

// rulesOf are the rules of a task, of which each key is taken once, in the order in which their locks are taken.
func (p *plan) rulesOf(t taskPlan) (rules []rulePlan) {
	seen := map[string]bool{}
	for _, r := range p.Rules {
		if r.Task == t.Task && !seen[r.key(t)] && r.needs(t) {
			seen[r.key(t)] = true
			rules = append(rules, r)
		}
	}
	slices.SortStableFunc(rules, func(a, b rulePlan) int { return p.rank(a) - p.rank(b) })
	return rules
}

// rank is the place of a rule's lock among those of a task: an ordered one is the first, then as the rules first name
// their scopes.
func (p *plan) rank(rule rulePlan) int {
	if rule.InOrder {
		return -1
	}
	return slices.IndexFunc(p.Rules, func(r rulePlan) bool { return r.scope() == rule.scope() })
}

// uniqueOf is the rule of package unique for a task; nil: it is plain.
func (p *plan) uniqueOf(t taskPlan) *uniquePlan {
	return find(p.Unique, func(u uniquePlan) bool { return u.Task == t.Task })
}

// ruleOfKey is a rule that makes a key: all of them have its limit and its TTL.
func (p *plan) ruleOfKey(key string) rulePlan {
	scope, _, _ := strings.Cut(key, "|")
	return p.Rules[slices.IndexFunc(p.Rules, func(r rulePlan) bool { return r.scope() == scope })]
}

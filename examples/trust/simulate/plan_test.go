package simulate

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// plan is everything that happens in one world. Times count from its beginning.
type plan struct {
	Name    string `json:",omitempty"` // of a scenario
	Seed    uint64
	Procs   []procPlan
	Rules   []rulePlan
	Unique  []uniquePlan `json:",omitempty"`
	Tasks   []taskPlan
	Faults  []faultPlan   `json:",omitempty"`
	Ops     []opPlan      `json:",omitempty"`
	Latency time.Duration `json:",omitempty"` // one way, at most; 0: none
	// Losing is the share of Pub/Sub messages that are lost.
	Losing float64 `json:",omitempty"`
	// HashKeys keeps the values of payload fields out of keys.
	HashKeys bool `json:",omitempty"`
	// History is how many runs of a key are kept.
	History int `json:",omitempty"`
	// Lead has each process campaign for leadership, and is how long a leader's function lasts; 0: nobody leads.
	Lead time.Duration `json:",omitempty"`
	// Groups is how groups are aggregated; nil: there are none.
	Groups *groupPlan `json:",omitempty"`
	// MinReplicas is how many replicas have to know of a lease.
	MinReplicas int `json:",omitempty"`
	// Quiet is how long the servers go on when all tasks have ended.
	Quiet time.Duration `json:",omitempty"`
	// ObserverPanics has Config.Observe panic the first time it is told of such an event.
	ObserverPanics automutex.EventKind `json:",omitempty"`
}

// procPlan is one process: an asynq server with a Guard.
type procPlan struct {
	Workers  int
	Poll     time.Duration // TaskCheckInterval
	Forward  time.Duration // DelayedTaskCheckInterval
	Shutdown time.Duration // ShutdownTimeout
	// Apart has the Guard wrap the handlers of the types with rules one by one.
	Apart bool `json:",omitempty"`
}

// rulePlan is one rule of the Guards.
type rulePlan struct {
	Task     string
	Scope    string   `json:",omitempty"`
	On       []string `json:",omitempty"`
	Limit    int      `json:",omitempty"`
	TTL      time.Duration
	Wait     time.Duration `json:",omitempty"`
	MaxHold  time.Duration `json:",omitempty"`
	Cooldown time.Duration `json:",omitempty"`
	Starts   int           `json:",omitempty"` // of the rate; 0: none
	Per      time.Duration `json:",omitempty"`
	Burst    int           `json:",omitempty"`
	Policy   string
	// After is what the function of AfterFailure answers: "busy", "done", "fail", "skip" or "later".
	After string `json:",omitempty"`
	// KeyFails is how often each task's key function fails before it gives the key, and KeyLater
	// how often it asks for the task to come back.
	KeyFails int `json:",omitempty"`
	KeyLater int `json:",omitempty"`
	// LimitOf gives each task of the rule a limit of its own, at most Limit; see ownLimit. LimitLater is how often it
	// asks for the task to come back.
	LimitOf    bool `json:",omitempty"`
	LimitLater int  `json:",omitempty"`
	// Optional has a task without the field b take no lock of the rule.
	Optional bool `json:",omitempty"`
	// InOrder, OnArchive ("hold" or "continue") and MaxQueued are about the order of tasks.
	InOrder   bool   `json:",omitempty"`
	OnArchive string `json:",omitempty"`
	MaxQueued int    `json:",omitempty"`
}

func (r rulePlan) limit() int { return max(1, r.Limit) }

// fenced: about half of the mutexes have a fence; the others are taken as strings. Rules of one
// scope have one TTL.
func (r rulePlan) fenced() bool { return r.limit() == 1 && r.TTL/time.Second%2 == 0 }

// name is unique: each rule of a task has its own scope.
func (r rulePlan) name() string { return r.Task + "/" + r.scope() }

func (r rulePlan) scope() string {
	if r.Scope != "" {
		return r.Scope
	}
	return r.Task
}

// key names the lock that a task needs under the rule, in the words of the plan.
func (r rulePlan) key(t taskPlan) string {
	parts := []string{r.scope()}
	for _, field := range r.On {
		parts = append(parts, fmt.Sprint(t.field(field)))
	}
	return strings.Join(parts, "|")
}

// uniquePlan is one rule of package unique. The Guards have a rule with an equal
// Task, Scope and On.
type uniquePlan struct {
	Task      string
	On        []string
	Until     string // "done", "start" or "for"
	Window    time.Duration
	Duplicate string // "reject", "join", "replace" or "postpone"
	Delay     time.Duration
}

func (u uniquePlan) rule() unique.Rule {
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

// taskPlan is one task.
type taskPlan struct {
	At       time.Duration // when it is enqueued; negative: by the handler of another
	Task     string
	A, B     int  // payload fields that keys are made from
	NoB      bool `json:",omitempty"` // the payload lacks b
	MaxRetry int
	Timeout  time.Duration `json:",omitempty"`
	Keep     bool          `json:",omitempty"` // Retention of a day
	Plain    bool          `json:",omitempty"` // enqueued without a place in order
	Group    string        `json:",omitempty"` // asynq's; empty: none
	// Aggregated has a GroupAggregator make the task, and nobody else.
	Aggregated bool `json:",omitempty"`
	// As is the task, plus one, whose ID it takes; 0: it has its own.
	As    int        `json:",omitempty"`
	Steps []stepPlan // what its runs do; the last one goes for all further ones
}

func (t taskPlan) field(name string) int {
	if name == "a" {
		return t.A
	}
	return t.B
}

// id is that of the task with that number.
func (p *plan) id(n int) string {
	if as := p.Tasks[n].As; as > 0 {
		n = as - 1
	}
	return fmt.Sprintf("n%d", n)
}

// step is what the n-th run does.
func (t taskPlan) step(n int) stepPlan {
	if len(t.Steps) == 0 || n > 40 { // what never counts as a failure would go on for ever
		return stepPlan{End: "ok"}
	}
	return t.Steps[min(n, len(t.Steps)-1)]
}

// stepPlan is one run of a handler.
type stepPlan struct {
	Work time.Duration
	// End is how it ends: "ok", "fail", "soft" (an error that IsFailure does not
	// count), "panic", "skip" (SkipRetry), "revoke" (RevokeTask), "later" (RetryAfter).
	End   string
	Later time.Duration `json:",omitempty"` // of RetryAfter
	Hold  time.Duration `json:",omitempty"` // puts its key on hold before it ends
	Deaf  bool          `json:",omitempty"` // does not look at its context
	// Then is the task that it enqueues first, plus one; 0: none.
	Then int `json:",omitempty"`
}

// faultPlan is one fault, or the end of a process.
type faultPlan struct {
	Kind   faultKind
	Proc   int    // whose; -1: the producer's
	Client string `json:",omitempty"` // "lock", "asynq", "lead" or "skip"; "": all of the process
	// Nth is the command of that client with which it begins; 0: it begins at At.
	Nth int `json:",omitempty"`
	// Saying has the fault hit the first command, from At after its client was made, of which a word ends with this text.
	Saying string        `json:",omitempty"`
	At     time.Duration `json:",omitempty"`
	For    time.Duration `json:",omitempty"`
	Lag    time.Duration `json:",omitempty"` // of a split brain: what the new master lacks was written for so long
}

// opPlan is what an operator does.
type opPlan struct {
	At time.Duration
	// Kind is "delete", "archive", "run", "pause" or "unpause" (the queue), "break", or an
	// order for the lock: "halt", "resume", "limit", "no limit". Of a task in order also
	// "skip", and "lose" (its key, as a failover does).
	Kind  string
	Task  int           // whose task, or whose lock
	For   time.Duration `json:",omitempty"` // of halt: it ends by itself; 0: with resume
	Limit int           `json:",omitempty"`
	Whole bool          `json:",omitempty"` // for the scope of that lock
}

func (p *plan) String() string {
	b, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// clone is a plan that can be cut without harm to this one.
func (p *plan) clone() *plan {
	c := new(plan)
	b, err := json.Marshal(p)
	if err == nil {
		err = json.Unmarshal(b, c)
	}
	if err != nil {
		panic(err) // a plan is plain data
	}
	return c
}

// rulesOf are the rules of a task, of which each key is taken once.
func (p *plan) rulesOf(t taskPlan) (rules []rulePlan) {
	seen := map[string]bool{}
	for _, r := range p.Rules {
		if r.Task == t.Task && !seen[r.key(t)] && r.needs(t) {
			seen[r.key(t)] = true
			rules = append(rules, r)
		}
	}
	return rules
}

// uniqueOf is the rule of package unique for a task; nil: it is plain.
func (p *plan) uniqueOf(t taskPlan) *uniquePlan {
	for i := range p.Unique {
		if p.Unique[i].Task == t.Task {
			return &p.Unique[i]
		}
	}
	return nil
}

// ruleNamed is the rule of that name.
func (p *plan) ruleNamed(name string) rulePlan {
	for _, r := range p.Rules {
		if r.name() == name {
			return r
		}
	}
	panic("no rule is called " + name)
}

// ruleOfKey is a rule that makes a key: all of them have its limit and its TTL.
func (p *plan) ruleOfKey(key string) rulePlan {
	scope, _, _ := strings.Cut(key, "|")
	for _, r := range p.Rules {
		if r.scope() == scope {
			return r
		}
	}
	panic("no rule makes the key " + key)
}

package trust

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// soakTask is the payload of a task of the soak: it says all that its handler
// is to do, so that any worker can do it, in whatever process.
type soakTask struct {
	N     int    `json:"n"` // one for each call of Enqueue
	ID    string `json:"id,omitempty"`
	To    string `json:"to,omitempty"`    // of a transfer
	Do    string `json:"do"`              // see soakDo
	MS    int    `json:"ms"`              // of work
	Fails int    `json:"fails,omitempty"` // attempts that fail first
	After string `json:"after,omitempty"` // what AfterFailure answers
}

// soakStep is one call of Enqueue.
type soakStep struct {
	soakTask
	Kind     string
	Queue    string
	MaxRetry int
	Timeout  time.Duration
	In       time.Duration
}

// soakFault is something that goes wrong once so many calls were made.
type soakFault struct {
	At     int
	What   string
	Target int           // of those that can have this fault
	Length time.Duration // how long it lasts; 0: a moment
	Count  int           // of what is lost; of the operator: which task
}

// soakPlan is what happens in a soak, as far as dice decide it: which tasks come
// in which order, and which faults after how many of them. What comes of that
// depends on the machine; the plan follows from the seed alone.
type soakPlan struct {
	steps  []soakStep
	faults []soakFault
}

type soakShare struct {
	do    string
	share int
}

// What handlers do, of 1,000 tasks; the rest succeeds at once.
var soakDo = []soakShare{
	{"fail", 40},     // fails once or twice, then succeeds
	{"panic", 15},    // panics once, then succeeds
	{"always", 10},   // fails until asynq archives it
	{"skip", 8},      // returns asynq.SkipRetry
	{"revoke", 5},    // returns asynq.RevokeTask
	{"timeout", 5},   // runs into its own timeout once, then succeeds
	{"ignore", 5},    // the same, and runs on after that
	{"later", 4},     // is scheduled for a time after the soak
	{"last", 60},     // succeeds, and has one attempt only
	{"bad", 10},      // no key can be made from it
	{"outlast", 6},   // succeeds after longer than a lease lasts unrenewed
	{"succeed", 832}, // in the end
}

// Which faults, of 100.
var soakFaults = []struct {
	what    string
	share   int
	targets int
	longest time.Duration
}{
	{"cut guard", 10, soakServers, 0},
	{"delay guard", 8, soakServers, 300 * time.Millisecond},
	{"lose replies to guard", 10, soakServers, 0},
	{"lose messages", 8, soakServers, 500 * time.Millisecond},
	{"black hole for guard", 3, soakServers, 200 * time.Millisecond},
	{"black hole for messages", 4, soakServers, 500 * time.Millisecond},
	{"cut asynq", 3, soakServers, 0},
	{"delay asynq", 5, soakServers, 200 * time.Millisecond},
	{"cut claims", 4, 1, 0},
	{"SCRIPT FLUSH", 4, 1, 0},
	{"CLIENT KILL guards", 3, 1, 0},
	{"CLIENT KILL asynq", 2, 1, 0},
	{"shut down and start", 4, soakServers, 0},
	{"SIGKILL", 5, soakChildren, 0},
	{"SIGSTOP", 4, soakChildren, 400 * time.Millisecond},
	{"pause queue", 3, len(soakQueues), 300 * time.Millisecond},
	{"operator deletes", 7, len(soakQueues), 0},
	{"operator archives", 5, len(soakQueues), 0},
	{"operator runs", 8, len(soakQueues), 0},
}

// newSoakPlan throws the dice: tasks of all kinds, with a fault for every so
// many.
func newSoakPlan(seed uint64, tasks, perFault int) *soakPlan {
	p := &soakPlan{}
	dice := rand.New(rand.NewPCG(seed, 8))
	shares := 0
	for _, k := range soakKinds {
		shares += k.share
	}
	for n := range tasks {
		draw := dice.IntN(shares)
		kind := soakKinds[slices.IndexFunc(soakKinds, func(k soakKind) bool { draw -= k.share; return draw < 0 })]
		p.steps = append(p.steps, p.step(dice, n, tasks, kind))
	}
	for at := perFault / 2; at < tasks; at += perFault {
		p.faults = append(p.faults, fault(dice, min(at+dice.IntN(perFault/2), tasks-1)))
	}
	return p
}

func (p *soakPlan) step(dice *rand.Rand, n, tasks int, kind soakKind) soakStep {
	s := soakStep{
		soakTask: soakTask{N: n, ID: soakID(dice, kind.ids), MS: 1 + dice.IntN(12)},
		Kind:     kind.task, Queue: soakQueues[dice.IntN(len(soakQueues))], MaxRetry: 12, Timeout: 5 * time.Minute,
	}
	if dice.IntN(25) == 0 {
		s.MS = 50 + dice.IntN(150)
	}
	if kind.task == "transfer" {
		s.To = soakID(dice, kind.ids)
	}
	if kind.task == "turn:after" {
		s.After = []string{"nothing", "busy", "skip", "fail"}[dice.IntN(4)]
	}
	if kind.once != nil {
		s.Queue = soakOnceQueue
	}
	draw := dice.IntN(1000)
	s.Do = soakDo[slices.IndexFunc(soakDo, func(d soakShare) bool { draw -= d.share; return draw < 0 })].do
	long := s.Do == "timeout" || s.Do == "ignore" || s.Do == "outlast"
	switch {
	case long && n > tasks/2: // or the short form would wait for them at its end
		s.Do = "succeed"
	case kind.once != nil && (s.Do == "later" || s.Do == "last" || long):
		s.Do = "succeed"
	case kind.task == "plain" && s.Do == "bad":
		s.Do = "succeed"
	}
	switch s.Do {
	case "fail":
		s.Fails = 1 + dice.IntN(2)
	case "panic":
		s.Fails = 1
	case "timeout", "ignore":
		s.Fails, s.Timeout = 1, time.Second
	case "outlast": // of two entities, for which the others need not wait
		s.Kind, s.ID, s.To, s.After = soakBrief, fmt.Sprintf("long-%d", n%2), "", ""
		s.MS = int(soakBriefTTL.Milliseconds() * 4 / 3)
	case "always":
		s.MaxRetry = 2
	case "last":
		s.MaxRetry = 0
	case "later":
		s.In = 24 * time.Hour
	case "bad":
		s.ID = ""
	}
	if kind.task == "turn:fail" || s.After == "fail" {
		s.MaxRetry = min(s.MaxRetry, 3)
	}
	return s
}

// soakID draws an ID: two of three are of a few that are in great demand.
func soakID(dice *rand.Rand, ids int) string {
	if dice.IntN(3) > 0 {
		return fmt.Sprintf("hot-%d", dice.IntN(1+ids/40))
	}
	return fmt.Sprintf("id-%d", dice.IntN(ids))
}

func fault(dice *rand.Rand, at int) soakFault {
	draw := dice.IntN(100)
	for _, f := range soakFaults {
		if draw -= f.share; draw >= 0 {
			continue
		}
		fault := soakFault{At: at, What: f.what, Target: dice.IntN(f.targets), Count: 1 + dice.IntN(50)}
		if f.longest > 0 {
			fault.Length = f.longest/4 + time.Duration(dice.Int64N(int64(f.longest*3/4)))
		}
		return fault
	}
	panic("the shares of soakFaults are less than 100")
}

// sum tells plans apart.
func (p *soakPlan) sum() string {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, p.steps, p.faults) // never fails
	return fmt.Sprintf("%016x", h.Sum64())
}

func TestSoak_planFollowsFromTheSeed(t *testing.T) {
	t.Parallel()
	a, b, c := newSoakPlan(1, 4000, 8), newSoakPlan(1, 4000, 8), newSoakPlan(2, 4000, 8)
	if a.sum() != b.sum() {
		t.Errorf("two plans of one seed are %s and %s", a.sum(), b.sum())
	}
	if a.sum() == c.sum() {
		t.Errorf("the plans of two seeds are both %s", a.sum())
	}
	kinds, deeds, faults := map[string]int{}, map[string]int{}, map[string]int{}
	for _, s := range a.steps {
		kinds[s.Kind]++
		deeds[s.Do]++
	}
	for _, f := range a.faults {
		faults[f.What]++
	}
	if len(kinds) != len(soakKinds) || len(deeds) != len(soakDo) || len(faults) != len(soakFaults) {
		t.Errorf("not all that there is happens:\n%v\n%v\n%v", kinds, deeds, faults)
	}
}

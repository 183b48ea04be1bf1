package simulate

import (
	"fmt"
	"slices"
	"time"

	"github.com/automutex/automutex"
)

const (
	ms  = time.Millisecond
	sec = time.Second
)

// policies are all of them, by the names that plans have; "wait" is Retry with a Wait.
var policies = []string{"retry", "wait", "retry in", "skip", "archive", "fail", "park", "replace", "allow", "after"}

// servers are processes with so many workers each.
func servers(workers ...int) (procs []procPlan) {
	for _, n := range workers {
		procs = append(procs, procPlan{Workers: n, Poll: 200 * ms, Forward: sec, Shutdown: 3 * sec})
	}
	return procs
}

// under gives a rule the policy of that name. Without another one its type is t and its TTL six seconds.
func under(policy string, r rulePlan) rulePlan {
	r.Policy = policy
	if r.Task == "" {
		r.Task = "t"
	}
	if r.TTL == 0 {
		r.TTL = 6 * sec
	}
	switch policy {
	case "wait":
		r.Policy = "retry"
		if r.Wait == 0 {
			r.Wait = 4 * sec
		}
	case "after":
		r.After = "busy"
	}
	return r
}

// rules is a list of one rule, on the field a.
func rules(policy string, r rulePlan) []rulePlan {
	r.On = onA
	return []rulePlan{under(policy, r)}
}

var onA, onB = []string{"a"}, []string{"b"}

// inOrder is a list of one rule in order.
func inOrder(onArchive string) []rulePlan {
	return rules("park", rulePlan{InOrder: true, OnArchive: onArchive})
}

// work is a task that has a handler of that length, and attempts to spare.
func work(at, length time.Duration, ends ...string) taskPlan {
	t := taskPlan{At: at, Task: "t", MaxRetry: 5, Timeout: 60 * sec}
	for _, end := range append(ends, "ok") {
		t.Steps = append(t.Steps, stepPlan{Work: length, End: end})
	}
	return t
}

// archives is a task that is archived after its only run.
func archives(at time.Duration) taskPlan { return work(at, 200*ms, "fail").tries(0) }

// comesBack is a task that asks to come back a minute after its first run.
func comesBack(at time.Duration) taskPlan {
	return work(at, 0).does(stepPlan{Work: 200 * ms, End: "later", Later: time.Minute}, stepPlan{Work: 200 * ms, End: "ok"})
}

func (t taskPlan) key(a int) taskPlan                { t.A = a; return t }
func (t taskPlan) tries(maxRetry int) taskPlan       { t.MaxRetry = maxRetry; return t }
func (t taskPlan) by(timeout time.Duration) taskPlan { t.Timeout = timeout; return t }
func (t taskPlan) typed(name string) taskPlan        { t.Task = name; return t }
func (t taskPlan) does(steps ...stepPlan) taskPlan   { t.Steps = steps; return t }
func (t taskPlan) kept() taskPlan                    { t.Keep = true; return t }
func (t taskPlan) named(as int) taskPlan             { t.As = as + 1; return t }

// deaf does not look at its context.
func (t taskPlan) deaf() taskPlan {
	return t.does(stepPlan{Work: t.Steps[0].Work, End: "ok", Deaf: true})
}

// each makes so many tasks.
func each(n int, task func(i int) taskPlan) (tasks []taskPlan) {
	for i := range n {
		tasks = append(tasks, task(i))
	}
	return tasks
}

// manyKeys are tasks like t, each with a key of its own.
func manyKeys(t taskPlan) []taskPlan { return each(16, t.key) }

// every makes tasks like t, one after the other.
func (t taskPlan) every(gap time.Duration, n int) []taskPlan {
	return each(n, func(i int) taskPlan {
		t.At += gap * time.Duration(min(i, 1))
		return t
	})
}

func tasks(all ...taskPlan) []taskPlan { return all }

// goesOn adds a late task of another key. Until it comes, nobody ends a hold.
func goesOn(all ...taskPlan) []taskPlan { return append(all, work(90*sec, 0).key(99)) }

// scenarios are what the faults are put upon, one at each command. Those in order come first, since -within may leave out the last.
func scenarios() (all []*plan) {
	for _, p := range slices.Concat(orderedScenarios(), policyScenarios(), leaseScenarios(), gateScenarios(), uniqueScenarios()) {
		p.Seed = 1
		all = append(all, &p)
	}
	return all
}

// extraScenarios are played as they are: what they are about is a fault already, or a mistake of the oracle.
func extraScenarios() (all []*plan) {
	for _, p := range slices.Concat(mistakeScenarios(), faultScenarios(), judgeScenarios()) {
		p.Seed = 1
		all = append(all, &p)
	}
	return all
}

// orderedScenarios are those about tasks in order.
func orderedScenarios() []plan {
	three := func(first taskPlan) []taskPlan { return tasks(first, work(50*ms, 200*ms), work(100*ms, 200*ms)) }
	full, plain := inOrder("hold"), work(50*ms, 200*ms)
	full[0].MaxQueued, plain.Plain = 2, true
	all := []plan{
		{Name: "a failure", Procs: servers(4, 4), Rules: inOrder("hold"),
			Tasks: tasks(work(0, 600*ms), work(50*ms, 200*ms, "fail"), work(100*ms, 200*ms), work(2*sec, 200*ms))},
		{Name: "archived, continue", Procs: servers(4, 4), Rules: inOrder("continue"),
			Tasks: tasks(archives(0), work(50*ms, 200*ms, "panic", "panic").tries(1), work(100*ms, 200*ms, "skip"), work(150*ms, 200*ms))},
		{Name: "archived, hold, skipped", Procs: servers(4, 4), Rules: inOrder("hold"), Tasks: three(archives(0)),
			Ops: []opPlan{{At: 4 * sec, Kind: "skip"}}},
		{Name: "archived, hold, run", Procs: servers(4, 4), Rules: inOrder("hold"), Tasks: three(archives(0)),
			Ops: []opPlan{{At: 4 * sec, Kind: "run"}}},
		{Name: "the head is deleted", Procs: servers(4, 4), Rules: inOrder("hold"), Tasks: three(comesBack(0)),
			Ops: []opPlan{{At: 2 * sec, Kind: "delete"}}},
		{Name: "its server dies", Procs: servers(4, 4), Rules: inOrder("continue"),
			Tasks:  tasks(work(0, 3*sec).tries(1), work(50*ms, 200*ms).tries(0), work(100*ms, 200*ms), work(8*sec, 200*ms)),
			Faults: []faultPlan{{Kind: dies, At: 1500 * ms}, {Kind: starts, At: 20 * sec}}},
		{Name: "full", Procs: servers(4), Rules: full, Tasks: append(three(work(0, sec)), work(12*sec, 200*ms))},
		{Name: "plain tasks among them", Procs: servers(4, 4), Rules: inOrder("hold"),
			Tasks: tasks(work(0, sec), plain, work(100*ms, 200*ms), work(150*ms, 200*ms))},
		{Name: "archived by hand, hold", Procs: servers(4), Rules: inOrder("hold"), Tasks: goesOn(three(comesBack(0))...),
			Ops: []opPlan{{At: 2 * sec, Kind: "archive"}}},
		{Name: "archived by hand, continue", Procs: servers(4), Rules: inOrder("continue"), Tasks: goesOn(three(comesBack(0))...),
			Ops: []opPlan{{At: 2 * sec, Kind: "archive"}}},
		{Name: "run again while retained", Procs: servers(4, 4), Rules: inOrder("hold"),
			Tasks: tasks(work(0, 200*ms).kept(), work(50*ms, 200*ms), work(4*sec, 200*ms), work(5*sec, 200*ms)),
			Ops:   []opPlan{{At: 3500 * ms, Kind: "run"}}},
		{Name: "a head that comes back is skipped", Procs: servers(4, 4), Rules: inOrder("hold"), Tasks: three(comesBack(0)),
			Ops: []opPlan{{At: 2 * sec, Kind: "skip"}}},
		// What costs five seconds is confirmed.
		{Name: "a slow producer", Procs: servers(4), Rules: inOrder("hold"),
			Tasks:  tasks(work(0, 200*ms), work(12*sec, 200*ms), work(13*sec, 200*ms)),
			Faults: []faultPlan{{Kind: swallowed, Proc: -1, Client: "asynq", Nth: 1}}},
	}
	for i := range all {
		all[i].Name = "in order, " + all[i].Name
	}
	// These have mistakes of their own planted, and faults at each command too.
	for _, p := range mistakeScenarios() {
		if p.Name == "in order, its ID is taken" || p.Name == "in order, a producer has died in the middle" {
			all = append(all, p)
		}
	}
	return all
}

// mistakeScenarios are worlds in order, in each of which one mistake of a protocol shows. They keep all promises;
// testdata/planted has the mistakes.
func mistakeScenarios() []plan {
	few := inOrder("hold")
	few[0].MaxQueued = 3
	all := []plan{
		// A head that does not come: it comes later, is archived, or was done.
		{Name: "it comes back in a minute", Procs: servers(4, 4), Tasks: tasks(comesBack(0), work(50*ms, 200*ms), work(100*ms, 200*ms))},
		{Name: "held, and deleted", Procs: servers(4, 4), Tasks: goesOn(archives(0), work(50*ms, 200*ms), work(100*ms, 200*ms)),
			Ops: []opPlan{{At: 6 * sec, Kind: "delete"}}},
		// The command that enqueues it is executed, and has no reply: its Enqueue takes five seconds.
		{Name: "held before its Enqueue has returned", Procs: servers(4, 4), Tasks: goesOn(archives(0), work(6*sec, 200*ms)),
			Faults: []faultPlan{{Kind: swallowed, Proc: -1, Client: "asynq", Nth: 3}}, Ops: []opPlan{{At: 7 * sec, Kind: "delete"}}},
		// The second one is stamped, and not enqueued.
		{Name: "a producer has died in the middle", Procs: servers(4, 4), Rules: few,
			Tasks:  goesOn(comesBack(0), work(500*ms, 200*ms), work(2*sec, 200*ms), work(15*sec, 200*ms)),
			Faults: []faultPlan{{Kind: refused, Proc: -1, Client: "asynq", Nth: 4}},
			Ops:    []opPlan{{At: sec, Kind: "pause"}, {At: 20 * sec, Kind: "unpause"}}},
		{Name: "done, and its release is lost", Procs: servers(4), Tasks: tasks(work(0, 600*ms).kept(), work(11*sec, 200*ms), work(12*sec, 200*ms)),
			Faults: []faultPlan{{Kind: hung, Client: "lock", At: 400 * ms, For: 9 * sec}, {Kind: dies, At: 9 * sec}, {Kind: starts, At: 10 * sec}}},

		// Two tasks with one ID.
		{Name: "its ID is used again", Procs: servers(4), Tasks: tasks(work(0, 200*ms), work(3*sec, 200*ms).named(0), work(3500*ms, 200*ms))},
		{Name: "its ID is taken, and it lands late", Procs: servers(4), Tasks: tasks(comesBack(0), work(sec, 200*ms).named(0), work(2*sec, 200*ms)),
			Faults: []faultPlan{{Kind: late, Proc: -1, Client: "asynq", Nth: 3, For: 8 * sec}}},
		{Name: "its ID is taken", Procs: servers(4), Tasks: tasks(comesBack(0), work(sec, 200*ms).named(0), work(2*sec, 200*ms))},
		{Name: "deleted, and its ID is used again", Procs: servers(4), Tasks: tasks(comesBack(0), work(100*ms, 200*ms), work(3*sec, 200*ms).named(0)),
			Ops: []opPlan{{At: 2 * sec, Kind: "delete"}}},
	}
	// An Enqueue that takes more than ten seconds, five for each of these commands: others take its stamp for a dead producer's.
	// When it has returned, the third task is enqueued.
	for _, slow := range []struct {
		name string
		faultPlan
	}{
		{"is not confirmed", faultPlan{Kind: apart, Proc: -1, Client: "lock", At: 14500 * ms, For: 20 * sec}},
		{"a look is stored late", faultPlan{Kind: late, Client: "lock", Saying: "gone", For: 10 * sec}},
		{"cannot ask at once", faultPlan{Kind: refused, Client: "lock", Saying: "|default/n0", At: 16 * sec}},
	} {
		all = append(all, plan{Name: "it lands late, and " + slow.name, Procs: servers(4),
			Tasks: goesOn(comesBack(0).kept(), work(2*sec, 200*ms), work(17500*ms, 200*ms)),
			Faults: []faultPlan{{Kind: swallowed, Proc: -1, Client: "asynq", Nth: 1}, {Kind: swallowed, Proc: -1, Client: "asynq", Nth: 5},
				{Kind: late, Proc: -1, Client: "asynq", Nth: 7, For: 20 * sec}, slow.faultPlan},
			Ops: []opPlan{{At: 14800 * ms, Kind: "pause"}, {At: 18 * sec, Kind: "unpause"}}})
	}
	for i := range all {
		all[i].Name = "in order, " + all[i].Name
		if all[i].Rules == nil {
			all[i].Rules = inOrder("hold")
		}
	}
	return all
}

// policyScenarios are about what becomes of a busy task.
func policyScenarios() (all []plan) {
	for _, policy := range policies {
		first := rulePlan{Scope: "first", On: onA}
		if first = under("retry", first); policy == "replace" {
			first.Policy = policy
		}
		second := under(policy, rulePlan{Scope: "second"})
		other := second
		other.Task = "other"
		all = append(all,
			plan{Name: policy, Procs: servers(4, 4), Rules: rules(policy, rulePlan{}),
				Tasks: tasks(work(0, 1500*ms), work(300*ms, 200*ms), work(600*ms, 200*ms))},
			plan{Name: policy + ", last attempt", Procs: servers(4), Rules: rules(policy, rulePlan{}),
				Tasks: tasks(work(0, 1500*ms), work(300*ms, 200*ms).tries(0))},
			plan{Name: policy + ", the second lock", Procs: servers(4), Rules: []rulePlan{first, second, other},
				Tasks: tasks(work(0, 1500*ms).typed("other"), work(200*ms, 300*ms), work(300*ms, 300*ms).key(1))})
	}
	for _, policy := range []string{"retry", "wait", "park", "replace"} {
		all = append(all,
			plan{Name: policy + ", its server stops", Procs: servers(4, 4), Rules: rules(policy, rulePlan{}),
				Tasks:  tasks(work(0, 4*sec), work(300*ms, 200*ms), work(400*ms, 200*ms).tries(0)),
				Faults: []faultPlan{{Kind: stops, At: 900 * ms}, {Kind: starts, At: 10 * sec}}},
			plan{Name: policy + ", its server dies", Procs: servers(4, 4), Rules: rules(policy, rulePlan{}),
				Tasks:  append(work(300*ms, 200*ms).every(100*ms, 3), work(0, 3*sec)),
				Faults: []faultPlan{{Kind: dies, At: 1500 * ms}, {Kind: starts, At: 10 * sec}}})
	}
	return all
}

// leaseScenarios are those about leases: their length, their limits, their renewal.
func leaseScenarios() (all []plan) {
	for i, name := range []string{"", "limit 2, "} {
		for _, policy := range []string{"retry", "wait", "park"} {
			deaf := work(0, 0).tries(3).by(2*sec).does(stepPlan{Work: 6 * sec, End: "ok", Deaf: true}, stepPlan{Work: 100 * ms, End: "ok"})
			all = append(all, plan{Name: "ignored timeout, " + name + policy, Procs: servers(4), Rules: rules(policy, rulePlan{Limit: i + 1}),
				Tasks: tasks(deaf, work(500*ms, 200*ms))})
		}
	}
	for _, policy := range []string{"skip", "park", "wait"} {
		all = append(all, plan{Name: "cooldown, " + policy, Procs: servers(4), Rules: rules(policy, rulePlan{Cooldown: 5 * sec}),
			Tasks: tasks(work(0, 500*ms), work(2*sec, 200*ms), work(7*sec, 200*ms, "fail"), work(20*sec, 200*ms))})
	}
	three := []rulePlan{
		under("wait", rulePlan{Scope: "one", On: onA}), under("park", rulePlan{Scope: "two", On: onB}), under("retry", rulePlan{Scope: "three", Limit: 2}),
	}
	return append(all,
		plan{Name: "renewals", Procs: servers(1, 1), Rules: rules("wait", rulePlan{TTL: 3 * sec, Wait: 20 * sec}),
			Tasks: tasks(work(0, 8*sec), work(sec, 5*sec))},
		plan{Name: "a lease granted by a release", Procs: servers(4), Rules: rules("wait", rulePlan{TTL: 30 * sec, Wait: 20 * sec}),
			Tasks: tasks(work(0, sec), work(300*ms, 8*sec))},
		plan{Name: "MaxHold", Procs: servers(4), Rules: rules("wait", rulePlan{MaxHold: 1500 * ms, TTL: 2 * sec}),
			Tasks: tasks(work(0, 0).does(stepPlan{Work: 3 * sec, End: "fail"}, stepPlan{Work: 100 * ms, End: "ok"}), work(300*ms, 500*ms))},
		plan{Name: "three rules", Procs: servers(4, 4), Rules: three, Tasks: each(6, func(i int) taskPlan {
			t := work(time.Duration(i)*100*ms, 400*ms).key(i % 2)
			t.B = i % 3
			return t
		})},
		plan{Name: "failing and panicking handlers", Procs: servers(4), Rules: rules("wait", rulePlan{}),
			Tasks: tasks(work(0, 500*ms, "fail", "panic"), work(200*ms, 200*ms, "soft"), work(300*ms, 200*ms, "skip"), work(400*ms, 200*ms, "revoke"))},
		plan{Name: "replace, many in a row", Procs: servers(4), Rules: rules("replace", rulePlan{}), Tasks: work(0, 900*ms).every(250*ms, 5)},
		plan{Name: "park, many on one key", Procs: servers(2), Rules: rules("park", rulePlan{}), Tasks: work(0, 400*ms).every(50*ms, 7)},
		plan{Name: "an operator breaks the lock", Procs: servers(4, 4), Rules: rules("wait", rulePlan{}),
			Tasks: tasks(work(0, 4*sec), work(300*ms, 500*ms)), Ops: []opPlan{{At: 1500 * ms, Kind: "break"}}})
}

// gateScenarios are rates and holds under each policy that does something of its own.
func gateScenarios() (all []plan) {
	for _, policy := range []string{"retry", "wait", "skip", "park"} {
		n, burst := 4, 2
		if policy == "retry" {
			n, burst = 6, 4 // enough starts at once to see each counted once
		}
		held := work(0, 400*ms).every(300*ms, 4) // the second hold is over before the first
		held[0].Steps = []stepPlan{{Work: 400 * ms, Hold: 5 * sec, End: "later", Later: 5 * sec}, {Work: 100 * ms, End: "ok"}}
		held[1].Steps = []stepPlan{{Work: 400 * ms, Hold: 1500 * ms, End: "ok"}}
		all = append(all,
			plan{Name: "rate, " + policy, Procs: servers(4, 4), Rules: rules(policy, rulePlan{Starts: 1, Per: 1500 * ms, Burst: burst}),
				Tasks: work(0, 100*ms).every(200*ms, n)},
			plan{Name: "hold, " + policy, Procs: servers(4), Rules: rules(policy, rulePlan{Limit: 2}), Tasks: held})
	}
	return all
}

// uniqueScenarios are the ways to enqueue once.
func uniqueScenarios() (all []plan) {
	for _, until := range []string{"done", "start", "for"} {
		for _, duplicate := range []string{"reject", "join", "replace", "postpone"} {
			all = append(all, plan{Name: "unique until " + until + ", " + duplicate, Procs: servers(4), Rules: rules("wait", rulePlan{}),
				Unique: []uniquePlan{{Task: "t", On: onA, Until: until, Window: 3 * sec, Duplicate: duplicate, Delay: sec}},
				Tasks: tasks(work(0, 1500*ms), work(700*ms, 200*ms), work(900*ms, 200*ms), work(1100*ms, 200*ms), work(8*sec, 200*ms),
					work(8100*ms, 200*ms))})
		}
	}
	slow := servers(4)
	slow[0].Forward = 5 * sec
	return append(all, plan{Name: "unique, replace of a task that has run", Procs: slow, Rules: rules("retry", rulePlan{}),
		Unique: []uniquePlan{{Task: "t", On: onA, Until: "done", Duplicate: "replace"}}, Tasks: tasks(work(0, 200*ms, "soft"), work(900*ms, 200*ms))})
}

// faultScenarios are about one fault each.
func faultScenarios() (all []plan) {
	for _, kind := range []automutex.EventKind{
		automutex.EventAcquired, automutex.EventWaiting, automutex.EventWaited, automutex.EventBusy, automutex.EventRetried,
		automutex.EventParked, automutex.EventReplaced, automutex.EventReleased, automutex.EventSkipped, automutex.EventLost,
	} {
		for _, policy := range []string{"wait", "park", "replace", "skip", "retry"} {
			all = append(all, plan{Name: "the observer panics, " + string(kind) + ", " + policy, Procs: servers(4), ObserverPanics: kind,
				Rules: rules(policy, rulePlan{MaxHold: 20 * sec}),
				Tasks: tasks(work(0, 1500*ms), work(300*ms, 200*ms), work(500*ms, 200*ms), work(3*sec, 200*ms))})
		}
	}
	for _, policy := range []string{"wait", "replace", "retry"} {
		last := work(300*ms, 100*ms).tries(0)
		if policy == "replace" {
			last.At = sec // Redis refuses already: before, it replaces the holder at once
		}
		all = append(all, plan{Name: "the last attempt waits, Redis refuses, the server stops, " + policy, Procs: servers(4, 4),
			Rules: rules(policy, rulePlan{}), Tasks: tasks(work(0, 12*sec), last),
			Faults: []faultPlan{
				{Kind: misconf, Proc: 0, Client: "lock", At: 800 * ms, For: 8 * sec}, {Kind: misconf, Proc: 1, Client: "lock", At: 800 * ms, For: 8 * sec},
				{Kind: stops, Proc: 0, At: 1500 * ms}, {Kind: stops, Proc: 1, At: 1500 * ms}, {Kind: starts, Proc: 0, At: 20 * sec},
			}})
	}
	slower, most := servers(1, 1), servers(1000, 3)
	slower[1].Poll, most[1].Poll = 900*ms, 900*ms
	park := under("park", rulePlan{Scope: "second"})
	other := park
	other.Task = "other"
	made := taskPlan{At: -1, Task: "plain", MaxRetry: 3, Aggregated: true}
	grouped := tasks(work(0, 200*ms), work(300*ms, 200*ms), work(12*sec, 200*ms), made, made)
	for i := range 3 {
		grouped[i].Group = "g0"
	}
	suspends := plan{Name: "a holder is suspended", Procs: servers(4, 4), Rules: rules("wait", rulePlan{})}
	for i := range 8 { // which process gets a task is not known
		at := time.Duration(i) * 40 * sec
		suspends.Tasks = append(suspends.Tasks, work(at, 3*sec), work(at+2*sec, 200*ms))
		suspends.Faults = append(suspends.Faults, faultPlan{Kind: suspended, Proc: i % 2, At: at + sec, For: 15 * sec})
	}
	return append(all, suspends,
		plan{Name: "the renewals of a leader hang", Procs: servers(4, 4), Lead: 100 * sec, Rules: rules("park", rulePlan{}),
			Tasks: tasks(work(60*sec, 200*ms)),
			Faults: []faultPlan{
				{Kind: hung, Proc: 0, Client: leadClient, At: 3 * sec, For: 15 * sec}, {Kind: hung, Proc: 1, Client: leadClient, At: 30 * sec, For: 15 * sec},
			}},
		plan{Name: "a task that was aggregated blocks its key no more", Procs: servers(4), Rules: rules("retry", rulePlan{}), Tasks: grouped,
			Groups: &groupPlan{Grace: sec}, Unique: []uniquePlan{{Task: "t", On: onA, Until: "start", Duplicate: "reject"}}},
		// Each process in turn goes on with the old master, and many want one key.
		plan{Name: "a split brain", Procs: servers(4, 4), Rules: rules("wait", rulePlan{Wait: 20 * sec}),
			Tasks: each(50, func(i int) taskPlan { return work(time.Duration(i)*800*ms, []time.Duration{300 * ms, 2500 * ms}[i%2]) }),
			Faults: []faultPlan{
				{Kind: split, Proc: 0, Client: "lock", At: 4 * sec, For: 25 * sec, Lag: 500 * ms},
				{Kind: split, Proc: 1, Client: "lock", At: 50 * sec, For: 25 * sec, Lag: 500 * ms},
			}},
		plan{Name: "the observer panics, and nothing bounds the lease", Procs: servers(4), ObserverPanics: automutex.EventWaited,
			Rules: rules("wait", rulePlan{}), Tasks: tasks(work(0, 1500*ms), work(300*ms, 200*ms), work(500*ms, 200*ms))},
		plan{Name: "park does not eat a tasks own time", Procs: servers(20), Rules: rules("park", rulePlan{}),
			Tasks: work(0, 3500*ms).by(10*sec).tries(25).every(0, 8)},
		// The grant comes between 1.2 and 1.5 s.
		plan{Name: "Redis stands still after a grant", Procs: servers(4), Rules: rules("wait", rulePlan{TTL: 30 * sec, Wait: 20 * sec}),
			Tasks: tasks(work(0, 1200*ms), work(100*ms, 8*sec)), Faults: []faultPlan{{Kind: frozen, Client: "lock", At: 1800 * ms, For: 4 * sec}}},
		// Process 0 polls sooner than 1.
		plan{Name: "new connections are refused while a lease is held", Procs: slower, Rules: rules("wait", rulePlan{TTL: 3 * sec, Wait: 30 * sec}),
			Tasks: tasks(work(100*ms, 12*sec), work(500*ms, 3*sec)), Faults: []faultPlan{{Kind: setup, Client: "lock", At: 1500 * ms, For: 10 * sec}}},
		plan{Name: "a key function that fails for a while", Procs: servers(4), Rules: rules("retry", rulePlan{KeyFails: 2}),
			Tasks: work(0, 100*ms).every(100*ms, 2)},
		// The last in line are with the second process, which lives.
		plan{Name: "many waiters die", Procs: most, Rules: rules("wait", rulePlan{Wait: 5 * time.Minute, TTL: 2 * sec}),
			Tasks: append(work(100*ms, 0).every(0, 1000), work(0, 2*sec), work(1500*ms, 100*ms)), Faults: []faultPlan{{Kind: dies, At: 1900 * ms}}},
		plan{Name: "replaced while it waits for its second lock", Procs: servers(4),
			Rules: []rulePlan{under("replace", rulePlan{Scope: "first", On: onA}), park, other},
			Tasks: tasks(work(0, 20*sec).typed("other"), work(500*ms, 100*ms), work(1500*ms, 100*ms))})
}

// judgeScenarios are worlds that keep all promises, and in which the oracle once saw a promise broken.
func judgeScenarios() (all []plan) {
	held := func(at, hold time.Duration) taskPlan { return work(at, 0).does(stepPlan{Hold: hold, End: "ok"}) }
	second := func(policy string, r rulePlan) rulePlan {
		r.Scope = "second"
		return under(policy, r)
	}
	first := func(policy string, r rulePlan) rulePlan {
		r.Scope = "first"
		return under(policy, r)
	}
	brief := func(shutdown time.Duration) []procPlan {
		procs := servers(4)
		procs[0].Shutdown = shutdown
		return procs
	}
	otherB := func(t taskPlan) taskPlan { t.B = 1; return t }
	skip, park := first("skip", rulePlan{On: onA}), second("park", rulePlan{On: onA, Starts: 1, Per: 60 * sec})
	onlySkip, onlyPark := skip, park
	onlySkip.Task, onlyPark.Task = "only first", "only second"
	untold := each(32, func(i int) taskPlan { return work(time.Duration(i/2)*sec, 0).key(i / 2) }) // two at once
	all = []plan{
		// The retry comes after the timeout, is in line when the first run ends, and tells of its key before that one does.
		{Name: "a task past its timeout hands its key to its own retry", Procs: servers(20), Latency: 30 * ms,
			Rules: rules("wait", rulePlan{Wait: 40 * sec}),
			Tasks: each(8, func(i int) taskPlan {
				if i >= 4 {
					return work(10*sec, 100*ms).key(i - 4)
				}
				return work(0, 0).key(i).by(5*sec).does(stepPlan{Work: 8500 * ms, End: "ok", Deaf: true}, stepPlan{Work: 20 * sec, End: "ok", Deaf: true},
					stepPlan{End: "ok"})
			})},
		// The second task takes its slot of the first lock before the first one succeeds.
		{Name: "an operator raises the limit of a key with a cooldown", Procs: servers(4),
			Rules: []rulePlan{first("retry", rulePlan{On: onA, Cooldown: 5 * sec}), second("wait", rulePlan{})},
			Tasks: tasks(work(4*sec, 3*sec), work(5*sec, 100*ms)),
			Ops:   []opPlan{{At: 100 * ms, Kind: "limit", Limit: 2}, {At: 20 * sec, Kind: "no limit"}}},
		// From the first task on the Guard knows that Redis is away.
		{Name: "the last attempt asks again long after Redis refused", Procs: servers(20), Rules: rules("retry", rulePlan{TTL: sec}),
			Tasks:  slices.Concat(tasks(work(1500*ms, 0).key(99)), manyKeys(work(12*sec, 0).tries(0)), manyKeys(work(14500*ms, 0))),
			Faults: []faultPlan{{Kind: misconf, Client: "lock", At: sec, For: 12 * sec}}},

		// Something takes longer than the oracle thought. Here the order takes longer than the first exchange after the pause,
		// and orders end when no more tasks are to come.
		{Name: "a pause ends by itself after an order that took long", Procs: servers(20), Latency: 100 * ms, Rules: rules("park", rulePlan{}),
			Tasks: append(manyKeys(work(5*sec, 0).tries(0)), work(20*sec, 0)), Ops: []opPlan{{At: sec, Kind: "halt", For: 10 * sec, Whole: true}}},
		// Nobody releases the lease of the process.
		{Name: "a process exits while a handler runs, and another task waits", Procs: brief(sec), Rules: rules("wait", rulePlan{TTL: 30 * sec, Wait: 40 * sec}),
			Tasks: tasks(work(0, 20*sec).deaf(), work(9*sec, 100*ms)), Faults: []faultPlan{{Kind: stops, At: 2 * sec}, {Kind: starts, At: 8 * sec}}},
		{Name: "the deadline passes between a success and the release", Procs: servers(20), Latency: 100 * ms, Rules: rules("wait", rulePlan{}),
			Tasks: manyKeys(work(0, 4800*ms).by(5 * sec))},
		{Name: "a handler succeeds in the moment of its deadline, on the last attempt", Procs: servers(20), Rules: rules("after", rulePlan{}),
			Tasks: manyKeys(work(0, 5*sec).by(5 * sec).tries(0))},
		// Nobody renews the lease any more.
		{Name: "Close gives up while a handler runs, and asynq stops later", Procs: brief(2 * sec), Rules: rules("park", rulePlan{TTL: 3 * sec}),
			Tasks:  tasks(work(0, 20*sec).deaf()),
			Faults: []faultPlan{{Kind: stops, At: 2 * sec}, {Kind: hung, Client: "asynq", At: 3 * sec, For: 15 * sec}}},

		// Tasks run, wait or are parked beside others like them.
		{Name: "a newer task waits for its first lock, an older one does too", Procs: servers(4),
			Rules: []rulePlan{
				first("replace", rulePlan{Limit: 3, TTL: 10 * sec, Wait: 40 * sec, Starts: 1, Per: 9 * sec}), second("replace", rulePlan{TTL: 10 * sec}),
			},
			Tasks: work(0, 0).every(sec, 3)},
		// The first one has the second key until the retry comes.
		{Name: "a retry is allowed to run with another key than its earlier attempt", Procs: servers(4),
			Rules: []rulePlan{first("allow", rulePlan{On: onA, Limit: 2}), second("allow", rulePlan{On: onB})},
			Tasks: tasks(work(0, 3*sec).key(1), work(sec, 20*sec).deaf().by(4*sec))},
		// The older one waits in its worker, for the second time.
		{Name: "a newer task asks an older one that is between two waits, and leaves", Procs: servers(50), Latency: 100 * ms,
			Rules: rules("replace", rulePlan{Starts: 1, Per: 20 * sec, Burst: 1, Wait: 8 * sec}),
			Tasks: slices.Concat(manyKeys(work(0, 0)), manyKeys(work(5*sec, 0).tries(0)), manyKeys(work(5400*ms, 0)))},
		// Both wait in their workers for the second key, which is held.
		{Name: "a newer task comes when an older one has lost its first lock to MaxHold", Procs: servers(4),
			Rules: []rulePlan{first("replace", rulePlan{On: onA, TTL: 3 * sec, Wait: 10 * sec, MaxHold: 2 * sec}), second("park", rulePlan{TTL: 10 * sec})},
			Tasks: tasks(held(0, 12*sec).key(1), work(sec, 0).tries(0).by(20*sec), work(4*sec, 0).tries(0))},
		// The gate is closed for half a minute after all tasks have ended.
		{Name: "a parked task is skipped by another rule, and its place is behind a closed gate", Procs: servers(4),
			Rules: []rulePlan{skip, park, onlySkip, onlyPark},
			Tasks: tasks(work(sec, 0).by(4*sec), work(0, 25*sec).typed("only second"), work(4*sec, 22*sec).typed("only first"))},

		// Which starts a rate counts.
		{Name: "a task is refused by a rate before the one that started tells of it", Procs: servers(4), Latency: 30 * ms,
			Rules: rules("skip", rulePlan{Limit: 2, Starts: 1, Per: 20 * sec, Burst: 1}), Tasks: untold},
		// The second key is held at first; nobody has that of the last three.
		{Name: "tasks lose a lock with a rate to MaxHold while they wait for their next one", Procs: servers(20),
			Rules: []rulePlan{
				first("retry", rulePlan{On: onA, TTL: sec, Wait: 10 * sec, MaxHold: 1500 * ms, Starts: 1, Per: 20 * sec, Burst: 5}),
				second("retry", rulePlan{On: onB, Wait: 10 * sec}),
			},
			Tasks: slices.Concat(tasks(held(0, 9*sec).key(1)), work(sec, 0).every(100*ms, 3), otherB(work(12*sec, 0)).every(500*ms, 3))},

		// What an operator does. By the time of the last two orders the operator has no connection left, and gets none. The first
		// task waits in its worker until the pause ends.
		{Name: "an operator resumes a lock while Redis stands still, which fails", Procs: servers(4), Rules: rules("wait", rulePlan{}),
			Tasks:  tasks(work(25*sec, 0).tries(0), work(70*sec, 0).key(1)),
			Faults: []faultPlan{{Kind: frozen, Client: "lock", At: 10 * sec, For: 12 * sec}},
			Ops: []opPlan{
				{At: sec, Kind: "halt", Whole: true}, {At: 14500 * ms, Kind: "halt", For: 5 * sec, Whole: true}, {At: 15 * sec, Kind: "resume"},
			}},
		// No next one begins while the queue is paused.
		{Name: "an operator deletes a task of package unique whose ID the next one has just got", Procs: servers(20), Latency: 100 * ms,
			Rules: rules("retry", rulePlan{}), Unique: []uniquePlan{{Task: "t", On: onA, Until: "done", Duplicate: "reject"}},
			Tasks: append(manyKeys(work(0, 0)), manyKeys(work(5*sec, 0))...), Ops: pausedDeletions()},
		// A task has another number of attempts than its plan says: both are due at the same whole second, so the last one keeps that.
		{Name: "a task of package unique gives its payload to one with fewer attempts", Procs: servers(4), Rules: rules("fail", rulePlan{}),
			Unique: []uniquePlan{{Task: "t", On: onA, Until: "start", Duplicate: "postpone", Delay: 1500 * ms}},
			Tasks:  tasks(work(0, 30*sec), work(6050*ms, 0).tries(1), work(6150*ms, 0))},
	}
	for limit := 1; limit <= 2; limit++ { // which successes begin a cooldown: with a limit it counts from the release
		all = append(all, plan{
			Name:  fmt.Sprintf("a success loses its lock with a cooldown to MaxHold before its release, limit %d", limit),
			Procs: servers(20), Latency: 100 * ms, // the second lock is released first
			Rules: []rulePlan{first("retry", rulePlan{On: onA, Limit: limit, MaxHold: 1500 * ms, Cooldown: 8 * sec}), second("retry", rulePlan{On: onA})},
			Tasks: append(manyKeys(work(0, 1150*ms)), manyKeys(work(3*sec, 0))...),
		})
	}
	for nth := 24; nth <= 35; nth++ { // the commands about the wake are among these
		all = append(all, plan{
			Name:  fmt.Sprintf("command %d, of those that wake a parked task, arrives late, when the task is archived", nth),
			Procs: servers(2), Rules: rules("park", rulePlan{}), Faults: []faultPlan{{Kind: late, Client: "lock", Nth: nth, For: 30 * sec}},
			Tasks: tasks(work(0, 2*sec), work(500*ms, 0).tries(1).does(stepPlan{End: "fail"}), taskPlan{At: 60 * sec, Task: "plain"}),
		})
	}
	return all
}

func pausedDeletions() []opPlan {
	ops := []opPlan{{At: 4 * sec, Kind: "pause"}, {At: 9 * sec, Kind: "unpause"}}
	for a := range 16 {
		ops = append(ops, opPlan{At: 5*sec + time.Duration(a)*5*ms, Kind: "delete", Task: a})
	}
	return ops
}

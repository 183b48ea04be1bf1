package simulate

import (
	"fmt"
	"slices"
	"time"
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

func rules(policy string, r rulePlan) []rulePlan {
	r.On = onA
	return []rulePlan{under(policy, r)}
}

var onA, onB = []string{"a"}, []string{"b"}

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

func archives(at time.Duration) taskPlan { return work(at, 200*ms, "fail").tries(0) }

// comesBack is a task that asks to come back a minute after its first run.
func comesBack(at time.Duration) taskPlan {
	return work(at, 0).does(stepPlan{Work: 200 * ms, End: "later", Later: time.Minute},
		stepPlan{Work: 200 * ms, End: "ok"})
}

func (t taskPlan) key(a int) taskPlan                { t.A = a; return t }
func (t taskPlan) tries(maxRetry int) taskPlan       { t.MaxRetry = maxRetry; return t }
func (t taskPlan) by(timeout time.Duration) taskPlan { t.Timeout = timeout; return t }
func (t taskPlan) typed(name string) taskPlan        { t.Task = name; return t }
func (t taskPlan) does(steps ...stepPlan) taskPlan   { t.Steps = steps; return t }
func (t taskPlan) kept() taskPlan                    { t.Keep = true; return t }
func (t taskPlan) named(as int) taskPlan             { t.As = as + 1; return t }
func (t taskPlan) within(d time.Duration) taskPlan   { t.Within = d; return t }

func each(n int, task func(i int) taskPlan) (tasks []taskPlan) {
	for i := range n {
		tasks = append(tasks, task(i))
	}
	return tasks
}

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

// scenarios are what the faults are put upon, one at each command.
func scenarios() []plan {
	return slices.Concat(orderedScenarios(), lateScenarios(), policyScenarios(), newestScenarios(), backlogScenarios(25),
		lendScenarios(8),
		leaseScenarios(), gateScenarios(), uniqueScenarios(), twoKeyScenarios())
}

// twoKeyScenarios are about what comes to a key while its task comes to, or waits for, its other one.
func twoKeyScenarios() (all []plan) {
	closes := func(at, hold time.Duration) taskPlan {
		return work(at, 0).does(stepPlan{Work: 700 * ms, Hold: hold, End: "ok"})
	}
	add := func(name, policy string, first, second rulePlan, all2 []taskPlan, ops ...opPlan) {
		first.Scope, second.Scope, first.Limit, second.Limit = "first", "second", max(first.Limit, 1), max(second.Limit, 1)
		first, second = under(policy, first), under(policy, second)
		if policy == "wait" {
			first.Wait, second.Wait = 20*sec, 20*sec
		}
		one, two := first, second
		one.Task, two.Task, one.Policy, two.Policy = "one", "two", "park", "park"
		all = append(all, plan{Name: "two keys, " + name + ", " + policy, Procs: servers(6),
			Rules: []rulePlan{first, second, one, two}, Tasks: all2, Ops: ops})
	}
	last := work(300*ms, 100*ms).by(20 * sec).tries(0)
	for _, policy := range []string{"park", "wait", "replace", "allow"} {
		t, holds := work(300*ms, 100*ms), work(0, 3*sec).typed("two")
		add("the first is put on hold", policy, rulePlan{Limit: 2}, rulePlan{},
			tasks(holds, closes(100*ms, 6*sec).typed("one"), t))
		add("the first is paused", policy, rulePlan{}, rulePlan{},
			tasks(work(0, 6*sec).typed("two"), t, work(20*sec, 0).typed("two")), // which keeps the order in force
			opPlan{At: sec, Kind: "halt", Task: 1, For: 12 * sec})
		add("the first cools down", policy, rulePlan{Limit: 2, Cooldown: 6 * sec}, rulePlan{},
			tasks(holds, work(100*ms, 700*ms).typed("one"), t))
		add("the second is put on hold", policy, rulePlan{}, rulePlan{Limit: 2},
			tasks(holds, closes(100*ms, 9*sec).typed("two"), t, last, work(2*sec, 100*ms).typed("one")))
		add("the second is on hold", policy, rulePlan{}, rulePlan{},
			tasks(closes(0, 6*sec).typed("two"), work(2*sec, 100*ms), last.key(1)))
		add("MaxHold", policy, rulePlan{MaxHold: sec}, rulePlan{}, tasks(holds, t))
	}
	for _, policy := range []string{"skip", "archive", "fail", "allow", "after"} {
		add("a last attempt", policy, rulePlan{}, rulePlan{}, tasks(work(0, 15*sec).typed("two"),
			closes(0, 3*sec).typed("one"), work(sec, 100*ms).by(40*sec).tries(0)))
	}
	// Those behind a task in order do not start, though it has given its lock back.
	add("in order", "park", rulePlan{InOrder: true}, rulePlan{Limit: 2}, tasks(work(0, 3*sec).typed("two"),
		closes(100*ms, 9*sec).typed("two"), work(300*ms, 100*ms), work(400*ms, 100*ms)))
	return all
}

// orderedScenarios are those about tasks in order.
func orderedScenarios() []plan {
	three := func(first taskPlan) []taskPlan { return tasks(first, work(50*ms, 200*ms), work(100*ms, 200*ms)) }
	full, plain := inOrder("hold"), work(50*ms, 200*ms)
	full[0].MaxQueued, plain.Plain = 2, true
	all := []plan{
		{Name: "a failure",
			Tasks: tasks(work(0, 600*ms), work(50*ms, 200*ms, "fail"), work(100*ms, 200*ms), work(2*sec, 200*ms))},
		{Name: "archived, continue", Rules: inOrder("continue"),
			Tasks: tasks(archives(0), work(50*ms, 200*ms, "panic", "panic").tries(1), work(100*ms, 200*ms, "skip"),
				work(150*ms, 200*ms))},
		{Name: "archived, hold, skipped", Tasks: three(archives(0)), Ops: []opPlan{{At: 4 * sec, Kind: "skip"}}},
		{Name: "archived, hold, run", Tasks: three(archives(0)), Ops: []opPlan{{At: 4 * sec, Kind: "run"}}},
		{Name: "the head is deleted", Tasks: three(comesBack(0)), Ops: []opPlan{{At: 2 * sec, Kind: "delete"}}},
		{Name: "its server dies", Rules: inOrder("continue"),
			Tasks:  tasks(work(0, 3*sec).tries(1), work(50*ms, 200*ms).tries(0), work(100*ms, 200*ms), work(8*sec, 200*ms)),
			Faults: []faultPlan{{Kind: dies, At: 1500 * ms}, {Kind: starts, At: 20 * sec}}},
		{Name: "full", Procs: servers(4), Rules: full, Tasks: append(three(work(0, sec)), work(12*sec, 200*ms))},
		{Name: "plain tasks among them", Tasks: tasks(work(0, sec), plain, work(100*ms, 200*ms), work(150*ms, 200*ms))},
		{Name: "archived by hand, hold", Procs: servers(4), Tasks: goesOn(three(comesBack(0))...),
			Ops: []opPlan{{At: 2 * sec, Kind: "archive"}}},
		{Name: "archived by hand, continue", Procs: servers(4), Rules: inOrder("continue"),
			Tasks: goesOn(three(comesBack(0))...),
			Ops:   []opPlan{{At: 2 * sec, Kind: "archive"}}},
		{Name: "run again while retained",
			Tasks: tasks(work(0, 200*ms).kept(), work(50*ms, 200*ms), work(4*sec, 200*ms), work(5*sec, 200*ms)),
			Ops:   []opPlan{{At: 3500 * ms, Kind: "run"}}},
		{Name: "a head that comes back is skipped", Tasks: three(comesBack(0)), Ops: []opPlan{{At: 2 * sec, Kind: "skip"}}},
		// What costs five seconds is confirmed.
		{Name: "a slow producer", Procs: servers(4),
			Tasks:  tasks(work(0, 200*ms), work(12*sec, 200*ms), work(13*sec, 200*ms)),
			Faults: []faultPlan{{Kind: swallowed, Proc: -1, Client: "asynq", Nth: 1}}},
	}
	all = inOrderAll(all)
	// These have mistakes of their own planted, and faults at each command too.
	for _, p := range mistakeScenarios() {
		if p.Name == "in order, its ID is taken" || p.Name == "in order, a producer has died in the middle" {
			all = append(all, p)
		}
	}
	return all
}

// mistakeScenarios are worlds in order, in each of which one mistake of a protocol shows.
func mistakeScenarios() []plan {
	few := inOrder("hold")
	few[0].MaxQueued = 3
	all := []plan{
		// A head that does not come: it comes later, is archived, or was done.
		{Name: "it comes back in a minute", Tasks: tasks(comesBack(0), work(50*ms, 200*ms), work(100*ms, 200*ms))},
		{Name: "held, and deleted", Tasks: goesOn(archives(0), work(50*ms, 200*ms),
			work(100*ms, 200*ms)),
			Ops: []opPlan{{At: 6 * sec, Kind: "delete"}}},
		// The command that enqueues it is executed, and has no reply: its Enqueue takes five seconds.
		{Name: "held before its Enqueue has returned", Tasks: goesOn(archives(0), work(6*sec, 200*ms)),
			Faults: []faultPlan{{Kind: swallowed, Proc: -1, Client: "asynq", Nth: 3}},
			Ops:    []opPlan{{At: 7 * sec, Kind: "delete"}}},
		// The second one is stamped, and not enqueued.
		{Name: "a producer has died in the middle", Rules: few,
			Tasks:  goesOn(comesBack(0), work(500*ms, 200*ms), work(2*sec, 200*ms), work(15*sec, 200*ms)),
			Faults: []faultPlan{{Kind: refused, Proc: -1, Client: "asynq", Nth: 4}},
			Ops:    []opPlan{{At: sec, Kind: "pause"}, {At: 20 * sec, Kind: "unpause"}}},
		{Name: "done, and its release is lost", Procs: servers(4), Tasks: tasks(work(0, 600*ms).kept(), work(11*sec, 200*ms),
			work(12*sec, 200*ms)),
			Faults: []faultPlan{{Kind: hung, Client: "lock", At: 400 * ms, For: 9 * sec}, {Kind: dies, At: 9 * sec},
				{Kind: starts, At: 10 * sec}}},

		// asynq brings the task again after a minute.
		{Name: "its last attempt is killed, and it is skipped", Procs: servers(4),
			Tasks:  tasks(work(0, 3*sec).tries(0), work(50*ms, 200*ms)),
			Faults: []faultPlan{{Kind: dies, At: 1500 * ms}, {Kind: starts, At: 9 * sec}},
			Ops:    []opPlan{{At: 10 * sec, Kind: "skip"}}},

		// Two tasks with one ID.
		{Name: "its ID is used again", Procs: servers(4), Tasks: tasks(work(0, 200*ms), work(3*sec, 200*ms).named(0),
			work(3500*ms, 200*ms))},
		{Name: "its ID is taken, and it lands late", Procs: servers(4),
			Tasks:  tasks(comesBack(0), work(sec, 200*ms).named(0), work(2*sec, 200*ms)),
			Faults: []faultPlan{{Kind: late, Proc: -1, Client: "asynq", Nth: 3, For: 8 * sec}}},
		{Name: "its ID is taken", Procs: servers(4), Tasks: tasks(comesBack(0), work(sec, 200*ms).named(0),
			work(2*sec, 200*ms))},
		{Name: "deleted, and its ID is used again", Procs: servers(4),
			Tasks: tasks(comesBack(0), work(100*ms, 200*ms), work(3*sec, 200*ms).named(0)),
			Ops:   []opPlan{{At: 2 * sec, Kind: "delete"}}},
	}
	// An Enqueue that takes more than ten seconds, five for each of these commands: others take its stamp for a dead
	// producer's. When it has returned, the third task is enqueued.
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
			Faults: []faultPlan{{Kind: swallowed, Proc: -1, Client: "asynq", Nth: 1},
				{Kind: swallowed, Proc: -1, Client: "asynq", Nth: 5},
				{Kind: late, Proc: -1, Client: "asynq", Nth: 7, For: 20 * sec}, slow.faultPlan},
			Ops: []opPlan{{At: 14800 * ms, Kind: "pause"}, {At: 18 * sec, Kind: "unpause"}}})
	}
	return inOrderAll(all)
}

// inOrderAll has plans be about tasks in order. Where a plan does not say otherwise there are two servers, and an
// archived task holds its key.
func inOrderAll(all []plan) []plan {
	for i := range all {
		p := &all[i]
		p.Name = "in order, " + p.Name
		if p.Procs == nil {
			p.Procs = servers(4, 4)
		}
		if p.Rules == nil {
			p.Rules = inOrder("hold")
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

// backlogScenarios are those in which a task comes behind a backlog of another key, of so many short tasks.
func backlogScenarios(short int) (all []plan) {
	behind := func(backlog []taskPlan) []taskPlan {
		return append(backlog, work(200*ms, 100*ms).key(9).within(700*ms), work(900*ms, 100*ms).key(8).within(700*ms))
	}
	for _, policy := range []string{"park", "wait"} {
		all = append(all,
			plan{Name: "behind a backlog of short tasks, " + policy, Procs: servers(3), Rules: rules(policy, rulePlan{}),
				Tasks: behind(work(0, 10*ms).every(0, short))},
			plan{Name: "behind a backlog of a held key, " + policy, Procs: servers(3), Rules: rules(policy, rulePlan{}),
				Tasks: behind(append(tasks(work(0, 4*sec)), work(100*ms, 10*ms).every(0, 15)...))})
	}
	// Others are parked when it is noted, and those that come after it begin while its Enqueue is under way. Once it is
	// there it comes before them, and not when asynq brings it back.
	slow := work(1100*ms, 20*ms).within(4200 * ms)
	slow.Slow = 2 * sec
	wave := append(work(400*ms, 20*ms).every(0, 7), work(0, 2*sec), slow, work(1200*ms, 300*ms).within(7*sec))
	wave = append(wave, wave[9].every(0, 9)...)
	return append(all, plan{Name: "parked when it was enqueued", Procs: servers(2, 2), Rules: rules("park", rulePlan{}),
		Clients: true, Tasks: wave}, plan{Name: "behind five backlogs", Procs: servers(4, 4),
		Rules: rules("park", rulePlan{}),
		Tasks: behind(each(40, func(i int) taskPlan { return work(0, 150*ms).key(i % 5) }))})
}

// lendScenarios are those in which keys borrow workers: a backlog of n alone, and beside another key.
func lendScenarios(n int) (all []plan) {
	lends := rules("park", rulePlan{Limit: 1, LeaveIdle: 2})
	for _, procs := range [][]procPlan{servers(6), servers(4, 4)} {
		ideal := time.Duration(n) * 600 * ms / 4 // four workers are lent
		a := work(0, 600*ms).within(ideal*3/2+2*sec).every(0, n)
		b := work(sec, 100*ms).key(9).within(700*ms).every(0, 1)
		all = append(all, plan{Name: fmt.Sprint("lends to one, ", len(procs)), Procs: procs, Rules: lends, Tasks: a},
			plan{Name: fmt.Sprint("lends beside another, ", len(procs)), Procs: procs, Rules: lends,
				Tasks: append(b, work(0, 600*ms).every(0, n)...)})
	}
	return append(all, plan{Name: "lends to who comes later", Procs: servers(12), Rules: lends,
		Tasks: append(work(0, 2*sec).every(0, 2*n), work(sec, 2*sec).key(1).every(0, n)...), Even: n > 20})
}

// newestScenarios are the ways of six tasks of a key under Replace to come back, in any order.
func newestScenarios() (all []plan) {
	for i, limit := range []int{1, 2} {
		replace := under("replace", rulePlan{Scope: "second", On: onA, Limit: limit, Wait: 2 * sec})
		first := under([]string{"park", "retry"}[i], rulePlan{Scope: "first"})
		other := first
		other.Task = "other"
		cools, loses := replace, replace
		cools.Cooldown, loses.MaxHold, loses.TTL = 4*sec, 500*ms, sec
		slow := work(0, 0).tries(9).does(stepPlan{Work: 8 * sec, End: "fail", Deaf: true}, stepPlan{Work: 30 * ms, End: "ok"})
		six := work(2500*ms, 30*ms).tries(9).every(50*ms, 6)
		for i := range six {
			six[i].At += time.Duration(i) * 50 * ms
		}
		six[5] = six[5].does(stepPlan{Work: 30 * ms, End: []string{"ok", "skip"}[i]})
		begin := func(one taskPlan) []taskPlan { one.At = 2 * sec; return append(tasks(one), six...) }
		for _, p := range []plan{
			{Name: "a pause", Ops: []opPlan{{At: 0, Kind: "halt", For: 5 * sec}}, Tasks: six},
			{Name: "a gate", Tasks: begin(slow.does(stepPlan{Hold: 4 * sec, End: "ok"}))},
			{Name: "a cooldown", Rules: []rulePlan{cools}, Tasks: begin(work(0, 0))},
			{Name: "another key", Rules: []rulePlan{first, replace, other}, Tasks: begin(work(0, 3*sec).typed("other"))},
			{Name: "a slow stop", Tasks: begin(slow),
				Faults: []faultPlan{{Kind: stops, At: 4 * sec}, {Kind: starts, At: 9 * sec}}},
			{Name: "a killed worker", Tasks: begin(slow), Faults: []faultPlan{{Kind: dies, At: 2300 * ms}}},
			{Name: "a lost lease", Rules: []rulePlan{loses}, Tasks: begin(slow)},
			{Name: "a failure", Tasks: begin(work(0, 30*ms, "fail", "fail"))},
			{Name: "RetryAfter", Tasks: begin(comesBack(0))},
			{Name: "RetryAfter on the last attempt", Tasks: begin(comesBack(0).tries(0).by(5 * time.Minute))},
		} {
			if p.Procs = servers(5, 5); p.Rules == nil {
				p.Rules = []rulePlan{replace}
			}
			p.Name = fmt.Sprintf("newest %d, %s", limit, p.Name)
			all = append(all, p)
		}
	}
	return all
}

// leaseScenarios are those about leases: their length, their limits, their renewal.
func leaseScenarios() (all []plan) {
	for i, name := range []string{"", "limit 2, "} {
		for _, policy := range []string{"retry", "wait", "park"} {
			deaf := work(0, 0).tries(3).by(2*sec).does(stepPlan{Work: 6 * sec, End: "ok", Deaf: true},
				stepPlan{Work: 100 * ms, End: "ok"})
			all = append(all, plan{Name: "ignored timeout, " + name + policy, Procs: servers(4),
				Rules: rules(policy, rulePlan{Limit: i + 1}),
				Tasks: tasks(deaf, work(500*ms, 200*ms))})
		}
	}
	for _, policy := range []string{"skip", "park", "wait"} {
		all = append(all, plan{Name: "cooldown, " + policy, Procs: servers(4),
			Rules: rules(policy, rulePlan{Cooldown: 5 * sec}),
			Tasks: tasks(work(0, 500*ms), work(2*sec, 200*ms), work(7*sec, 200*ms, "fail"), work(20*sec, 200*ms))})
	}
	three := []rulePlan{
		under("wait", rulePlan{Scope: "one", On: onA}), under("park", rulePlan{Scope: "two", On: onB}),
		under("retry", rulePlan{Scope: "three", Limit: 2}),
	}
	return append(all,
		plan{Name: "renewals", Procs: servers(1, 1), Rules: rules("wait", rulePlan{TTL: 3 * sec, Wait: 20 * sec}),
			Tasks: tasks(work(0, 8*sec), work(sec, 5*sec))},
		plan{Name: "a lease granted by a release", Procs: servers(4),
			Rules: rules("wait", rulePlan{TTL: 30 * sec, Wait: 20 * sec}),
			Tasks: tasks(work(0, sec), work(300*ms, 8*sec))},
		plan{Name: "MaxHold", Procs: servers(4), Rules: rules("wait", rulePlan{MaxHold: 1500 * ms, TTL: 2 * sec}),
			Tasks: tasks(work(0, 0).does(stepPlan{Work: 3 * sec, End: "fail"}, stepPlan{Work: 100 * ms, End: "ok"}),
				work(300*ms, 500*ms))},
		plan{Name: "three rules", Procs: servers(4, 4), Rules: three, Tasks: each(6, func(i int) taskPlan {
			t := work(time.Duration(i)*100*ms, 400*ms).key(i % 2)
			t.B = i % 3
			return t
		})},
		plan{Name: "failing and panicking handlers", Procs: servers(4), Rules: rules("wait", rulePlan{}),
			Tasks: tasks(work(0, 500*ms, "fail", "panic"), work(200*ms, 200*ms, "soft"), work(300*ms, 200*ms, "skip"),
				work(400*ms, 200*ms, "revoke"))},
		plan{Name: "replace, many in a row", Procs: servers(4), Rules: rules("replace", rulePlan{}),
			Tasks: work(0, 900*ms).every(250*ms, 5)},
		plan{Name: "park, many on one key", Procs: servers(2), Rules: rules("park", rulePlan{}),
			Tasks: work(0, 400*ms).every(50*ms, 7)},
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
			plan{Name: "rate, " + policy, Procs: servers(4, 4), Rules: rules(policy,
				rulePlan{Starts: 1, Per: 1500 * ms, Burst: burst}),
				Tasks: work(0, 100*ms).every(200*ms, n)},
			plan{Name: "cost, " + policy, Procs: servers(4, 4), Rules: rules(policy,
				rulePlan{Starts: 1, Per: 700 * ms, Burst: burst, Dear: true}), Tasks: work(0, 300*ms).every(200*ms, n+2)},
			plan{Name: "hold, " + policy, Procs: servers(4), Rules: rules(policy, rulePlan{Limit: 2}), Tasks: held})
	}
	for _, policy := range []string{"wait", "park"} {
		pace := opPlan{At: sec, Kind: "pace", Pace: &rulePlan{Starts: 2, Per: sec, Burst: 2}}
		all = append(all, plan{Name: "pace, " + policy, Procs: servers(4, 4), Rules: rules(policy, rulePlan{}),
			Tasks: work(0, 50*ms).every(200*ms, 30), Ops: []opPlan{pace, {At: 9 * sec, Kind: "no pace"}}})
	}
	return all
}

// uniqueScenarios are the ways to enqueue once.
func uniqueScenarios() (all []plan) {
	for _, until := range []string{"done", "start", "for"} {
		for _, duplicate := range []string{"reject", "join", "replace", "postpone"} {
			all = append(all, plan{Name: "unique until " + until + ", " + duplicate, Procs: servers(4),
				Rules:  rules("wait", rulePlan{}),
				Unique: []uniquePlan{{Task: "t", On: onA, Until: until, Window: 3 * sec, Duplicate: duplicate, Delay: sec}},
				Tasks: tasks(work(0, 1500*ms), work(700*ms, 200*ms), work(900*ms, 200*ms), work(1100*ms, 200*ms),
					work(8*sec, 200*ms),
					work(8100*ms, 200*ms))})
		}
	}
	slow := servers(4)
	slow[0].Forward = 5 * sec
	return append(all, plan{Name: "unique, replace of a task that has run", Procs: slow, Rules: rules("retry", rulePlan{}),
		Unique: []uniquePlan{{Task: "t", On: onA, Until: "done", Duplicate: "replace"}},
		Tasks:  tasks(work(0, 200*ms, "soft"), work(900*ms, 200*ms))})
}

// faultScenarios are about one fault each.
func faultScenarios() (all []plan) {
	for _, policy := range []string{"wait", "replace", "retry"} {
		last := work(300*ms, 100*ms).tries(0)
		if policy == "replace" {
			last.At = sec // Redis refuses already: before, it replaces the holder at once
		}
		all = append(all, plan{Name: "the last attempt waits, Redis refuses, the server stops, " + policy,
			Procs: servers(4, 4),
			Rules: rules(policy, rulePlan{}), Tasks: tasks(work(0, 12*sec), last),
			Faults: []faultPlan{
				{Kind: misconf, Proc: 0, Client: "lock", At: 800 * ms, For: 8 * sec},
				{Kind: misconf, Proc: 1, Client: "lock", At: 800 * ms, For: 8 * sec},
				{Kind: stops, Proc: 0, At: 1500 * ms}, {Kind: stops, Proc: 1, At: 1500 * ms}, {Kind: starts, Proc: 0, At: 20 * sec},
			}})
	}
	all = append(all, plan{Name: "cooldown, no memory", Procs: servers(4),
		Rules: rules("retry", rulePlan{TTL: sec, Cooldown: 20 * sec}),
		Tasks: tasks(work(0, sec), work(9*sec, 0)), Faults: []faultPlan{{Kind: outOfMemory, Client: "lock", At: 700 * ms,
			For: 8 * sec}}})
	slower, most := servers(2, 1), servers(1000, 3)
	slower[1].Poll, most[1].Poll = 900*ms, 900*ms
	park := under("park", rulePlan{Scope: "second"})
	other := park
	other.Task = "other"
	made := taskPlan{At: -1, Task: "plain", MaxRetry: 3, Aggregated: true}
	grouped := tasks(work(0, 200*ms), work(300*ms, 200*ms), work(12*sec, 200*ms), made, made)
	for i := range 3 {
		grouped[i].Group = "g0"
	}
	once := func(name, duplicate string, of []taskPlan, by ...faultPlan) plan {
		return plan{Name: name, Procs: servers(4), Rules: rules("retry", rulePlan{}), Tasks: of,
			Groups: &groupPlan{Grace: sec},
			Unique: []uniquePlan{{Task: "t", On: onA, Until: "start", Duplicate: duplicate}}, Faults: by}
	}
	suspends := plan{Name: "a holder is suspended", Procs: servers(4, 4), Rules: rules("wait", rulePlan{})}
	for i := range 8 { // which process gets a task is not known
		at := time.Duration(i) * 40 * sec
		suspends.Tasks = append(suspends.Tasks, work(at, 3*sec), work(at+2*sec, 200*ms))
		suspends.Faults = append(suspends.Faults, faultPlan{Kind: suspended, Proc: i % 2, At: at + sec, For: 15 * sec})
	}
	return append(append(all, twoKeyScenarios()...), suspends,
		plan{Name: "the renewals of a leader hang", Procs: servers(4, 4), Lead: 100 * sec, Rules: rules("park", rulePlan{}),
			Tasks: tasks(work(60*sec, 200*ms)),
			Faults: []faultPlan{
				{Kind: hung, Proc: 0, Client: leadClient, At: 3 * sec, For: 15 * sec},
				{Kind: hung, Proc: 1, Client: leadClient, At: 30 * sec, For: 15 * sec},
			}},
		once("a task that was aggregated blocks its key no more", "reject", grouped),
		once("a failed aggregation", "join", goesOn(grouped[0], made),
			faultPlan{Kind: noPerm, Client: "asynq", Saying: "ZSCORE"}),
		once("a failed Enqueue is aggregated", "replace", goesOn(grouped[0], grouped[1], made),
			faultPlan{Kind: refused, Proc: -1, Client: "lock", Saying: "ended"}),
		// Each process in turn goes on with the old master, and many want one key.
		plan{Name: "a split brain", Procs: servers(4, 4), Rules: rules("wait", rulePlan{Wait: 20 * sec}),
			Tasks: each(50, func(i int) taskPlan {
				return work(time.Duration(i)*800*ms, []time.Duration{300 * ms, 2500 * ms}[i%2])
			}),
			Faults: []faultPlan{
				{Kind: split, Proc: 0, Client: "lock", At: 4 * sec, For: 25 * sec, Lag: 500 * ms},
				{Kind: split, Proc: 1, Client: "lock", At: 50 * sec, For: 25 * sec, Lag: 500 * ms},
			}},
		plan{Name: "park does not eat a tasks own time", Procs: servers(20), Rules: rules("park", rulePlan{}),
			Tasks: work(0, 3500*ms).by(10*sec).tries(25).every(0, 8)},
		// The grant comes between 1.2 and 1.5 s.
		plan{Name: "Redis stands still after a grant", Procs: servers(4),
			Rules: rules("wait", rulePlan{TTL: 30 * sec, Wait: 20 * sec}),
			Tasks: tasks(work(0, 1200*ms), work(100*ms, 8*sec)), Faults: []faultPlan{{Kind: frozen, Client: "lock",
				At: 1800 * ms, For: 4 * sec}}},
		// Process 0 polls sooner, and renews two leases at once.
		plan{Name: "new connections are refused while a lease is held", Procs: slower,
			Rules:  rules("wait", rulePlan{TTL: 3 * sec, Wait: 30 * sec}),
			Tasks:  tasks(work(100*ms, 12*sec), work(100*ms, 12*sec).key(1), work(500*ms, 3*sec)),
			Faults: []faultPlan{{Kind: setup, Client: "lock", At: 1500 * ms, For: 10 * sec}}},
		plan{Name: "a key function that fails for a while", Procs: servers(4), Rules: rules("retry", rulePlan{KeyFails: 2}),
			Tasks: work(0, 100*ms).every(100*ms, 2)},
		// The last in line are with the second process, which lives.
		plan{Name: "many waiters die", Procs: most, Rules: rules("wait", rulePlan{Wait: 5 * time.Minute, TTL: 2 * sec}),
			Tasks:  append(work(100*ms, 0).every(0, 1000), work(0, 2*sec), work(1500*ms, 100*ms)),
			Faults: []faultPlan{{Kind: dies, At: 1900 * ms}}},
		plan{Name: "replaced while it waits for its second lock", Procs: servers(4),
			Rules: []rulePlan{under("replace", rulePlan{Scope: "first", On: onA}), park, other},
			Tasks: tasks(work(0, 20*sec).typed("other"), work(500*ms, 100*ms), work(1500*ms, 100*ms))})
}

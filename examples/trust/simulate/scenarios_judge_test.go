package simulate

import (
	"fmt"
	"slices"
	"time"
)

// judgeScenarios are worlds that keep all promises, and in which the oracle once saw a
// promise broken. They are played as they are.
func judgeScenarios() []*plan {
	overdue := scenario("a task past its timeout hands its key to its own retry", 1, func(p *plan) {
		p.Latency = 30 * ms // so that the retry may tell of its key before the earlier attempt does
		p.Procs[0].Workers = 20
		r := rule("wait")
		r.Wait = 40 * time.Second
		p.Rules = []rulePlan{r}
		for a := range 4 {
			// The retry comes after the timeout, and is in line when the first run ends.
			deaf := work(0, 0)
			deaf.A, deaf.Timeout = a, 5*time.Second
			deaf.Steps = []stepPlan{{Work: 8500 * ms, End: "ok", Deaf: true}, {Work: 20 * time.Second, End: "ok", Deaf: true}, {End: "ok"}}
			other := work(10*time.Second, 100*ms)
			other.A = a
			p.Tasks = append(p.Tasks, deaf, other)
		}
	})
	raised := scenario("an operator raises the limit of a key with a cooldown", 1, func(p *plan) {
		first := rule("retry")
		first.Scope, first.Cooldown = "first", 5*time.Second
		p.Rules = []rulePlan{first, under("wait", rulePlan{Task: "t", Scope: "second", TTL: 6 * time.Second})}
		// The second task takes its slot of the first lock before the first one succeeds.
		p.Tasks = []taskPlan{work(4*time.Second, 3*time.Second), work(5*time.Second, 100*ms)}
		p.Ops = []opPlan{{At: 100 * ms, Kind: "limit", Task: 0, Limit: 2}, {At: 20 * time.Second, Kind: "no limit", Task: 0}}
	})
	refused := scenario("the last attempt asks again long after Redis refused", 1, func(p *plan) {
		p.Procs[0].Workers = 20
		r := rule("retry")
		r.TTL = time.Second
		p.Rules = []rulePlan{r}
		first := work(1500*ms, 0) // from here on the Guard knows that Redis is away
		first.A = 9
		p.Tasks = []taskPlan{first}
		for a := range 8 {
			last, other := work(12*time.Second, 0), work(14500*ms, 0)
			last.A, last.MaxRetry, other.A = a, 0, a
			p.Tasks = append(p.Tasks, last, other)
		}
		p.Faults = []faultPlan{{Kind: misconf, Proc: 0, Client: "lock", At: time.Second, For: 12 * time.Second}}
	})
	return slices.Concat([]*plan{overdue, raised, refused}, timeJudgeScenarios(), replaceJudgeScenarios(), rateJudgeScenarios(),
		cooldownJudgeScenarios(), operatorJudgeScenarios(), onceMoreJudgeScenarios())
}

// timeJudgeScenarios are those in which something took longer than the oracle thought.
func timeJudgeScenarios() []*plan {
	paused := scenario("a pause ends by itself after an order that took long", 1, func(p *plan) {
		p.Latency = 100 * ms // the order takes longer than the first exchange after the pause
		p.Procs[0].Workers = 20
		p.Rules = []rulePlan{rule("park")}
		last := work(5*time.Second, 0)
		last.MaxRetry = 0                                         // so that it waits in its worker, and asks at the end of the pause
		p.Tasks = append(manyKeys(last), work(20*time.Second, 0)) // orders end when no more tasks are to come
		p.Ops = []opPlan{{At: time.Second, Kind: "halt", Task: 0, For: 10 * time.Second, Whole: true}}
	})
	exited := scenario("a process exits while a handler runs, and another task waits", 1, func(p *plan) {
		p.Procs[0].Shutdown = time.Second
		r := rule("wait")
		r.TTL, r.Wait = 30*time.Second, 40*time.Second // nobody releases the lease of the process
		p.Rules = []rulePlan{r}
		deaf := work(0, 20*time.Second)
		deaf.Steps[0].Deaf = true
		p.Tasks = []taskPlan{deaf, work(9*time.Second, 100*ms)}
		p.Faults = []faultPlan{{Kind: stops, At: 2 * time.Second}, {Kind: starts, At: 8 * time.Second}}
	})
	unheard := scenario("the deadline passes between a success and the release", 1, func(p *plan) {
		p.Latency = 100 * ms
		p.Procs[0].Workers = 20
		p.Rules = []rulePlan{rule("wait")}
		task := work(0, 4800*ms)
		task.Timeout = 5 * time.Second
		p.Tasks = manyKeys(task)
	})
	atOnce := scenario("a handler succeeds in the moment of its deadline, on the last attempt", 1, func(p *plan) {
		p.Procs[0].Workers = 20
		p.Rules = []rulePlan{rule("after")}
		task := work(0, 5*time.Second)
		task.Timeout, task.MaxRetry = 5*time.Second, 0
		p.Tasks = manyKeys(task)
	})
	givenUp := scenario("Close gives up while a handler runs, and asynq stops later", 1, func(p *plan) {
		r := rule("park")
		r.TTL = 3 * time.Second // nobody renews the lease any more
		p.Rules = []rulePlan{r}
		p.Procs[0].Shutdown = 2 * time.Second
		deaf := work(0, 20*time.Second)
		deaf.Steps[0].Deaf = true
		p.Tasks = []taskPlan{deaf}
		p.Faults = []faultPlan{{Kind: stops, At: 2 * time.Second}, {Kind: hung, Client: "asynq", At: 3 * time.Second, For: 15 * time.Second}}
	})
	return []*plan{paused, exited, unheard, atOnce, givenUp}
}

// replaceJudgeScenarios are those about tasks that run, wait or are parked beside others
// like them.
func replaceJudgeScenarios() []*plan {
	farther := scenario("a newer task waits for its first lock, an older one does too", 1, func(p *plan) {
		p.Rules = []rulePlan{
			{Task: "t", Scope: "first", Limit: 3, TTL: 10 * time.Second, Wait: 40 * time.Second, Starts: 1, Per: 9 * time.Second, Policy: "replace"},
			{Task: "t", Scope: "second", TTL: 10 * time.Second, Policy: "replace"},
		}
		p.Tasks = []taskPlan{work(0, 0), work(time.Second, 0), work(2*time.Second, 0)}
	})
	apart := scenario("a retry is allowed to run with another key than its earlier attempt", 1, func(p *plan) {
		p.Rules = []rulePlan{
			{Task: "t", Scope: "first", On: []string{"a"}, Limit: 2, TTL: 6 * time.Second, Policy: "allow"},
			{Task: "t", Scope: "second", On: []string{"b"}, TTL: 6 * time.Second, Policy: "allow"},
		}
		other, deaf := work(0, 3*time.Second), work(time.Second, 20*time.Second)
		other.A, deaf.Timeout, deaf.Steps[0].Deaf = 1, 4*time.Second, true // other has the second key until the retry comes
		p.Tasks = []taskPlan{other, deaf}
	})
	gone := scenario("a newer task asks an older one that is between two waits, and leaves", 1, func(p *plan) {
		p.Latency = 100 * ms
		p.Procs[0].Workers = 50
		r := rule("replace")
		r.Starts, r.Per, r.Burst, r.Wait = 1, 20*time.Second, 1, 8*time.Second
		p.Rules = []rulePlan{r}
		older := work(5*time.Second, 0)
		older.MaxRetry = 0 // it waits in its worker, for the second time
		p.Tasks = slices.Concat(manyKeys(work(0, 0)), manyKeys(older), manyKeys(work(5400*ms, 0)))
	})
	lapsed := scenario("a newer task comes when an older one has lost its first lock to MaxHold", 1, func(p *plan) {
		p.Rules = []rulePlan{
			{Task: "t", Scope: "first", On: []string{"a"}, TTL: 3 * time.Second, Wait: 10 * time.Second, MaxHold: 2 * time.Second, Policy: "replace"},
			{Task: "t", Scope: "second", TTL: 10 * time.Second, Policy: "park"},
		}
		holds, older, newer := work(0, 0), work(time.Second, 0), work(4*time.Second, 0)
		holds.A, holds.Steps[0].Hold = 1, 12*time.Second                     // the second key
		older.MaxRetry, older.Timeout, newer.MaxRetry = 0, 20*time.Second, 0 // both wait for that in their workers
		p.Tasks = []taskPlan{holds, older, newer}
	})
	behind := scenario("a parked task is skipped by another rule, and its place is behind a closed gate", 1, func(p *plan) {
		first, second := rule("skip"), rule("park")
		first.Scope, second.Scope = "first", "second"
		second.Starts, second.Per = 1, 60*time.Second // the gate is closed for half a minute after all tasks have ended
		onlyFirst, onlySecond := first, second
		onlyFirst.Task, onlySecond.Task = "only first", "only second"
		p.Rules = []rulePlan{first, second, onlyFirst, onlySecond}
		parks, keeps, skips := work(time.Second, 0), work(0, 25*time.Second), work(4*time.Second, 22*time.Second)
		parks.Timeout, keeps.Task, skips.Task = 4*time.Second, "only second", "only first"
		p.Tasks = []taskPlan{parks, keeps, skips}
	})
	return []*plan{farther, apart, gone, lapsed, behind}
}

// rateJudgeScenarios are those about which starts a rate counts.
func rateJudgeScenarios() []*plan {
	untold := scenario("a task is refused by a rate before the one that started tells of it", 1, func(p *plan) {
		p.Latency = 30 * ms
		r := rule("skip")
		r.Limit, r.Starts, r.Per, r.Burst = 2, 1, 20*time.Second, 1
		p.Rules = []rulePlan{r}
		for i, one := range manyKeys(work(0, 0)) {
			one.At = time.Duration(i) * time.Second
			p.Tasks = append(p.Tasks, one, one) // both at once
		}
	})
	lapsed := scenario("tasks lose a lock with a rate to MaxHold while they wait for their next one", 1, func(p *plan) {
		p.Procs[0].Workers = 20
		p.Rules = []rulePlan{
			{
				Task: "t", Scope: "first", On: []string{"a"}, TTL: time.Second, Wait: 10 * time.Second, MaxHold: 1500 * ms,
				Starts: 1, Per: 20 * time.Second, Burst: 5, Policy: "retry",
			},
			under("retry", rulePlan{Task: "t", Scope: "second", On: []string{"b"}, TTL: 6 * time.Second, Wait: 10 * time.Second}),
		}
		holds := work(0, 0)
		holds.A, holds.Steps[0].Hold = 1, 9*time.Second // the second key
		p.Tasks = []taskPlan{holds, work(time.Second, 0), work(1100*ms, 0), work(1200*ms, 0)}
		for i := range 3 {
			later := work(12*time.Second+time.Duration(i)*500*ms, 0)
			later.B = 1 // nobody has that one
			p.Tasks = append(p.Tasks, later)
		}
	})
	return []*plan{untold, lapsed}
}

// cooldownJudgeScenarios are those about which successes begin a cooldown. With a limit it
// counts from the release.
func cooldownJudgeScenarios() (all []*plan) {
	for limit := 1; limit <= 2; limit++ {
		name := fmt.Sprintf("a success loses its lock with a cooldown to MaxHold before its release, limit %d", limit)
		all = append(all, scenario(name, 1, func(p *plan) {
			p.Latency = 100 * ms // the second lock is released first
			p.Procs[0].Workers = 20
			first := rule("retry")
			first.Scope, first.Limit, first.MaxHold, first.Cooldown = "first", limit, 1500*ms, 8*time.Second
			p.Rules = []rulePlan{first, {Task: "t", Scope: "second", On: []string{"a"}, TTL: 6 * time.Second, Policy: "retry"}}
			p.Tasks = append(manyKeys(work(0, 1150*ms)), manyKeys(work(3*time.Second, 0))...)
		}))
	}
	return all
}

// operatorJudgeScenarios are those in which the oracle took what an operator did for something
// else.
func operatorJudgeScenarios() []*plan {
	inVain := scenario("an operator resumes a lock while Redis stands still, which fails", 1, func(p *plan) {
		p.Rules = []rulePlan{rule("wait")}
		last, late := work(25*time.Second, 0), work(70*time.Second, 0) // orders end when no more tasks are to come
		last.MaxRetry, late.A = 0, 1                                   // it waits in its worker until the pause ends
		p.Tasks = []taskPlan{last, late}
		// By the time of the last two orders the operator has no connection left, and gets none.
		p.Faults = []faultPlan{{Kind: frozen, Client: "lock", At: 10 * time.Second, For: 12 * time.Second}}
		p.Ops = []opPlan{
			{At: time.Second, Kind: "halt", Task: 0, Whole: true},
			{At: 14500 * ms, Kind: "halt", Task: 0, For: 5 * time.Second, Whole: true},
			{At: 15 * time.Second, Kind: "resume", Task: 0},
		}
	})
	sameID := scenario("an operator deletes a task of package unique whose ID the next one has just got", 1, func(p *plan) {
		p.Latency = 100 * ms
		p.Procs[0].Workers = 20
		p.Rules, p.Unique = []rulePlan{rule("retry")}, []uniquePlan{{Task: "t", On: []string{"a"}, Until: "done", Duplicate: "reject"}}
		p.Tasks = append(manyKeys(work(0, 0)), manyKeys(work(5*time.Second, 0))...)
		p.Ops = []opPlan{{At: 4 * time.Second, Kind: "pause"}, {At: 9 * time.Second, Kind: "unpause"}} // no next one begins
		for a := range 16 {
			p.Ops = append(p.Ops, opPlan{At: 5*time.Second + time.Duration(a)*5*ms, Kind: "delete", Task: a})
		}
	})
	return []*plan{inVain, sameID}
}

// onceMoreJudgeScenarios are those in which a task has another number of attempts than its
// plan says, or is run once more.
func onceMoreJudgeScenarios() (all []*plan) {
	all = append(all, scenario("a task of package unique gives its payload to one with fewer attempts", 1, func(p *plan) {
		p.Rules = []rulePlan{rule("fail")}
		p.Unique = []uniquePlan{{Task: "t", On: []string{"a"}, Until: "start", Duplicate: "postpone", Delay: 1500 * ms}}
		p.Tasks = []taskPlan{work(0, 30*time.Second), work(6050*ms, 0), work(6150*ms, 0)}
		p.Tasks[1].MaxRetry = 1 // both are due at the same whole second, so the last one keeps that
	}))
	// The commands about the wake are among these.
	for nth := 24; nth <= 35; nth++ {
		name := fmt.Sprintf("command %d, of those that wake a parked task, arrives late, when the task is archived", nth)
		all = append(all, scenario(name, 1, func(p *plan) {
			p.Procs[0].Workers = 2
			p.Rules = []rulePlan{rule("park")}
			parks := work(500*ms, 0)
			parks.MaxRetry, parks.Steps = 1, []stepPlan{{End: "fail"}}
			p.Tasks = []taskPlan{work(0, 2*time.Second), parks, {At: 60 * time.Second, Task: "plain"}}
			p.Faults = []faultPlan{{Kind: late, Client: "lock", Nth: nth, For: 30 * time.Second}}
		}))
	}
	return all
}

// manyKeys are tasks like t, each with a key of its own.
func manyKeys(t taskPlan) (tasks []taskPlan) {
	for a := range 16 {
		t.A = a
		tasks = append(tasks, t)
	}
	return tasks
}

package simulate

import (
	"time"

	"github.com/automutex/automutex"
)

const ms = time.Millisecond

// policies are all of them, by the names that plans have; "wait" is Retry with a Wait.
var policies = []string{"retry", "wait", "retry in", "skip", "archive", "fail", "park", "replace", "allow", "after"}

// scenario makes a plan of one server, or more, on which further things are put.
func scenario(name string, servers int, change func(p *plan)) *plan {
	p := &plan{Name: name, Seed: 1}
	for range servers {
		p.Procs = append(p.Procs, procPlan{Workers: 4, Poll: 200 * ms, Forward: time.Second, Shutdown: 3 * time.Second})
	}
	change(p)
	return p
}

// under gives a rule the policy of that name.
func under(policy string, r rulePlan) rulePlan {
	r.Policy = policy
	switch policy {
	case "wait":
		r.Policy, r.Wait = "retry", 4*time.Second
	case "after":
		r.After = "busy"
	}
	return r
}

// rule is one on the field a of type "t".
func rule(policy string) rulePlan {
	return under(policy, rulePlan{Task: "t", On: []string{"a"}, TTL: 6 * time.Second})
}

// work is a task that has a handler of that length, and attempts to spare.
func work(at, length time.Duration, ends ...string) taskPlan {
	t := taskPlan{At: at, Task: "t", MaxRetry: 5, Timeout: 60 * time.Second}
	for _, end := range append(ends, "ok") {
		t.Steps = append(t.Steps, stepPlan{Work: length, End: end})
	}
	return t
}

// scenarios are what the faults are put upon, one at each command. Those in order come first, since -within may leave out the last.
func scenarios() (all []*plan) {
	all = orderedScenarios()
	add := func(name string, servers int, change func(p *plan)) {
		all = append(all, scenario(name, servers, change))
	}
	for _, policy := range policies {
		add(policy, 2, func(p *plan) {
			p.Rules = []rulePlan{rule(policy)}
			p.Tasks = []taskPlan{work(0, 1500*ms), work(300*ms, 200*ms), work(600*ms, 200*ms)}
		})
		add(policy+", last attempt", 1, func(p *plan) {
			p.Rules = []rulePlan{rule(policy)}
			last := work(300*ms, 200*ms)
			last.MaxRetry = 0
			p.Tasks = []taskPlan{work(0, 1500*ms), last}
		})
		add(policy+", the second lock", 1, func(p *plan) {
			first := rule("retry")
			if policy == "replace" {
				first = rule(policy)
			}
			first.Scope = "first"
			second := under(policy, rulePlan{Task: "t", Scope: "second", TTL: 6 * time.Second})
			other := second
			other.Task = "other"
			p.Rules = []rulePlan{first, second, other}
			holder := work(0, 1500*ms)
			holder.Task = "other"
			two := work(300*ms, 300*ms)
			two.A = 1
			p.Tasks = []taskPlan{holder, work(200*ms, 300*ms), two}
		})
	}
	for _, policy := range []string{"retry", "wait", "park", "replace"} {
		add(policy+", its server stops", 2, func(p *plan) {
			p.Rules = []rulePlan{rule(policy)}
			last := work(400*ms, 200*ms)
			last.MaxRetry = 0
			p.Tasks = []taskPlan{work(0, 4*time.Second), work(300*ms, 200*ms), last}
			p.Faults = []faultPlan{{Kind: stops, Proc: 0, At: 900 * ms}, {Kind: starts, Proc: 0, At: 10 * time.Second}}
		})
		add(policy+", its server dies", 2, func(p *plan) {
			p.Rules = []rulePlan{rule(policy)}
			p.Tasks = []taskPlan{work(0, 3*time.Second), work(300*ms, 200*ms), work(400*ms, 200*ms), work(500*ms, 200*ms)}
			p.Faults = []faultPlan{{Kind: dies, Proc: 0, At: 1500 * ms}, {Kind: starts, Proc: 0, At: 10 * time.Second}}
		})
	}
	all = append(all, longScenarios()...)
	all = append(all, gateScenarios()...)
	return append(all, uniqueScenarios()...)
}

// longScenarios are those about leases: their length, their limits, their renewal.
func longScenarios() (all []*plan) {
	add := func(name string, servers int, change func(p *plan)) {
		all = append(all, scenario(name, servers, change))
	}
	for _, limit := range []int{1, 2} {
		for _, policy := range []string{"retry", "wait", "park"} {
			add(map[int]string{1: "ignored timeout, ", 2: "ignored timeout, limit 2, "}[limit]+policy, 1, func(p *plan) {
				r := rule(policy)
				r.Limit = limit
				p.Rules = []rulePlan{r}
				deaf := taskPlan{Task: "t", MaxRetry: 3, Timeout: 2 * time.Second,
					Steps: []stepPlan{{Work: 6 * time.Second, End: "ok", Deaf: true}, {Work: 100 * ms, End: "ok"}}}
				p.Tasks = []taskPlan{deaf, work(500*ms, 200*ms)}
			})
		}
	}
	add("renewals", 2, func(p *plan) {
		p.Procs[0].Workers, p.Procs[1].Workers = 1, 1
		r := rule("wait")
		r.TTL, r.Wait = 3*time.Second, 20*time.Second
		p.Rules = []rulePlan{r}
		p.Tasks = []taskPlan{work(0, 8*time.Second), work(time.Second, 5*time.Second)}
	})
	add("a lease granted by a release", 1, func(p *plan) {
		r := rule("wait")
		r.TTL, r.Wait = 30*time.Second, 20*time.Second
		p.Rules = []rulePlan{r}
		p.Tasks = []taskPlan{work(0, time.Second), work(300*ms, 8*time.Second)}
	})
	for _, policy := range []string{"skip", "park", "wait"} {
		add("cooldown, "+policy, 1, func(p *plan) {
			r := rule(policy)
			r.Cooldown = 5 * time.Second
			p.Rules = []rulePlan{r}
			p.Tasks = []taskPlan{work(0, 500*ms), work(2*time.Second, 200*ms), work(7*time.Second, 200*ms, "fail"), work(20*time.Second, 200*ms)}
		})
	}
	add("MaxHold", 1, func(p *plan) {
		r := rule("wait")
		r.MaxHold, r.TTL = 1500*ms, 2*time.Second
		p.Rules = []rulePlan{r}
		p.Tasks = []taskPlan{work(0, 3*time.Second, "fail"), work(300*ms, 500*ms)}
		p.Tasks[0].Steps[1].Work = 100 * ms
	})
	add("three rules", 2, func(p *plan) {
		p.Rules = []rulePlan{
			under("wait", rulePlan{Task: "t", Scope: "one", On: []string{"a"}, TTL: 6 * time.Second}),
			under("park", rulePlan{Task: "t", Scope: "two", On: []string{"b"}, TTL: 6 * time.Second}),
			under("retry", rulePlan{Task: "t", Scope: "three", Limit: 2, TTL: 6 * time.Second}),
		}
		for i := range 6 {
			t := work(time.Duration(i)*100*ms, 400*ms)
			t.A, t.B = i%2, i%3
			p.Tasks = append(p.Tasks, t)
		}
	})
	add("failing and panicking handlers", 1, func(p *plan) {
		p.Rules = []rulePlan{rule("wait")}
		p.Tasks = []taskPlan{work(0, 500*ms, "fail", "panic"), work(200*ms, 200*ms, "soft"), work(300*ms, 200*ms, "skip"), work(400*ms, 200*ms, "revoke")}
	})
	add("replace, many in a row", 1, func(p *plan) {
		p.Rules = []rulePlan{rule("replace")}
		for i := range 5 {
			p.Tasks = append(p.Tasks, work(time.Duration(i)*250*ms, 900*ms))
		}
	})
	add("park, many on one key", 1, func(p *plan) {
		p.Rules = []rulePlan{rule("park")}
		p.Procs[0].Workers = 2
		for i := range 7 {
			p.Tasks = append(p.Tasks, work(time.Duration(i)*50*ms, 400*ms))
		}
	})
	add("an operator breaks the lock", 2, func(p *plan) {
		p.Rules = []rulePlan{rule("wait")}
		p.Tasks = []taskPlan{work(0, 4*time.Second), work(300*ms, 500*ms)}
		p.Ops = []opPlan{{At: 1500 * ms, Kind: "break"}}
	})
	return all
}

// uniqueScenarios are the ways to enqueue once.
func uniqueScenarios() (all []*plan) {
	for _, until := range []string{"done", "start", "for"} {
		for _, duplicate := range []string{"reject", "join", "replace", "postpone"} {
			all = append(all, scenario("unique until "+until+", "+duplicate, 1, func(p *plan) {
				p.Rules = []rulePlan{rule("wait")}
				p.Unique = []uniquePlan{{Task: "t", On: []string{"a"}, Until: until, Window: 3 * time.Second, Duplicate: duplicate, Delay: time.Second}}
				p.Tasks = []taskPlan{
					work(0, 1500*ms), work(700*ms, 200*ms), work(900*ms, 200*ms), work(1100*ms, 200*ms), work(8*time.Second, 200*ms), work(8100*ms, 200*ms),
				}
			}))
		}
	}
	all = append(all, scenario("unique, replace of a task that has run", 1, func(p *plan) {
		p.Rules = []rulePlan{rule("retry")}
		p.Unique = []uniquePlan{{Task: "t", On: []string{"a"}, Until: "done", Duplicate: "replace"}}
		p.Tasks = []taskPlan{work(0, 200*ms, "soft"), work(900*ms, 200*ms)}
		p.Procs[0].Forward = 5 * time.Second
	}))
	return all
}

// extraScenarios are played as they are: what they are about is a fault already.
func extraScenarios() (all []*plan) {
	all = append(all, orderMistakeScenarios()...)
	all = append(all, hungLeader(), groupedOnce(), suspendedHolder(), twoMasters())
	for _, kind := range []automutex.EventKind{
		automutex.EventAcquired, automutex.EventWaiting, automutex.EventWaited, automutex.EventBusy, automutex.EventRetried,
		automutex.EventParked, automutex.EventReplaced, automutex.EventReleased, automutex.EventSkipped, automutex.EventLost,
	} {
		for _, policy := range []string{"wait", "park", "replace", "skip", "retry"} {
			all = append(all, scenario("the observer panics, "+string(kind)+", "+policy, 1, func(p *plan) {
				p.ObserverPanics = kind
				r := rule(policy)
				r.MaxHold = 20 * time.Second
				p.Rules = []rulePlan{r}
				p.Tasks = []taskPlan{work(0, 1500*ms), work(300*ms, 200*ms), work(500*ms, 200*ms), work(3*time.Second, 200*ms)}
			}))
		}
	}
	all = append(all, scenario("the observer panics, and nothing bounds the lease", 1, func(p *plan) {
		p.ObserverPanics = automutex.EventWaited
		p.Rules = []rulePlan{rule("wait")}
		p.Tasks = []taskPlan{work(0, 1500*ms), work(300*ms, 200*ms), work(500*ms, 200*ms)}
	}))
	all = append(all, scenario("park does not eat a tasks own time", 1, func(p *plan) {
		p.Procs[0].Workers = 20
		p.Rules = []rulePlan{rule("park")}
		for range 8 {
			t := work(0, 3500*ms)
			t.Timeout, t.MaxRetry = 10*time.Second, 25
			p.Tasks = append(p.Tasks, t)
		}
	}))
	all = append(all, scenario("Redis stands still after a grant", 1, func(p *plan) {
		r := rule("wait")
		r.TTL, r.Wait = 30*time.Second, 20*time.Second
		p.Rules = []rulePlan{r}
		p.Tasks = []taskPlan{work(0, 1200*ms), work(100*ms, 8*time.Second)}
		// The grant comes between 1.2 and 1.5 s.
		p.Faults = []faultPlan{{Kind: frozen, Proc: 0, Client: "lock", At: 1800 * ms, For: 4 * time.Second}}
	}))
	all = append(all, scenario("new connections are refused while a lease is held", 2, func(p *plan) {
		p.Procs[0].Workers, p.Procs[1].Workers = 1, 1
		p.Procs[1].Poll = 900 * ms
		r := rule("wait")
		r.TTL, r.Wait = 3*time.Second, 30*time.Second
		p.Rules = []rulePlan{r}
		p.Tasks = []taskPlan{work(100*ms, 12*time.Second), work(500*ms, 3*time.Second)} // process 0 polls sooner than 1
		p.Faults = []faultPlan{{Kind: setup, Proc: 0, Client: "lock", At: 1500 * ms, For: 10 * time.Second}}
	}))
	all = append(all, scenario("a key function that fails for a while", 1, func(p *plan) {
		r := rule("retry")
		r.KeyFails = 2
		p.Rules = []rulePlan{r}
		p.Tasks = []taskPlan{work(0, 100*ms), work(100*ms, 100*ms)}
	}))
	all = append(all, scenario("many waiters die", 2, func(p *plan) {
		p.Procs[0].Workers, p.Procs[1].Workers = 1000, 3 // the last in line are with the second, which lives
		r := rule("wait")
		r.Wait, r.TTL = 5*time.Minute, 2*time.Second
		p.Rules = []rulePlan{r}
		p.Procs[1].Poll = 900 * ms
		holder := work(0, 2*time.Second)
		p.Tasks = append(p.Tasks, holder)
		for range 1000 {
			p.Tasks = append(p.Tasks, work(100*ms, 0))
		}
		p.Tasks = append(p.Tasks, work(1500*ms, 100*ms))
		p.Faults = []faultPlan{{Kind: dies, Proc: 0, At: 1900 * ms}}
	}))
	all = append(all, scenario("replaced while it waits for its second lock", 1, func(p *plan) {
		first := rule("replace")
		first.Scope = "first"
		second := under("park", rulePlan{Task: "t", Scope: "second", TTL: 6 * time.Second})
		other := second
		other.Task = "other"
		p.Rules = []rulePlan{first, second, other}
		holder := work(0, 20*time.Second)
		holder.Task = "other"
		p.Tasks = []taskPlan{holder, work(500*ms, 100*ms), work(1500*ms, 100*ms)}
	}))
	for _, policy := range []string{"wait", "replace", "retry"} {
		all = append(all, scenario("the last attempt waits, Redis refuses, the server stops, "+policy, 2, func(p *plan) {
			p.Rules = []rulePlan{rule(policy)}
			last := work(300*ms, 100*ms)
			last.MaxRetry = 0
			if policy == "replace" {
				last.At = time.Second // Redis refuses already: before, it replaces the holder at once
			}
			p.Tasks = []taskPlan{work(0, 12*time.Second), last}
			p.Faults = []faultPlan{
				{Kind: misconf, Proc: 0, Client: "lock", At: 800 * ms, For: 8 * time.Second},
				{Kind: misconf, Proc: 1, Client: "lock", At: 800 * ms, For: 8 * time.Second},
				{Kind: stops, Proc: 0, At: 1500 * ms}, {Kind: stops, Proc: 1, At: 1500 * ms}, {Kind: starts, Proc: 0, At: 20 * time.Second},
			}
		}))
	}
	return append(all, judgeScenarios()...)
}

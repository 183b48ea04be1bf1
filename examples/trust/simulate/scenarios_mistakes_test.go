package simulate

import (
	"slices"
	"time"
)

// orderMistakeScenarios are worlds in order, in each of which one mistake of a protocol shows. They keep all promises, and are
// played as they are; testdata/planted has the mistakes.
func orderMistakeScenarios() []*plan {
	return slices.Concat(heldScenarios(), sameIDScenarios(), slowEnqueueScenarios())
}

// inHoldOrder is a scenario of one ordered rule whose archived tasks hold their keys.
func inHoldOrder(name string, servers int, change func(p *plan)) *plan {
	return scenario("in order, "+name, servers, func(p *plan) {
		r := rule("park")
		r.InOrder, r.OnArchive = true, "hold"
		p.Rules = []rulePlan{r}
		change(p)
	})
}

// goesOn adds a late task of another key. Until it comes, nobody ends a hold.
func goesOn(p *plan) {
	last := work(90*time.Second, 0)
	last.A = 99
	p.Tasks = append(p.Tasks, last)
}

// archives is a task that is archived after its only run.
func archives(at time.Duration) taskPlan {
	t := work(at, 200*ms, "fail")
	t.MaxRetry = 0
	return t
}

// comesBack is a task that asks to come back a minute after its first run.
func comesBack(at time.Duration) taskPlan {
	t := work(at, 200*ms, "later")
	t.Steps[0].Later = time.Minute
	return t
}

// heldScenarios are about a head that does not come: it comes later, is archived, or was done.
func heldScenarios() []*plan {
	return []*plan{
		inHoldOrder("it comes back in a minute", 2, func(p *plan) {
			p.Tasks = []taskPlan{comesBack(0), work(50*ms, 200*ms), work(100*ms, 200*ms)}
		}),
		inHoldOrder("held, and deleted", 2, func(p *plan) {
			p.Tasks = []taskPlan{archives(0), work(50*ms, 200*ms), work(100*ms, 200*ms)}
			p.Ops = []opPlan{{At: 6 * time.Second, Kind: "delete", Task: 0}}
			goesOn(p)
		}),
		inHoldOrder("held before its Enqueue has returned", 2, func(p *plan) {
			p.Tasks = []taskPlan{archives(0), work(6*time.Second, 200*ms)}
			// The command that enqueues it is executed, and has no reply: its Enqueue takes five seconds.
			p.Faults = []faultPlan{{Kind: swallowed, Proc: -1, Client: "asynq", Nth: 3}}
			p.Ops = []opPlan{{At: 7 * time.Second, Kind: "delete", Task: 0}}
			goesOn(p)
		}),
		inHoldOrder("a producer has died in the middle", 2, func(p *plan) {
			p.Rules[0].MaxQueued = 3
			p.Tasks = []taskPlan{comesBack(0), work(500*ms, 200*ms), work(2*time.Second, 200*ms), work(15*time.Second, 200*ms)}
			p.Faults = []faultPlan{{Kind: refused, Proc: -1, Client: "asynq", Nth: 4}} // so the second one is stamped, and not enqueued
			p.Ops = []opPlan{{At: time.Second, Kind: "pause"}, {At: 20 * time.Second, Kind: "unpause"}}
			goesOn(p)
		}),
		inHoldOrder("done, and its release is lost", 1, func(p *plan) {
			first := work(0, 600*ms)
			first.Keep = true
			p.Tasks = []taskPlan{first, work(11*time.Second, 200*ms), work(12*time.Second, 200*ms)}
			p.Faults = []faultPlan{
				{Kind: hung, Proc: 0, Client: "lock", At: 400 * ms, For: 9 * time.Second},
				{Kind: dies, Proc: 0, At: 9 * time.Second}, {Kind: starts, Proc: 0, At: 10 * time.Second},
			}
		}),
	}
}

// sameIDScenarios are about two tasks with one ID.
func sameIDScenarios() []*plan {
	return []*plan{
		inHoldOrder("its ID is used again", 1, func(p *plan) {
			p.Tasks = []taskPlan{work(0, 200*ms), work(3*time.Second, 200*ms), work(3500*ms, 200*ms)}
			p.Tasks[1].As = 1
		}),
		inHoldOrder("its ID is taken, and it lands late", 1, func(p *plan) {
			p.Tasks = []taskPlan{comesBack(0), work(time.Second, 200*ms), work(2*time.Second, 200*ms)}
			p.Tasks[1].As = 1
			p.Faults = []faultPlan{{Kind: late, Proc: -1, Client: "asynq", Nth: 3, For: 8 * time.Second}}
		}),
		inHoldOrder("its ID is taken", 1, func(p *plan) {
			p.Tasks = []taskPlan{comesBack(0), work(time.Second, 200*ms), work(2*time.Second, 200*ms)}
			p.Tasks[1].As = 1
		}),
		inHoldOrder("deleted, and its ID is used again", 1, func(p *plan) {
			p.Tasks = []taskPlan{comesBack(0), work(100*ms, 200*ms), work(3*time.Second, 200*ms)}
			p.Tasks[2].As = 1
			p.Ops = []opPlan{{At: 2 * time.Second, Kind: "delete", Task: 0}}
		}),
	}
}

// slowEnqueueScenarios are about an Enqueue that takes more than ten seconds: others take its stamp for a dead producer's.
// When it has returned, the third task is enqueued.
func slowEnqueueScenarios() (all []*plan) {
	add := func(name string, f faultPlan) {
		all = append(all, inHoldOrder("it lands late, and "+name, 1, func(p *plan) {
			p.Tasks = []taskPlan{comesBack(0), work(2*time.Second, 200*ms), work(17500*ms, 200*ms)}
			p.Tasks[0].Keep = true
			// Each of these commands costs the first Enqueue five seconds.
			p.Faults = []faultPlan{
				{Kind: swallowed, Proc: -1, Client: "asynq", Nth: 1}, {Kind: swallowed, Proc: -1, Client: "asynq", Nth: 5},
				{Kind: late, Proc: -1, Client: "asynq", Nth: 7, For: 20 * time.Second}, f,
			}
			p.Ops = []opPlan{{At: 14800 * ms, Kind: "pause"}, {At: 18 * time.Second, Kind: "unpause"}}
			goesOn(p)
		}))
	}
	add("is not confirmed", faultPlan{Kind: apart, Proc: -1, Client: "lock", At: 14500 * ms, For: 20 * time.Second})
	add("a look is stored late", faultPlan{Kind: late, Proc: 0, Client: "lock", Saying: "gone", For: 10 * time.Second})
	add("cannot ask at once", faultPlan{Kind: refused, Proc: 0, Client: "lock", Saying: "|default/n0", At: 16 * time.Second})
	return all
}

package simulate

import (
	"slices"
	"time"
)

// orderedScenarios are those about tasks in order.
func orderedScenarios() (all []*plan) {
	add := func(name string, servers int, change func(p *plan)) {
		all = append(all, scenario(name, servers, change))
	}
	ordered := func(onArchive string) []rulePlan {
		r := rule("park")
		r.InOrder, r.OnArchive = true, onArchive
		return []rulePlan{r}
	}
	failing := func(at time.Duration, maxRetry int, ends ...string) taskPlan {
		t := work(at, 200*ms, ends...)
		t.MaxRetry = maxRetry
		return t
	}
	add("in order, a failure", 2, func(p *plan) {
		p.Rules = ordered("hold")
		p.Tasks = []taskPlan{work(0, 600*ms), work(50*ms, 200*ms, "fail"), work(100*ms, 200*ms), work(2*time.Second, 200*ms)}
	})
	add("in order, archived, continue", 2, func(p *plan) {
		p.Rules = ordered("continue")
		p.Tasks = []taskPlan{failing(0, 0, "fail"), failing(50*ms, 1, "panic", "panic"), work(100*ms, 200*ms, "skip"), work(150*ms, 200*ms)}
	})
	add("in order, archived, hold, skipped", 2, func(p *plan) {
		p.Rules = ordered("hold")
		p.Tasks = []taskPlan{failing(0, 0, "fail"), work(50*ms, 200*ms), work(100*ms, 200*ms)}
		p.Ops = []opPlan{{At: 4 * time.Second, Kind: "skip", Task: 0}}
	})
	add("in order, archived, hold, run", 2, func(p *plan) {
		p.Rules = ordered("hold")
		p.Tasks = []taskPlan{failing(0, 0, "fail"), work(50*ms, 200*ms), work(100*ms, 200*ms)}
		p.Ops = []opPlan{{At: 4 * time.Second, Kind: "run", Task: 0}}
	})
	add("in order, the head is deleted", 2, func(p *plan) {
		p.Rules = ordered("hold")
		p.Tasks = []taskPlan{work(0, 200*ms, "later"), work(50*ms, 200*ms), work(100*ms, 200*ms)}
		p.Tasks[0].Steps[0].Later = time.Minute
		p.Ops = []opPlan{{At: 2 * time.Second, Kind: "delete", Task: 0}}
	})
	add("in order, its server dies", 2, func(p *plan) {
		p.Rules = ordered("continue")
		p.Tasks = []taskPlan{failing(0, 1), failing(50*ms, 0), work(100*ms, 200*ms), work(8*time.Second, 200*ms)}
		p.Tasks[0].Steps[0].Work = 3 * time.Second
		p.Faults = []faultPlan{{Kind: dies, Proc: 0, At: 1500 * ms}, {Kind: starts, Proc: 0, At: 20 * time.Second}}
	})
	add("in order, full", 1, func(p *plan) {
		p.Rules = ordered("hold")
		p.Rules[0].MaxQueued = 2
		p.Tasks = []taskPlan{work(0, time.Second), work(50*ms, 200*ms), work(100*ms, 200*ms), work(12*time.Second, 200*ms)}
	})
	add("in order, plain tasks among them", 2, func(p *plan) {
		p.Rules = ordered("hold")
		p.Tasks = []taskPlan{work(0, time.Second), work(50*ms, 200*ms), work(100*ms, 200*ms), work(150*ms, 200*ms)}
		p.Tasks[1].Plain = true
	})
	for _, onArchive := range []string{"hold", "continue"} {
		add("in order, archived by hand, "+onArchive, 1, func(p *plan) {
			p.Rules = ordered(onArchive)
			p.Tasks = []taskPlan{comesBack(0), work(50*ms, 200*ms), work(100*ms, 200*ms)}
			p.Ops = []opPlan{{At: 2 * time.Second, Kind: "archive", Task: 0}}
			goesOn(p)
		})
	}
	add("in order, run again while retained", 2, func(p *plan) {
		p.Rules = ordered("hold")
		p.Tasks = []taskPlan{work(0, 200*ms), work(50*ms, 200*ms), work(4*time.Second, 200*ms), work(5*time.Second, 200*ms)}
		p.Tasks[0].Keep = true
		p.Ops = []opPlan{{At: 3500 * ms, Kind: "run", Task: 0}}
	})
	add("in order, a head that comes back is skipped", 2, func(p *plan) {
		p.Rules = ordered("hold")
		p.Tasks = []taskPlan{comesBack(0), work(50*ms, 200*ms), work(100*ms, 200*ms)}
		p.Ops = []opPlan{{At: 2 * time.Second, Kind: "skip", Task: 0}}
	})
	add("in order, a slow producer", 1, func(p *plan) {
		p.Rules = ordered("hold")
		p.Tasks = []taskPlan{work(0, 200*ms), work(12*time.Second, 200*ms), work(13*time.Second, 200*ms)}
		p.Faults = []faultPlan{{Kind: swallowed, Proc: -1, Client: "asynq", Nth: 1}} // costs five seconds, so the place is confirmed
	})
	// These have mistakes of their own planted, and faults at each command too.
	for _, p := range slices.Concat(heldScenarios(), sameIDScenarios()) {
		if p.Name == "in order, its ID is taken" || p.Name == "in order, a producer has died in the middle" {
			all = append(all, p)
		}
	}
	return all
}

// firstOfAsynq is how many of asynq's commands a fault is put at, in scenarios about order: those that
// come later look for tasks, again and again.
const firstOfAsynq = 60

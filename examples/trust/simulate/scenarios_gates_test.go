package simulate

import "time"

// gateScenarios are rates and holds under each policy that does something of its own.
func gateScenarios() (all []*plan) {
	add := func(name string, servers int, change func(p *plan)) {
		all = append(all, scenario(name, servers, change))
	}
	for _, policy := range []string{"retry", "wait", "skip", "park"} {
		add("rate, "+policy, 2, func(p *plan) {
			r := rule(policy)
			tasks := 4
			r.Starts, r.Per, r.Burst = 1, 1500*ms, 2
			if policy == "retry" {
				tasks, r.Burst = 6, 4 // enough starts at once to see each counted once
			}
			p.Rules = []rulePlan{r}
			for i := range tasks {
				p.Tasks = append(p.Tasks, work(time.Duration(i)*200*ms, 100*ms))
			}
		})
		add("hold, "+policy, 1, func(p *plan) {
			r := rule(policy)
			r.Limit = 2
			p.Rules = []rulePlan{r}
			for i := range 4 {
				t := work(time.Duration(i)*300*ms, 400*ms)
				p.Tasks = append(p.Tasks, t)
			}
			// The second hold is over before the first.
			p.Tasks[0].Steps = []stepPlan{{Work: 400 * ms, Hold: 5 * time.Second, End: "later", Later: 5 * time.Second}, {Work: 100 * ms, End: "ok"}}
			p.Tasks[1].Steps = []stepPlan{{Work: 400 * ms, Hold: 1500 * ms, End: "ok"}}
		})
	}
	return all
}

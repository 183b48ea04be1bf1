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
	for _, policy := range []string{"skip", "archive", "fail"} {
		add("asks to come back, "+policy, 2, func(p *plan) {
			p.Rules = []rulePlan{rule(policy)}
			p.Tasks = []taskPlan{work(0, 100*ms, "later"), work(500*ms, 20*time.Second)}
			p.Tasks[0].Steps[0].Later = time.Second // and meets the other one again and again
		})
	}
	add("a start that another rule refused", 1, func(p *plan) {
		rated := rule("retry")
		rated.Starts, rated.Per, rated.Burst, rated.Limit, rated.On = 1, 60*time.Second, 3, 5, nil
		rated.Scope = "all"
		taken := rule("skip")
		taken.Scope = "tenant"
		p.Rules = []rulePlan{rated, taken}
		p.Tasks = []taskPlan{work(0, 5*time.Second), work(500*ms, 100*ms), work(time.Second, 100*ms), work(1500*ms, 100*ms)}
		p.Tasks[3].A = 1
	})
	add("a start is given back after another", 1, func(p *plan) {
		p.Procs[0].Workers = 10
		rated, second := rule("retry"), rule("skip")
		rated.Scope, rated.Starts, rated.Per, rated.Burst, rated.Limit = "first", 1, 10*time.Second, 2, 5
		second.Scope, second.On, second.Wait = "second", []string{"b"}, 4*time.Second
		p.Rules = []rulePlan{rated, second}
		holds, waits := work(0, 8*time.Second), work(time.Second, 0)
		holds.A = 1
		p.Tasks = []taskPlan{holds, waits} // waits has its first lock until 5s
		for i, at := range []time.Duration{4 * time.Second, 6 * time.Second, 12 * time.Second} {
			other := work(at, 0)
			other.B = 1 + i
			p.Tasks = append(p.Tasks, other) // the last one comes too early by 2s
		}
	})
	return all
}

package simulate

import "time"

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
	return []*plan{overdue}
}

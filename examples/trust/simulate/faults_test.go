package simulate

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// kinds are the faults that are put at each command, with how long they last.
var kinds = []faultPlan{
	{Kind: refused}, {Kind: replyLost}, {Kind: swallowed}, {Kind: late, For: 8 * time.Second}, {Kind: noScript}, {Kind: noPerm}, {Kind: cut},
	{Kind: hung, For: 4 * time.Second}, {Kind: loading, For: 2500 * ms}, {Kind: readOnly, For: 2500 * ms}, {Kind: wrapped, For: 2500 * ms},
	{Kind: misconf, For: 2500 * ms}, {Kind: outOfMemory, For: 20 * time.Second}, {Kind: setup, For: 9 * time.Second}, {Kind: apart, For: 4 * time.Second}, {Kind: frozen, For: 4 * time.Second},
}

// firstOfAsynq is how many of asynq's commands a fault is put at, in scenarios about order: those that
// come later look for tasks, again and again.
const firstOfAsynq = 60

// job is a scenario with faults put upon it.
type job struct {
	plan   *plan
	faults []faultPlan
}

// jobsOf runs a scenario once to count its commands, and gives a job for each of them
// and each kind of fault.
func jobsOf(t *testing.T, p *plan) (jobs []job) {
	t.Helper()
	v := playWatched(t, p)
	for _, text := range v.violations {
		t.Errorf("%s, without a fault: %s%s", p.Name, text, v.told())
	}
	for _, client := range p.faultable() {
		count := v.counts[fmt.Sprintf("%s %d", client.Client, client.Proc)]
		if client.Client == "asynq" && client.Proc >= 0 {
			count = min(count, firstOfAsynq)
		}
		for nth := range count {
			for _, f := range kinds {
				f.Proc, f.Client, f.Nth = client.Proc, client.Client, nth+1
				jobs = append(jobs, job{p, []faultPlan{f}})
			}
		}
	}
	return jobs
}

// faultable are the clients at whose commands faults are put.
func (p *plan) faultable() []faultPlan {
	clients := []faultPlan{{Proc: 0, Client: "lock"}}
	if p.isOrdered() {
		clients = append(clients, faultPlan{Proc: 0, Client: "asynq"})
	}
	if len(p.Unique) > 0 || p.isOrdered() {
		clients = append(clients, faultPlan{Proc: -1, Client: "lock"}, faultPlan{Proc: -1, Client: "asynq"})
	}
	if slices.ContainsFunc(p.Ops, func(op opPlan) bool { return op.Kind == "skip" }) {
		clients = append(clients, faultPlan{Proc: -2, Client: skips})
	}
	return clients
}

// Each kind of fault, at each command of each scenario, leaves all promises kept.
func TestFaults(t *testing.T) {
	t.Parallel()
	var sum totals
	jobsDone, all := 0, scenarios()
	for i, p := range all {
		t.Run(p.Name, func(t *testing.T) {
			jobs := jobsOf(t, p)
			jobs = sample(jobs, i)
			jobsDone += len(jobs)
			playJobs(t, jobs, &sum)
		})
	}
	sum.log(t, fmt.Sprintf("%d scenarios, %d kinds of fault, %d commands with one", len(all), len(kinds), jobsDone))
}

func sample(jobs []job, offset int) (part []job) {
	for i := offset * 13 % *oneIn; i < len(jobs); i += *oneIn {
		part = append(part, jobs[i])
	}
	return part
}

// playJobs plays each of them.
func playJobs(t *testing.T, jobs []job, sum *totals) {
	t.Helper()
	var mu sync.Mutex
	failures := map[string]int{} // by kind of violation
	everyCore(t, len(jobs), func(i int) {
		p := jobs[i].plan.clone()
		p.Faults = slices.Concat(p.Faults, jobs[i].faults)
		v := playWatched(t, p)
		sum.add(v)
		if len(v.violations) == 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		kind := strings.Join(v.kinds(), ", ")
		const most = 3
		if failures[kind]++; failures[kind] > most {
			return
		}
		t.Errorf("%s, with %s: %s%s", p.Name, describe(jobs[i].faults), strings.Join(v.violations, "\n"), v.told())
	})
	for kind, n := range failures {
		t.Errorf("%d of %d fail: %s", n, len(jobs), kind)
		sum.mu.Lock()
		sum.failed = append(sum.failed, jobs[0].plan.Name)
		sum.mu.Unlock()
	}
}

func describe(faults []faultPlan) string {
	var texts []string
	for _, f := range faults {
		text := fmt.Sprintf("%q at command %d of %s of process %d", f.Kind, f.Nth, f.Client, f.Proc)
		if f.For > 0 {
			text += fmt.Sprintf(", for %s", f.For)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " and ")
}

// Scenarios that are about a fault already keep all promises.
func TestScenarios(t *testing.T) {
	t.Parallel()
	var sum totals
	for _, p := range extraScenarios() {
		t.Run(p.Name, func(t *testing.T) {
			playJobs(t, []job{{plan: p}}, &sum)
		})
	}
	sum.log(t, "scenarios about a fault")
}

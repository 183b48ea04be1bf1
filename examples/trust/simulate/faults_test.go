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

// faultsOf plays a scenario once to count its commands, and gives each kind of fault at each of them.
func faultsOf(t *testing.T, p *plan) (faults []faultPlan) {
	t.Helper()
	v := play(t, p)
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
				faults = append(faults, f)
			}
		}
	}
	return faults
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
	all := scenarios()
	for i, p := range all {
		t.Run(p.Name, func(t *testing.T) {
			var some [][]faultPlan
			for k, f := range faultsOf(t, &p) {
				if k%*oneIn == i*13%*oneIn {
					some = append(some, []faultPlan{f})
				}
			}
			playWith(t, &p, some, &sum)
		})
	}
	sum.log(t, fmt.Sprintf("a fault at a command of %d scenarios, %d kinds", len(all), len(kinds)))
}

// Scenarios that are about a fault already keep all promises.
func TestScenarios(t *testing.T) {
	t.Parallel()
	var sum totals
	for _, p := range slices.Concat(mistakeScenarios(), faultScenarios()) {
		t.Run(p.Name, func(t *testing.T) { playWith(t, &p, [][]faultPlan{nil}, &sum) })
	}
	sum.log(t, "scenarios about a fault")
}

// playWith plays a scenario with each of further faults.
func playWith(t *testing.T, scenario *plan, faults [][]faultPlan, sum *totals) {
	t.Helper()
	var mu sync.Mutex
	failures := map[string]int{} // by kind of violation
	everyCore(t, len(faults), func(i int) {
		p := scenario.clone()
		p.Faults = append(p.Faults, faults[i]...)
		v := play(t, p)
		sum.add(v)
		if len(v.violations) == 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		kind := strings.Join(v.kinds(), ", ")
		const most = 3
		if failures[kind]++; failures[kind] <= most {
			t.Errorf("%s, with %+v: %s%s", p.Name, faults[i], strings.Join(v.violations, "\n"), v.told())
		}
	})
	for kind, n := range failures {
		t.Errorf("%d of %d fail: %s", n, len(faults), kind)
		sum.fails(scenario.Name)
	}
}

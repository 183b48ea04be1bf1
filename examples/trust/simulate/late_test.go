package simulate

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

var updateLate = flag.Bool("update-late", false, "write testdata/late.txt anew")

// lateSituations are what the first task meets, which is to start within 1.5 s. It comes when what is to be before it,
// which was enqueued at the start, has begun: two that one poll finds begin in any order.
var lateSituations = []struct {
	name string
	set  func(p *plan, subject *taskPlan)
}{
	{"free", func(*plan, *taskPlan) {}},
	{"its queue stood", func(p *plan, _ *taskPlan) { p.queueStands(3 * sec) }},
	{"held", func(p *plan, _ *taskPlan) { p.add(work(0, 4*sec)) }},
	{"held, on its last attempt", func(p *plan, t *taskPlan) { t.MaxRetry = 0; p.add(work(0, 4*sec)) }},
	{"held, few workers: parks", func(p *plan, _ *taskPlan) {
		p.Procs = servers(2)
		p.add(work(0, 4*sec), work(700*ms, 4*sec).key(1))
	}},
	{"paused", func(p *plan, t *taskPlan) {
		t.At, p.Ops = 3*sec, []opPlan{{Kind: "halt"}, {At: 9 * sec, Kind: "resume"}}
	}},
	{"closed", func(p *plan, _ *taskPlan) { p.add(work(0, 0).does(stepPlan{Hold: 4 * sec, End: "ok"})) }},
	{"rate", func(p *plan, _ *taskPlan) {
		p.Rules[0].Starts, p.Rules[0].Per = 1, 5*sec
		p.add(work(0, 10*ms))
	}},
	{"held, unique", func(p *plan, _ *taskPlan) {
		p.Unique = []uniquePlan{{Task: "t", On: onA, Until: "start", Duplicate: "reject"}}
		p.add(work(0, 4*sec))
	}},
	{"RetryAfter, back late", func(_ *plan, t *taskPlan) {
		t.Steps = []stepPlan{{Work: 200 * ms, End: "later", Later: 4 * sec}, {End: "ok"}}
	}},
	{"RetryAfter, back in time, held", func(p *plan, t *taskPlan) {
		p.Rules[0].Wait = 4 * sec
		t.Steps = []stepPlan{{Work: 200 * ms, End: "later", Later: 300 * ms}, {End: "ok"}}
		p.add(work(sec, 2*sec))
	}},
	{"requeued at the end of its server", func(p *plan, t *taskPlan) {
		t.Steps = []stepPlan{{Work: 9 * sec, End: "ok"}, {End: "ok"}}
		p.Faults = []faultPlan{{Kind: stops, At: sec}, {Kind: starts, At: 9 * sec}}
	}},
	{"its worker is killed", func(p *plan, t *taskPlan) {
		t.Steps = []stepPlan{{Work: 9 * sec, End: "ok"}, {End: "ok"}}
		p.Faults = []faultPlan{{Kind: dies, At: sec}, {Kind: starts, At: 9 * sec}}
	}},
	{"failed, uncounted", func(_ *plan, t *taskPlan) { t.Steps = []stepPlan{{Work: 2 * sec, End: "soft"}, {End: "ok"}} }},
	{"archived as late, and run by hand", func(p *plan, _ *taskPlan) {
		p.queueStands(3 * sec)
		p.Ops = append(p.Ops, opPlan{At: 8 * sec, Kind: "run"})
	}},
}

func (p *plan) add(more ...taskPlan) { p.Tasks = append(p.Tasks, more...) }

func (p *plan) queueStands(until time.Duration) {
	p.Ops = []opPlan{{Kind: "pause"}, {At: until, Kind: "unpause"}}
}

// latePolicies are the columns of the table.
var latePolicies = append([]string{"in order, hold", "in order, continue"}, policies...)

// latePlan is a situation under a policy. The Late of the rule is another one for each policy.
func latePlan(situation, policy int) *plan {
	name, late := latePolicies[policy], []string{"archive", "skip", "after"}[policy%3]
	rule := rulePlan{StartWithin: 1500 * ms, Late: late}
	p := &plan{Name: "late, " + lateSituations[situation].name + ", " + name, Procs: servers(4)}
	if _, onArchive, ordered := strings.Cut(name, "in order, "); ordered {
		name, rule.InOrder, rule.OnArchive = "park", true, onArchive
	}
	p.Rules, p.Tasks = rules(name, rule), tasks(work(500*ms, 200*ms))
	subject := p.Tasks[0]
	lateSituations[situation].set(p, &subject)
	p.Tasks[0] = subject
	return p
}

// lateScenarios are two policies for each situation, the first with a task more, which comes in time.
func lateScenarios() (all []plan) {
	for i := range lateSituations {
		first, second := latePlan(i, i%len(latePolicies)), latePlan(i, (i+5)%len(latePolicies))
		first.add(work(3*sec, 200*ms))
		all = append(all, *first, *second)
	}
	return all
}

// What becomes of a task that is to start in time, under each policy, is the golden file: read its changes. The oracle
// judges each world besides.
func TestLate(t *testing.T) {
	t.Parallel()
	table := make([]strings.Builder, len(lateSituations))
	everyCore(t, len(table), func(i int) {
		fmt.Fprint(&table[i], lateSituations[i].name)
		for k := range latePolicies {
			p := latePlan(i, k)
			v := play(t, p)
			for _, text := range v.violations {
				t.Errorf("%s: %s%s", p.Name, text, v.told())
			}
			fmt.Fprint(&table[i], "\t", v.first)
		}
	})
	var b strings.Builder
	b.WriteString("What becomes of a task that is to start in time. Late is archive, skip and after in turn. Written by " +
		"go test ./examples/trust/simulate -run TestLate -update-late\n\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "situation\t"+strings.Join(latePolicies, "\t"))
	for i := range table {
		fmt.Fprintln(w, table[i].String())
	}
	redistest.Must(t, w.Flush())
	redistest.Golden(t, *updateLate, "testdata/late.txt", b.String())
}

// became is what a task became: how often its handler began, and how it ended.
func (t *taskBook) became() string {
	words := []string{fmt.Sprint("ran ", t.starts)}
	if t.starts == 0 {
		words = nil
	}
	for _, how := range []string{endTooLate, endSkipped, endReplaced} {
		if t.ends[how] {
			words = append(words, map[string]string{endTooLate: "late", endSkipped: "skipped", endReplaced: "replaced"}[how])
		}
	}
	if t.state == "archived" {
		words = append(words, t.state)
	}
	return strings.Join(words, ", ")
}

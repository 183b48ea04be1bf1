package doctor

import (
	"strings"
	"testing"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// doctor knows the rule of a control whose scope has more than 200 bytes, and of one for all types
// of a rule.
func TestControls_rulesOf(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	prefix, long := redistest.Name(t), strings.Repeat("s", 300)
	locker := lock.New(s.Client(t), lock.Options{Prefix: prefix})
	t.Cleanup(func() { _ = locker.Close() })
	for _, target := range []string{long, "t" + long, "mail:", "mail:send", "report:", "nobody", "n" + long} {
		redistest.Must(t, locker.Controls().SetLimit(t.Context(), target, 2, ""))
	}
	all, err := Examine(t.Context(), s.Client(t), Options{Prefix: prefix, Config: &automutex.Config{Prefix: prefix, Rules: []automutex.Rule{
		{Task: "a", Scope: long, Fence: true}, {Task: "t" + long}, {Task: "mail:"}, {Task: "report:daily"},
	}}})
	redistest.Must(t, err)
	unknown, fenced := 0, 0
	for _, f := range all {
		if strings.Contains(f.Text, "no rule has the scope") {
			unknown++
		}
		if strings.Contains(f.Text, "has Fence") {
			fenced++
		}
	}
	if unknown != 2 || fenced != 1 {
		t.Errorf("%d unknown scopes, want 2; %d rules with a Fence, want 1: %+v", unknown, fenced, all)
	}
}

// Of many reasons why tasks have no key the most frequent ones are told, and how many more there are.
func TestKeys_manyReasons(t *testing.T) {
	t.Parallel()
	of := trialOf{0, "pay"}
	trials := &keyTrials{cfg: automutex.Config{Rules: []automutex.Rule{{Task: "pay"}}}, tried: map[trialOf]int{of: 20}, failed: map[failedTrial]*failures{}}
	for why, tasks := range map[string]int{"once": 1, "a twice": 2, "b twice": 2, "often": 7, "never again": 1} {
		trials.failed[failedTrial{of, why}] = &failures{tasks: tasks, runnable: tasks}
	}
	d := &doctor{}
	d.keys(trials)
	if len(d.findings) != 4 {
		t.Fatalf("%+v", d.findings)
	}
	for i, want := range []string{"no key for 7 of 20 tasks seen of type \"pay\": often; a worker archives", ": a twice;", ": b twice;", "and 2 more reasons why"} {
		if !strings.Contains(d.findings[i].Text, want) {
			t.Errorf("finding %d: %+v, want %q", i, d.findings[i], want)
		}
	}
	for path, want := range map[string]string{"to.Name": `there is a "to.name": letter case counts`, "list.0.nmae": `did you mean "list.0.name"?`, "list.7.name": "", "to.name.x": "", "list.x": "", "zzzzzz": ""} {
		if got := fieldHint([]byte(`{"to":{"name":1},"list":[{"name":1}]}`), path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

package automutex

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
)

func compileRules(t *testing.T, rules ...Rule) *ruleSet {
	t.Helper()
	rs, _, err := compile(Config{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// Rules match a type as handlers of asynq's own ServeMux do.
func TestRuleSet_matchesAsServeMuxDoes(t *testing.T) {
	t.Parallel()
	patterns := []string{"a", "a:", "a:b", "a:b:c", "b:", "report:daily", "report", "é"}
	mux := asynq.NewServeMux()
	var rules []Rule
	for _, pattern := range patterns {
		mux.Handle(pattern, asynq.NotFoundHandler())
		rules = append(rules, Rule{Task: pattern})
	}
	rs := compileRules(t, rules...)
	for _, taskType := range []string{
		"a", "a:", "a:b", "a:b:", "a:b:c", "a:b:cd", "a:c", "ab", "b", "b:", "b:x", "report", "report:", "report:daily",
		"report:dail", "report:daily:x", "reporting", "A", "", "é", "éa", "\xc3", "c",
	} {
		_, want := mux.Handler(asynq.NewTask(taskType, nil))
		got := ""
		if rules := rs.match(taskType); len(rules) == 1 {
			got = rules[0].Task
		} else if len(rules) > 1 {
			t.Errorf("%q: %d rules", taskType, len(rules))
		}
		if got != want {
			t.Errorf("%q matches %q, ServeMux says %q", taskType, got, want)
		}
	}
}

func TestRuleSet_targets(t *testing.T) {
	t.Parallel()
	rs := compileRules(t,
		Rule{Task: "transfer", Scope: "account", On: []string{"from"}},
		Rule{Task: "transfer", Scope: "account", On: []string{"to"}},
		Rule{Task: "call", Scope: "customer", On: []string{"customer.id", "shop"}, OnHeaders: []string{"region"}},
		Rule{Task: "call", Scope: "api", Limit: 20},
		Rule{Task: "call", Scope: "all", Key: func(_ context.Context, t *asynq.Task) ([]string, error) { return []string{t.Type()}, nil }},
		Rule{Task: "report:", On: []string{"id"}},
	)
	task := func(taskType, payload string) *asynq.Task {
		return asynq.NewTaskWithHeaders(taskType, []byte(payload), map[string]string{"region": "eu"})
	}
	tests := []struct {
		task *asynq.Task
		want []string // rule and key
	}{
		{task("transfer", `{"from":1,"to":2}`), []string{"transfer p:{account|1}", "transfer#2 p:{account|2}"}},
		{task("transfer", `{"from":2,"to":1}`), []string{"transfer#2 p:{account|1}", "transfer p:{account|2}"}},
		{task("transfer", `{"from":10,"to":9}`), []string{"transfer p:{account|10}", "transfer#2 p:{account|9}"}},
		{task("transfer", `{"from":1,"to":"1"}`), []string{"transfer p:{account|1}"}},
		{task("call", `{"shop":"s","customer":{"id":7}}`), []string{
			"call p:{customer|7|s|eu}", "call#2 p:{api}", "call#3 p:{all|call}",
		}},
		{task("report:daily", `{"id":1}`), []string{"report: p:{report:daily|1}"}},
		{task("report:", `{"id":1}`), []string{"report: p:{report:|1}"}},
		{task("nothing", `{`), nil},
	}
	for _, test := range tests {
		targets, err := rs.targets(t.Context(), test.task, "p")
		var got []string
		for _, target := range targets {
			got = append(got, target.rule.Name+" "+target.key)
			if !strings.HasPrefix(target.key, "p:{"+target.scope) {
				t.Errorf("%s: the scope is %s", target.key, target.scope)
			}
		}
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s %s: got %q (%v), want %q", test.task.Type(), test.task.Payload(), got, err, test.want)
		}
	}
	for _, broken := range []*asynq.Task{
		task("transfer", `{"from":1}`),
		task("call", `{"shop":"s"}`),
		asynq.NewTask("call", []byte(`{"shop":"s","customer":{"id":7}}`)), // no header
	} {
		targets, err := rs.targets(t.Context(), broken, "p")
		if !errors.As(err, new(*KeyError)) || targets != nil {
			t.Errorf("%s %s: got %v and %v, want a *KeyError", broken.Type(), broken.Payload(), targets, err)
		}
	}
}

func TestRuleSet_notices(t *testing.T) {
	t.Parallel()
	notices := func(rules ...Rule) []string {
		_, notices, err := compile(Config{Rules: rules})
		if err != nil {
			t.Fatal(err)
		}
		return notices
	}
	got := notices(Rule{Task: "a"}, Rule{Task: "a:b:c"}, Rule{Task: "a:b"}, Rule{Task: "c"})
	want := []string{
		`automutex: rule "a:b:c" (Rules[1]) hides rule "a:b" (Rules[2]) from tasks whose type begins with "a:b:c"`,
		`automutex: rule "a:b" (Rules[2]) hides rule "a" (Rules[0]) from tasks whose type begins with "a:b"`,
	}
	if len(got) != len(want) || !strings.HasPrefix(got[0], want[0]) || !strings.HasPrefix(got[1], want[1]) {
		t.Errorf("got %q\nwant %q", got, want)
	}

	got = notices(Rule{Task: "mail:*"})
	want = []string{`automutex: rule "mail:*" (Rules[0]): Task: "mail:*" matches only types that have that * in them`}
	if len(got) != 1 || !strings.HasPrefix(got[0], want[0]) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if got := notices(Rule{Task: "rep"}, Rule{Task: "x", Scope: "report"}, Rule{Task: "b"}, Rule{Task: "y", Scope: "b"}); len(got) > 0 {
		t.Errorf("nothing to tell, got %q", got)
	}
}

// The rule of an ordered key is that which made it: that of its scope, or else of the longest type.
func TestRuleSet_orderedRule(t *testing.T) {
	t.Parallel()
	rs := compileRules(t,
		Rule{Task: "mail:", On: []string{"id"}, InOrder: true}, Rule{Task: "mail:eu:", On: []string{"id"}, InOrder: true},
		Rule{Task: "bill", Scope: "account", On: []string{"id"}, InOrder: true}, Rule{Task: "report", On: []string{"id"}},
	)
	for key, want := range map[string]string{
		"p:{mail:us:send|7}": "mail:", "p:{mail:eu:send|7}": "mail:eu:", "p:{account|7}": "bill", "p:{account}": "bill",
		"p:{bill|7}": "", "p:{report|7}": "", "p:{other|7}": "", "q:{account|7}": "",
	} {
		got := ""
		if rule := rs.orderedRule("p", key); rule != nil {
			got = rule.Task
		}
		if got != want {
			t.Errorf("the rule of %s is %q, want %q", key, got, want)
		}
	}
}

// However rules are declared, no circle of tasks can wait for each other: the
// orders in which tasks take their keys contain no circle.
func TestRuleSet_noDeadlock(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	ordered := 0
	for range 1000 {
		var rules []Rule
		types := 1 + random.IntN(5)
		for taskType := range types {
			for rule := range 1 + random.IntN(4) {
				on := []string{fmt.Sprintf("f%d", random.IntN(4))}
				if random.IntN(3) == 0 {
					on = nil
				}
				rules = append(rules, Rule{Task: fmt.Sprint("t", taskType), Name: fmt.Sprint(taskType, rule), Scope: string("abcd"[random.IntN(4)]), On: on})
			}
		}
		random.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] }) // patterns need not be declared in one piece
		rs := compileRules(t, rules...)
		before := map[string]map[string]bool{} // keys, by the keys taken right after them
		for range 40 {
			payload := fmt.Sprintf(`{"f0":%d,"f1":%d,"f2":%d,"f3":%d}`, random.IntN(3), random.IntN(3), random.IntN(3), random.IntN(3))
			targets, err := rs.targets(t.Context(), asynq.NewTask(fmt.Sprint("t", random.IntN(types)), []byte(payload)), "p")
			if err != nil {
				t.Fatal(err)
			}
			for i := 1; i < len(targets); i++ {
				later := targets[i].key
				if before[later] == nil {
					before[later] = map[string]bool{}
				}
				before[later][targets[i-1].key] = true
				ordered++
			}
		}
		if circle := keyCircle(before); circle != nil {
			t.Fatalf("tasks can wait for each other around %q, rules %+v", circle, rules)
		}
	}
	if ordered < 1000 {
		t.Errorf("%d keys in order: too few to prove anything", ordered)
	}
}

func keyCircle(before map[string]map[string]bool) (circle []string) {
	done := map[string]bool{}
	var visit func(key string, trail []string) bool
	visit = func(key string, trail []string) bool {
		if slices.Contains(trail, key) {
			circle = append(trail, key)
			return true
		}
		if done[key] {
			return false
		}
		for earlier := range before[key] {
			if visit(earlier, append(trail, key)) {
				return true
			}
		}
		done[key] = true
		return false
	}
	for key := range before {
		if visit(key, nil) {
			return circle
		}
	}
	return nil
}

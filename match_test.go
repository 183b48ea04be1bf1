package automutex

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

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

	got = notices(Rule{Task: "rep", TTL: time.Second}, Rule{Task: "x", Scope: "report"})
	want = []string{`automutex: a task of type "report" would share the scope of rule "x" (Rules[1]) under rule "rep" (Rules[0])`}
	if len(got) != 1 || !strings.HasPrefix(got[0], want[0]) {
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

func TestCompile_refusesContradictoryOrder(t *testing.T) {
	t.Parallel()
	rule := func(task, scope string) Rule { return Rule{Task: task, Scope: scope} }
	_, _, err := compile(Config{Rules: []Rule{
		rule("t7", "w"),
		rule("t1", "a"), rule("t1", "b"), rule("t2", "b"), rule("t2", "c"), rule("t3", "c"), rule("t3", "a"), // a circle
		rule("t4", "x"), rule("t4", "y"), rule("t5", "y"), rule("t5", "x"), // another
		rule("t8", "y"), rule("t8", "z"), rule("t9", "z"), rule("t9", "y"), // a third, that shares a scope with it
		rule("t6", "b"), rule("t6", "y"), rule("t6", "w"), // and what is right
	}})
	if err == nil {
		t.Fatal("accepted")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d errors, want 3:\n%v", len(lines), err)
	}
	for _, wants := range [][]string{
		{`rule "t1#2" (Rules[2]) takes the scope "b" after "a"`, `rule "t2#2" (Rules[4]) takes the scope "c" after "b"`, `rule "t3#2" (Rules[6]) takes the scope "a" after "c"`},
		{`rule "t4#2" (Rules[8]) takes the scope "y" after "x"`, `rule "t5#2" (Rules[10]) takes the scope "x" after "y"`},
		{`rule "t8#2" (Rules[12]) takes the scope "z" after "y"`, `rule "t9#2" (Rules[14]) takes the scope "y" after "z"`},
	} {
		wants = append(wants, "automutex: ", "; declare these scopes in one order")
		if !slices.ContainsFunc(lines, func(line string) bool {
			return !slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(line, want) })
		}) {
			t.Errorf("no error has %q:\n%v", wants, err)
		}
	}
	if strings.Contains(err.Error(), "t6") || strings.Contains(err.Error(), "t7") {
		t.Errorf("a rule that is right is named:\n%v", err)
	}
}

// However rules are declared, no circle of tasks can wait for each other: the
// orders in which tasks take their keys contain no circle. And rules are
// refused only where no order of the scopes would do.
func TestRuleSet_noDeadlock(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	scopes := []string{"a", "b", "c", "d"}
	accepted, refused, ordered := 0, 0, 0
	for range 3000 {
		var rules []Rule
		var declared [][]string // scopes of each task type, as declared
		for taskType := range 1 + random.IntN(5) {
			var taken []string
			for rule := range 1 + random.IntN(4) {
				scope := scopes[random.IntN(len(scopes))]
				on := []string{fmt.Sprintf("f%d", random.IntN(4))}
				if random.IntN(3) == 0 {
					on = nil
				}
				rules = append(rules, Rule{Task: fmt.Sprint("t", taskType), Name: fmt.Sprint(taskType, rule), Scope: scope, On: on})
				if !slices.Contains(taken, scope) {
					taken = append(taken, scope)
				}
			}
			declared = append(declared, taken)
		}
		if random.IntN(2) == 0 { // patterns need not be declared in one piece
			random.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
			declared = declaredScopes(rules)
		}
		rs, _, err := compile(Config{Rules: rules})
		if possible := anyOrderDoes(scopes, declared); possible != (err == nil) {
			t.Fatalf("scopes declared as %q: an order exists: %t, but: %v", declared, possible, err)
		}
		if err != nil {
			refused++
			continue
		}
		accepted++
		before := map[string]map[string]bool{} // keys, by the keys taken right after them
		for range 40 {
			payload := fmt.Sprintf(`{"f0":%d,"f1":%d,"f2":%d,"f3":%d}`, random.IntN(3), random.IntN(3), random.IntN(3), random.IntN(3))
			task := asynq.NewTask(fmt.Sprint("t", random.IntN(len(declared))), []byte(payload))
			targets, err := rs.targets(t.Context(), task, "p")
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
			t.Fatalf("tasks can wait for each other around %q, scopes declared as %q", circle, declared)
		}
	}
	if accepted < 500 || refused < 500 || ordered < 1000 {
		t.Errorf("%d sets accepted, %d refused, %d keys in order: too few to prove anything", accepted, refused, ordered)
	}
}

func declaredScopes(rules []Rule) [][]string {
	byTask := map[string][]string{}
	for _, rule := range rules {
		if !slices.Contains(byTask[rule.Task], rule.Scope) {
			byTask[rule.Task] = append(byTask[rule.Task], rule.Scope)
		}
	}
	var declared [][]string
	for i := range len(byTask) {
		declared = append(declared, byTask[fmt.Sprint("t", i)])
	}
	return declared
}

// anyOrderDoes tries every order of the scopes.
func anyOrderDoes(scopes []string, declared [][]string) bool {
	if len(scopes) == 0 {
		return true
	}
	for i, first := range scopes {
		mayBeFirst := !slices.ContainsFunc(declared, func(taken []string) bool {
			return slices.Index(taken, first) > 0
		})
		if !mayBeFirst {
			continue
		}
		var rest [][]string
		for _, taken := range declared {
			rest = append(rest, slices.DeleteFunc(slices.Clone(taken), func(s string) bool { return s == first }))
		}
		if anyOrderDoes(slices.Delete(slices.Clone(scopes), i, i+1), rest) {
			return true
		}
	}
	return false
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

// Scopes that nothing relates keep the order of their declaration.
func TestOrderScopes_isStable(t *testing.T) {
	t.Parallel()
	rules := []Rule{{Task: "t1", Scope: "c"}, {Task: "t2", Scope: "b"}, {Task: "t2", Scope: "a"}, {Task: "t3", Scope: "d"}, {Task: "t3", Scope: "c"}}
	rs := compileRules(t, rules...)
	var got []string
	for rule := range rs.all() {
		got = append(got, fmt.Sprint(rule.Scope, rule.rank))
	}
	slices.Sort(got)
	if got := strings.Join(slices.Compact(got), " "); got != "a1 b0 c3 d2" {
		t.Errorf("ranks are %s", got)
	}
}

package automutex

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/keys"
)

func TestCompile_defaults(t *testing.T) {
	t.Parallel()
	rs, err := compile(Config{Rules: []Rule{
		{Task: "plain"},
		{
			Task: "full", Name: "n", Scope: "s", Limit: 3, TTL: time.Second, Wait: time.Minute,
			MaxHold: time.Hour, Busy: Skip, On: []string{"a"}, OnHeaders: []string{"h"},
		},
		{Task: "pair", Scope: "x"},
		{Task: "pair", Scope: "x", Name: "named"},
		{Task: "pair", Scope: "x"},
		{Task: "pair", Scope: "x"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	plain := rs.match("plain")[0]
	want := Rule{Task: "plain", Name: "plain", Limit: 1, TTL: 30 * time.Second, Late: Archive, Busy: Park}
	if !reflect.DeepEqual(plain.Rule, want) {
		t.Errorf("got %+v, want %+v", plain.Rule, want)
	}
	full := rs.match("full")[0]
	if full.Limit != 3 || full.TTL != time.Second || full.Name != "n" || full.Busy != Skip || full.index != 1 {
		t.Errorf("what was declared did not stay: %+v", full)
	}
	var names []string
	for _, rule := range rs.match("pair") {
		names = append(names, rule.Name)
	}
	if got := strings.Join(names, " "); got != "pair named pair#2 pair#3" {
		t.Errorf("names are %s", got)
	}
	if rs, err := compile(Config{}); err != nil || rs.match("any") != nil {
		t.Errorf("no rules: %v", err)
	}
}

func TestCompile_refuses(t *testing.T) {
	t.Parallel()
	type payload struct {
		ID int `json:"id"`
	}
	key := KeyFunc(func(context.Context, *asynq.Task) ([]string, error) { return []string{"k"}, nil })
	refusesAll := func(cfg Config, want ...string) { // one error each, and no others
		t.Helper()
		rs, err := compile(cfg)
		if err == nil || rs != nil {
			t.Errorf("accepted, want %q", want)
			return
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(want) {
			t.Errorf("%d errors, want %d:\n%v", len(lines), len(want), err)
			return
		}
		for i, line := range lines {
			if !strings.HasPrefix(line, "automutex: ") || !strings.Contains(line, want[i]) {
				t.Errorf("got  %s\nwant %s", line, want[i])
			}
		}
		if _, ok := err.(interface{ Unwrap() []error }); !ok {
			t.Errorf("%v: the errors are not joined", err)
		}
	}
	refuses := func(rule Rule, want ...string) {
		t.Helper()
		if rule.Task == "" {
			rule.Task = "t"
		}
		refusesAll(Config{Rules: []Rule{rule}}, want...)
	}
	together := func(rules []Rule, want ...string) { t.Helper(); refusesAll(Config{Rules: rules}, want...) }
	rate := func(r Rate, want string) { t.Helper(); refuses(Rule{Limit: 1, Rate: r}, want) }
	together([]Rule{{}}, `rule "" (Rules[0]): Task: "" is blank; name`)
	together([]Rule{{Task: " a"}}, `Task: " a" begins or ends with a blank, `)
	together([]Rule{{Task: "mail:*"}}, `Task: "mail:*" has a *: `)
	refuses(Rule{Optional: true}, `Optional: needs On or OnHeaders, `)
	refuses(Rule{InOrder: true, Busy: Park, OnArchive: 7}, `OnArchive: 7 is neither HoldKey nor Continue`)
	together([]Rule{
		{Task: "a", Scope: "s", InOrder: true, Busy: Park},
		{Task: "b", Scope: "s", InOrder: true, Busy: Park, OnArchive: Continue},
		{Task: "c", Scope: "s", InOrder: true, Busy: Park, MaxQueued: 5},
	}, `rule "b" (Rules[1]): OnArchive: is continue, but rule "a" (Rules[0]) has hold for the same scope "s"; `,
		`rule "c" (Rules[2]): MaxQueued: is 5, but rule "a" (Rules[0]) has 0 for the same scope "s"; `)
	together([]Rule{{Task: "a", Scope: "s"}, {Task: "b", Scope: "s", Limit: 1,
		Rate: Rate{Starts: 2, Per: time.Minute}}},
		`Rate: is 2 per 1m0s, burst 1, but rule "a" (Rules[0]) has none for the same scope "s"; `)
	refuses(Rule{On: []string{"", "a..b", `a\`, "ok", "ok"}}, `rule "t" (Rules[0]): On[0]: "" is empty; name`,
		`On[1]: "a..b" has an empty segment; `,
		`On[2]: "a\\" has a lone backslash; `,
		`On[4]: "ok" is there twice; `)
	refuses(Rule{OnHeaders: []string{"", "h", "h"}}, `OnHeaders[0]: is empty`,
		`OnHeaders[2]: "h" is there twice`)
	refuses(Rule{Key: key, On: []string{"a"}}, `Key: excludes On and OnHeaders; `)
	refuses(Rule{On: []string{"id", "idd"}, LimitField: &LimitField{Path: "mx", Default: 1}, Payload: payload{}},
		`On[1]: "idd" is not in the JSON of automutex.payload: `,
		`LimitField: "mx" is not in the JSON of automutex.payload: `)
	refuses(Rule{Limit: -1}, `Limit: -1 is negative; `)
	refuses(Rule{TTL: 100*time.Millisecond - 1}, `TTL: 99.999999ms is too short; `)
	refuses(Rule{Wait: 10}, `Wait: 10ns is too short; use 0 to not wait in line, or at least 1ms; did you mean 10s? `)
	refuses(Rule{Wait: -1}, `Wait: -1ns is too short; use 0 to not wait in line, `)
	refuses(Rule{TTL: 30, MaxHold: 60, Cooldown: 5, Busy: RetryIn(7)},
		"TTL: 30ns is too short; use 0 for 30s, or at least 100ms; did you mean 30s?", "did you mean 60s?",
		"did you mean 5s?", "RetryIn(7ns) is no delay; give at least 1ms, or use Retry; did you mean 7s?")
	refuses(Rule{On: []string{"$.x", "x[0]", "x,y", "items.*.id"}}, `On[0]: "$.x" has a "$", as other notations have; `,
		`On[1]: "x[0]" has a "[", as other notations have; write names and indexes with a dot between, as in "items.0.id", one path for each field, and \[ for one in a name`,
		`On[2]: "x,y" has a ",", as other notations have; `,
		`On[3]: "items.*.id" has a "*", as other notations have; `)
	refuses(Rule{TTL: time.Duration(1 << 62).Truncate(time.Millisecond)}, `TTL: 1281023h53m38.427s is too long; at most `)
	refuses(Rule{Cooldown: time.Duration(1 << 62).Truncate(time.Millisecond)},
		`Cooldown: 1281023h53m38.427s is too long; at most `)
	refuses(Rule{MaxHold: -1}, `MaxHold: -1ns is too short; `)
	refuses(Rule{MaxHold: 100*time.Millisecond - 1},
		`MaxHold: 99.999999ms is too short; use 0 for no bound, or at least 100ms`)
	refuses(Rule{Cooldown: -1}, `Cooldown: -1ns is too short; `)
	rate(Rate{Starts: -1, Per: time.Second}, `Rate: a rate of -1 starts`)
	rate(Rate{Per: 60},
		`Rate: it needs both Starts and Per, such as 100 per minute; did you mean 60s? `)
	rate(Rate{Starts: 100, Per: 60},
		`Rate: a rate of 100 starts per 60ns: at most one a microsecond; did you mean 60s? `)
	rate(Rate{Starts: 2, Per: time.Microsecond},
		`Rate: a rate of 2 starts per 1µs: at most one a microsecond`)
	rate(Rate{Starts: 1, Per: 366 * 24 * time.Hour}, `Rate: a rate per 8784h0m0s: at most 8760h`)
	rate(Rate{Starts: 1, Per: time.Second, Burst: -1}, `Rate: a Burst of -1 is negative`)
	refuses(Rule{Busy: RetryIn(-time.Second)}, `Busy: RetryIn(-1s) is no delay; `)
	refuses(Rule{Busy: AfterFailure(nil)}, `Busy: AfterFailure has no function; `)
	refusesAll(Config{Prefix: "a{b"}, `automutex: Config.Prefix: lock: prefix "a{b" has a brace, `)
	refusesAll(Config{Prefix: "a b"}, `Config.Prefix: lock: prefix "a b" has `)
	refusesAll(Config{Prefix: "asynq"}, `Config.Prefix: "asynq" is what asynq's own keys start with; `)
	together([]Rule{{Task: "a"}, {Task: "b", Name: "a"}, {Task: "c", Name: "a"}},
		`rule "a" (Rules[1]): Name: is that of Rules[0] too; `,
		`rule "a" (Rules[2]): Name: is that of Rules[0] too; `)
	together([]Rule{{Task: "a"}, {Task: "a"}}, `rule "a" (Rules[0]): Task: the whole rule is there twice; `,
		`rule "a#2" (Rules[1]): Task: the whole rule is there twice; `)
	together([]Rule{{Task: "a"}, {Task: "a", Scope: "s"}, {Task: "a", TTL: time.Hour}},
		`rule "a" (Rules[0]): Scope: is empty, and 3 rules have the Task "a"; give`,
		`rule "a#3" (Rules[2]): Scope: is empty, and 3 rules have the Task "a"; give`)
	together([]Rule{{Task: "a", Scope: "s"}, {Task: "b", Scope: "s", Limit: 2, TTL: time.Minute}},
		`rule "b" (Rules[1]): Limit: is 2, but rule "a" (Rules[0]) has 1 for the same scope "s"; one scope has one Limit`,
		`rule "b" (Rules[1]): TTL: is 1m0s, but rule "a" (Rules[0]) has 30s for the same scope "s"; `)
	together([]Rule{{Task: "a", Limit: 2}, {Task: "b", Scope: "a"}},
		`rule "b" (Rules[1]): Limit: is 1, but rule "a" (Rules[0]) has 2 for the same scope "a"; `)
	refusesAll(Config{Prefix: "{", Rules: []Rule{{Limit: -1}, {Task: "b", TTL: 1, Busy: RetryIn(0)}}},
		"Config.Prefix", "(Rules[0]): Task: ", "(Rules[0]): Limit: ", "(Rules[1]): TTL: ", "(Rules[1]): Busy: ")
}

func TestCompile_accepts(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"bounds": {Prefix: "my:app|%~é", Rules: []Rule{{
			Task: "a", TTL: 100 * time.Millisecond, MaxHold: 100 * time.Millisecond, Cooldown: time.Millisecond,
			Limit: 1, Wait: time.Millisecond, Busy: RetryIn(time.Millisecond),
		}}},
		"long TTL, odd bytes": {Rules: []Rule{{Task: "täsk %d{}\xff", Name: " ", Scope: "\x00", TTL: 1000 * time.Hour}}},
	} {
		if _, err := compile(cfg); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func compileRules(t *testing.T, rules ...Rule) *ruleSet {
	t.Helper()
	rs, err := compile(Config{Rules: rules})
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
		Rule{Task: "audit", Scope: "account", On: []string{"id"}},
		Rule{Task: "call", Scope: "customer", On: []string{"customer.id", "shop"}, OnHeaders: []string{"region"}},
		Rule{Task: "call", Scope: "api", Limit: 20},
		Rule{Task: "call", Scope: "all", Key: func(_ context.Context, t *asynq.Task) ([]string, error) {
			return []string{t.Type()}, nil
		}},
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
		{task("audit", `{"id":1}`), []string{"audit p:{account|1}"}}, // a lock that it shares with transfers
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

// The rule of an ordered key is that which made it: that of its scope, or else of the longest type.
func TestGuard_orderedRule(t *testing.T) {
	t.Parallel()
	long := "mail:" + strings.Repeat("x", keys.MaxScope)
	g := &Guard{cfg: Config{Prefix: "p"}}
	g.served.Add(long)
	g.rules = compileRules(t, Rule{Task: "c", Scope: keys.Controls, InOrder: true}, Rule{Task: long + "!", InOrder: true},
		Rule{Task: "mail:", On: []string{"id"}, InOrder: true}, Rule{Task: "mail:eu:", On: []string{"id"}, InOrder: true},
		Rule{Task: "bill", Scope: "account", On: []string{"id"}, InOrder: true}, Rule{Task: "report", On: []string{"id"}},
	)
	for key, want := range map[string]string{
		"p:{mail:us:send|7}": "mail:", "p:{mail:eu:send|7}": "mail:eu:", "p:{account|7}": "bill", "p:{account}": "bill",
		"p:{bill|7}": "", "p:{report|7}": "", "p:{other|7}": "", "q:{account|7}": "",
		keys.Key("p", keys.Controls): "c", keys.Key("p", long, "7"): "mail:", keys.Key("p", long+"!"): long + "!",
		keys.Key("p", long+"?", "7"): "", // of which no task came
	} {
		got := ""
		if rule := g.orderedRule(key); rule != nil {
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
				rules = append(rules, Rule{Task: fmt.Sprint("t", taskType), Name: fmt.Sprint(taskType, rule),
					Scope: string("abcd"[random.IntN(4)]), On: on})
			}
		}
		// patterns need not be declared in one piece
		random.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
		rs := compileRules(t, rules...)
		before := map[string]map[string]bool{} // keys, by the keys taken right after them
		for range 40 {
			payload := fmt.Sprintf(`{"f0":%d,"f1":%d,"f2":%d,"f3":%d}`, random.IntN(3), random.IntN(3), random.IntN(3),
				random.IntN(3))
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

package simulate

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pairFeatures are those whose pairs testdata/pairs.txt lists; the first of them are
// policies, which do not meet each other but by several rules.
var pairFeatures = []string{
	"Retry", "Wait", "Skip, Archive, Fail", "Park", "Replace", "Allow", "AfterFailure",
	"Limit > 1", "Cooldown", "MaxHold", "several rules", "last attempt", "timeout", "unique", "MinReplicas", "HashKeys", "Pause",
	"Rate", "Hold", "SetLimit",
}

const pairPolicies = 7

// testFunctions are the names of all tests and fuzz tests of the repository.
func testFunctions(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	root := filepath.Join("..", "..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		src, err := os.ReadFile(path)
		for _, found := range declared.FindAllStringSubmatch(string(src), -1) {
			names[found[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// testdata/pairs.txt has each pair of features once, and names tests that exist.
func TestPairs(t *testing.T) {
	t.Parallel()
	table, err := os.ReadFile(filepath.Join("testdata", "pairs.txt"))
	if err != nil {
		t.Fatal(err)
	}
	tests, played, drawn := testFunctions(t), map[string]bool{}, drawnPairs()
	for _, p := range scenarios() {
		played[p.Name] = true
	}
	rows := map[string]int{}
	for line := range strings.Lines(string(table)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, "|")
		if len(cells) != 3 {
			t.Errorf("not three cells: %s", line)
			continue
		}
		rows[strings.TrimSpace(cells[0])+" and "+strings.TrimSpace(cells[1])]++
		shown := strings.TrimSpace(cells[2])
		name, scenario, _ := strings.Cut(shown, ": ")
		pair := [2]string{strings.TrimSpace(cells[0]), strings.TrimSpace(cells[1])}
		switch {
		case shown == "refused by New":
		case shown == "TestWorlds" && drawn[pair] < drawnLeast:
			t.Errorf("%d of %d worlds have the pair, want %d: %s", drawn[pair], drawnFrom, drawnLeast, line)
		case !tests[name]:
			t.Errorf("no test is called %q: %s", name, line)
		case scenario != "" && !played[scenario]:
			t.Errorf("no scenario is called %q: %s", scenario, line)
		}
	}
	for i, a := range pairFeatures {
		for _, b := range pairFeatures[max(i+1, pairPolicies*btoi(i < pairPolicies)):] {
			if rows[a+" and "+b] != 1 {
				t.Errorf("%s and %s: %d rows, want one", a, b, rows[a+" and "+b])
			}
			delete(rows, a+" and "+b)
		}
	}
	for pair := range rows {
		t.Errorf("%s: no pair of the features that the test knows", pair)
	}
}

// Of the first drawnFrom worlds, which CI plays, at least drawnLeast have each pair that
// testdata/pairs.txt says they show.
const drawnFrom, drawnLeast = 1000, 10

// drawnPairs is how many of the first worlds have a task with both features.
func drawnPairs() map[[2]string]int {
	count := map[[2]string]int{}
	for i := range uint64(drawnFrom) {
		p, pairs := draw(defaultSeed+i), map[[2]string]bool{}
		for _, task := range p.Tasks {
			has := p.featuresOf(task)
			for i, a := range pairFeatures {
				for _, b := range pairFeatures[i+1:] {
					if has[a] && has[b] {
						pairs[[2]string{a, b}] = true
					}
				}
			}
		}
		for pair := range pairs {
			count[pair]++
		}
	}
	return count
}

// featuresOf are those of pairFeatures that a task meets.
func (p *plan) featuresOf(t taskPlan) map[string]bool {
	rules := p.rulesOf(t)
	has := map[string]bool{
		"several rules": len(rules) > 1, "last attempt": t.MaxRetry == 0, "timeout": t.Timeout > 0, "unique": p.uniqueOf(t) != nil,
		"MinReplicas": p.MinReplicas > 0, "HashKeys": p.HashKeys,
	}
	for _, op := range p.Ops {
		has["Pause"] = has["Pause"] || op.Kind == "halt" && p.orderMeets(op, t)
		has["SetLimit"] = has["SetLimit"] || op.Kind == "limit" && p.orderMeets(op, t)
	}
	for _, r := range rules {
		has[r.policyFeature()] = true
		has["Limit > 1"] = has["Limit > 1"] || r.limit() > 1
		has["Rate"] = has["Rate"] || r.Starts > 0
		has["Hold"] = has["Hold"] || p.isHeld(r.key(t))
		has["Cooldown"] = has["Cooldown"] || r.Cooldown > 0
		has["MaxHold"] = has["MaxHold"] || r.MaxHold > 0
	}
	return has
}

func (r rulePlan) policyFeature() string {
	switch r.Policy {
	case "skip", "archive", "fail":
		return "Skip, Archive, Fail"
	case "park":
		return "Park"
	case "replace":
		return "Replace"
	case "allow":
		return "Allow"
	case "after":
		return "AfterFailure"
	}
	if r.Wait > 0 {
		return "Wait"
	}
	return "Retry"
}

// btoi is 1 for true.
func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// isHeld tells whether a handler of some task puts a key on hold: that of its last rule,
// which is not Allow.
func (p *plan) isHeld(key string) bool {
	for _, t := range p.Tasks {
		rules := p.rulesOf(t)
		if len(rules) == 0 || rules[len(rules)-1].Policy == "allow" || rules[len(rules)-1].key(t) != key {
			continue
		}
		for _, s := range t.Steps {
			if s.Hold > 0 {
				return true
			}
		}
	}
	return false
}

// orderMeets tells whether an operator's order is for one of the locks of a task.
func (p *plan) orderMeets(op opPlan, t taskPlan) bool {
	halted := p.rulesOf(p.Tasks[op.Task])
	for _, r := range p.rulesOf(t) {
		if len(halted) > 0 && (r.key(t) == halted[0].key(p.Tasks[op.Task]) || op.Whole && r.scope() == halted[0].scope()) {
			return true
		}
	}
	return false
}

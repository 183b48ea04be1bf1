package simulate

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pairFeatures are those whose pairs docs/architecture.md lists; the first of them are
// policies, which do not meet each other but by several rules.
var pairFeatures = []string{
	"Retry", "Wait", "Skip, Archive, Fail", "Park", "Replace", "Allow", "AfterFailure",
	"Limit > 1", "Cooldown", "MaxHold", "several rules", "last attempt", "timeout", "unique", "MinReplicas", "HashKeys",
}

const pairPolicies = 7

// testFunctions are the names of all tests and fuzz tests of the repository.
func testFunctions(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	root := filepath.Join("..", "..")
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

// The table of pairs in docs/architecture.md has each pair once, and names tests that exist.
func TestPairs(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(doc), "| feature | and | shown by |\n|---|---|---|\n")
	if !ok {
		t.Fatal("docs/architecture.md has no table of pairs")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	tests, played := testFunctions(t), map[string]bool{}
	for _, p := range scenarios() {
		played[p.Name] = true
	}
	rows := map[string]int{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 {
			t.Errorf("not three cells: %s", line)
			continue
		}
		rows[strings.TrimSpace(cells[0])+" and "+strings.TrimSpace(cells[1])]++
		shown := strings.TrimSpace(cells[2])
		name, scenario, _ := strings.Cut(shown, ": ")
		switch {
		case shown == "refused by New", shown == "not shown":
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

// btoi is 1 for true.
func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

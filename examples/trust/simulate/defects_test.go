package simulate

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// examples/trust/RESULTS.md lists as many defects found by the simulation as can be planted, and
// names a test that exists for each defect that the simulation cannot see.
func TestDefects(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join("..", "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := func(head string) (rows []string) {
		_, table, ok := strings.Cut(string(b), head)
		if !ok {
			t.Fatalf("RESULTS.md has no table %q", head)
		}
		table, _, _ = strings.Cut(table, "\n\n")
		return strings.Split(strings.TrimSpace(table), "\n")
	}
	files, err := filepath.Glob(filepath.Join("testdata", "planted", "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if found := rows("| defect | found by | as |\n|---|---|---|\n"); len(found) != len(files) {
		t.Errorf("%d defects are listed as found, %d can be planted", len(found), len(files))
	}
	tests, quoted := testFunctions(t), regexp.MustCompile("`(Test\\w+)`")
	for _, row := range rows("| defect | held by |\n|---|---|\n") {
		names := quoted.FindAllStringSubmatch(row, -1)
		if len(names) == 0 {
			t.Errorf("no test: %s", row)
		}
		for _, name := range names {
			if !tests[name[1]] {
				t.Errorf("no test is called %s: %s", name[1], row)
			}
		}
	}
}

package lock_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every row of the tables in docs/migrating.md names a test, and every test
// that it names exists: here, in the root package or in unique.
func TestSeedDocs_EveryRowNamesATestThatExists(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	exists := map[string]bool{}
	for _, pattern := range []string{"*_test.go", filepath.Join("..", "*_test.go"), filepath.Join("..", "internal", "e2e", "*_test.go"), filepath.Join("..", "unique", "*_test.go")} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, file := range files {
			for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(t `).FindAllStringSubmatch(read(file), -1) {
				exists[found[1]] = true
			}
		}
	}

	page := read(filepath.Join("..", "docs", "migrating.md"))
	test := regexp.MustCompile(`\bTest\w+`)
	named := map[string]bool{}
	for _, name := range test.FindAllString(page, -1) {
		if named[name] = true; !exists[name] {
			t.Errorf("docs/migrating.md names %s, which does not exist", name)
		}
	}
	rows := 0
	lines := strings.Split(page, "\n")
	for i, line := range lines {
		next := ""
		if i+1 < len(lines) {
			next = lines[i+1]
		}
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(next, "|---") {
			continue // no row, the line under a heading, a heading
		}
		if rows++; !test.MatchString(line) {
			t.Errorf("docs/migrating.md:%d: the row names no test: %s", i+1, line)
		}
	}
	if rows < 50 {
		t.Errorf("docs/migrating.md has %d rows: is it read right?", rows)
	}
	// And the other way round: what a seed defines is in the tables.
	for name := range exists {
		if strings.HasPrefix(name, "TestSeed") && !strings.HasPrefix(name, "TestSeedDocs_") && !named[name] {
			t.Errorf("docs/migrating.md has no row for %s", name)
		}
	}
}

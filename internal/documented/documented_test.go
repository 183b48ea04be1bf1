package documented

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

// read returns the text of a file.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	redistest.Must(t, err)
	return string(text)
}

// declaredTests calls f with each test and fuzz target of the repository, and its folder.
func declaredTests(t *testing.T, f func(folder, name string)) {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	redistest.Must(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			for _, m := range declared.FindAllStringSubmatch(read(t, path), -1) {
				f(filepath.ToSlash(filepath.Dir(path)), m[1])
			}
		}
		return err
	}))
}

// Each test is there that the pages for a release, for security and of the guarantees name.
func TestDocumented_testsExist(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	declaredTests(t, func(_, name string) { there[name] = true })
	for _, page := range []string{".github/SECURITY.md", "VERSIONING.md", "docs/guarantees.md"} {
		names := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`").FindAllStringSubmatch(read(t, page), -1)
		if len(names) < 5 {
			t.Errorf("%s names %d tests", page, len(names))
		}
		for _, m := range names {
			if !there[m[1]] {
				t.Errorf("%s names %s, and there is none", page, m[1])
			}
		}
	}
	// Each row of what untrusted input can do names a test.
	_, rows, _ := strings.Cut(read(t, ".github/SECURITY.md"), "| input | at most | test |\n")
	rows, _, _ = strings.Cut(rows, "\n\n")
	lines := strings.Split(rows, "\n")[1:]
	for _, row := range lines {
		if cells := strings.Split(row, " | "); len(cells) != 3 || !strings.Contains(cells[2], "`Test") && !strings.Contains(cells[2], "`Fuzz") {
			t.Errorf("SECURITY.md: a row of %d columns, or without a test: %s", len(cells), row)
		}
	}
	if len(lines) < 10 {
		t.Errorf("SECURITY.md: %d rows", len(lines))
	}
}

// Each fuzz target has a corpus, so that every test run goes through what was found, and its command stands in
// CONTRIBUTING.md.
func TestDocumented_corpora(t *testing.T) {
	t.Parallel()
	commands := read(t, ".github/CONTRIBUTING.md")
	targets := 0
	declaredTests(t, func(folder, name string) {
		if !strings.HasPrefix(name, "Fuzz") {
			return
		}
		targets++
		if files, _ := filepath.Glob(filepath.Join(folder, "testdata", "fuzz", name, "*")); len(files) == 0 {
			t.Errorf("%s has no corpus for %s", folder, name)
		}
		if !regexp.MustCompile(`-fuzz '?` + name + `\b.* \./` + folder + `\n`).MatchString(commands) {
			t.Errorf("CONTRIBUTING.md has no command that fuzzes %s of %s", name, folder)
		}
	})
	if targets < 8 {
		t.Errorf("found only %d targets", targets)
	}
}

// Each link from a page to a page or to a part of one leads somewhere.
func TestDocumented_links(t *testing.T) {
	t.Parallel()
	anchors := map[string]map[string]bool{} // by page
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/model/*.md", "examples/*.md", "examples/trust/*.md", ".github/*.md"} {
		files, err := filepath.Glob(pattern)
		redistest.Must(t, err)
		for _, page := range files {
			anchors[page] = map[string]bool{}
			for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(read(t, page), -1) {
				name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
				anchors[page][strings.ReplaceAll(name, " ", "-")] = true
			}
		}
	}
	links := 0
	for page := range anchors {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(m[1], "#")
			to := page
			if path != "" {
				to = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %s leads nowhere", page, m[1])
			} else if anchor != "" && !anchors[to][anchor] {
				t.Errorf("%s: %s has no such part", page, m[1])
			}
		}
	}
	if links < 80 {
		t.Errorf("found only %d links", links)
	}
}

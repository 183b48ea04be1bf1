package documented

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each test is there that the pages for a release, for security and of the guarantees name.
func TestDocumented_testsExist(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		for _, m := range declared.FindAllStringSubmatch(string(src), -1) {
			there[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"SECURITY.md", "VERSIONING.md", "docs/guarantees.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`").FindAllStringSubmatch(string(text), -1)
		if len(names) < 5 {
			t.Errorf("%s names %d tests", page, len(names))
		}
		for _, m := range names {
			if !there[m[1]] {
				t.Errorf("%s names %s, and there is none", page, m[1])
			}
		}
		// Each row of what untrusted input can do names a test.
		if _, rows, table := strings.Cut(string(text), "| input | at most | test |\n"); table || page == "SECURITY.md" {
			rows, _, _ = strings.Cut(rows, "\n\n")
			lines := strings.Split(rows, "\n")[1:]
			for _, row := range lines {
				if cells := strings.Split(row, " | "); len(cells) != 3 || !strings.Contains(cells[2], "`Test") && !strings.Contains(cells[2], "`Fuzz") {
					t.Errorf("%s: a row of %d columns, or without a test: %s", page, len(cells), row)
				}
			}
			if len(lines) < 10 {
				t.Errorf("%s: %d rows", page, len(lines))
			}
		}
	}
}

// The pages are short: what is said twice, or in many words, is not read.
func TestDocumented_words(t *testing.T) {
	t.Parallel()
	pages := pagesOfDocs(t)
	words, word := 0, regexp.MustCompile(`\S*[\pL\d]\S*`) // the lines of a table are none
	for page, text := range pages {
		if strings.HasPrefix(page, "docs") {
			words += len(word.FindAllString(text, -1))
		}
	}
	if most := 14050; words > most {
		t.Errorf("docs has %d words, and %d are allowed", words, most)
	}
	if n := len(strings.Fields(pages["README.md"])); n > 1100 {
		t.Errorf("README.md has %d words, and 1,100 are allowed", n)
	}
}

// Each link from a page to a page or to a part of one leads somewhere.
func TestDocumented_links(t *testing.T) {
	t.Parallel()
	pages := pagesOfDocs(t)
	anchors := map[string]map[string]bool{}
	for page, text := range pages {
		anchors[page] = map[string]bool{}
		for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
			name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
			anchors[page][strings.ReplaceAll(name, " ", "-")] = true
		}
	}
	links := 0
	for page, text := range pages {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
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

// pagesOfDocs returns the pages of the project by their paths.
func pagesOfDocs(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/model/*.md", "examples/*.md", "examples/trust/*.md", ".github/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			pages[file] = string(text)
		}
	}
	return pages
}

// What a user meets first has an example that pkg.go.dev shows and runs: it stands in the package's own folder.
func TestDocumented_examples(t *testing.T) {
	t.Parallel()
	for folder, names := range map[string][]string{
		".": {"Example", "ExampleRule", "ExamplePark", "ExampleRetry", "ExampleRetryIn", "ExampleSkip", "ExampleArchive", "ExampleFail",
			"ExampleAfterFailure", "ExampleReplace", "ExampleRule_wait", "ExampleAllow", "ExampleCloseGate", "ExampleFence", "ExampleNewClient", "Example_lead"},
		"lock": {"Example", "ExampleLock_Lock", "ExampleLocker_Semaphore"}, "lock/pool": {"Example"}, "unique": {"Example"},
		"automutextest": {"Example"}, "config": {"ExampleParse"},
	} {
		files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		source := ""
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			source += string(text)
		}
		for _, name := range names {
			if !strings.Contains(source, "\nfunc "+name+"() {") {
				t.Errorf("%s has no %s", folder, name)
			}
		}
	}
}

// A question of a user is answered in two look-ups: README.md links to the guide, whose first table links to the answer.
func TestDocumented_questions(t *testing.T) {
	t.Parallel()
	pages := pagesOfDocs(t)
	if !strings.Contains(pages["README.md"], "](docs/guide.md)") {
		t.Error("README.md does not link to the guide")
	}
	for question, answer := range map[string]struct{ at, says string }{
		"does my task lose its retry count?":        {"guide.md#what-happens-when", "its attempt not spent"},
		"what happens on a deployment?":             {"guide.md#deploy", "Stop workers with SIGTERM"},
		"who is waiting?":                           {"operations.md#the-command", "automutex show"},
		"how do I test my handler?":                 {"guide.md#test-your-handlers", "automutextest"},
		"how do I lock by a header?":                {"guide.md#lock-by-a-header", "OnHeaders"},
		"what happens when Redis fails over?":       {"guide.md#a-failover-drill", "MinReplicas"},
		"what does a lock cost for each task?":      {"guide.md#what-a-lock-costs", "two commands"},
		"how do I roll it out?":                     {"guide.md#roll-out", "automutex.Allow"},
		"one at a time for a user, and ten in all?": {"guide.md#one-for-each-user-ten-in-all", "Limit: 10"},
		"in order for each user?":                   {"guide.md#in-order", "InOrder: true"},
	} {
		page, anchor, _ := strings.Cut(answer.at, "#")
		index, _, _ := strings.Cut(pages["docs/guide.md"], "\n## Rules")
		if !strings.Contains(index, strings.TrimPrefix(answer.at, "guide.md")+")") {
			t.Errorf("%s: the guide's first table has no link to %s", question, answer.at)
		}
		section := ""
		for _, part := range regexp.MustCompile(`(?m)^##+ `).Split(pages["docs/"+page], -1) {
			heading, text, _ := strings.Cut(part, "\n")
			if strings.ReplaceAll(strings.ToLower(strings.ReplaceAll(heading, ",", "")), " ", "-") == anchor {
				section = text
			}
		}
		if !strings.Contains(section, answer.says) {
			t.Errorf("%s: %s does not say %q", question, answer.at, answer.says)
		}
	}
}

// Each fuzz target has a corpus, so that every test run goes through what was found, and its command stands in
// CONTRIBUTING.md.
func TestDocumented_corpora(t *testing.T) {
	t.Parallel()
	targets := 0
	page, err := os.ReadFile(filepath.Join(".github", "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands := string(page)
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`).FindAllSubmatch(source, -1) {
			targets++
			if files, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "testdata", "fuzz", string(m[1]), "*")); len(files) == 0 {
				t.Errorf("%s has no corpus for %s", filepath.Dir(path), m[1])
			}
			command := regexp.MustCompile(`-fuzz '?` + string(m[1]) + `\b.* \./` + filepath.ToSlash(filepath.Dir(path)) + `\n`)
			if !command.MatchString(commands) {
				t.Errorf("CONTRIBUTING.md has no command that fuzzes %s of %s", m[1], filepath.Dir(path))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if targets < 8 {
		t.Errorf("found only %d targets", targets)
	}
}

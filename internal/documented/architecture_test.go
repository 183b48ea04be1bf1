package documented

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each file and folder that docs/architecture.md names is there.
func TestArchitecture_namesWhatThereIs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(string(page), "## Pairs of features")
	named := 0
	for _, found := range regexp.MustCompile("`([a-z_/]+(?:\\.go|\\.lua)|(?:internal|lock|cmd)/[a-z]+|[a-z]+)`").FindAllStringSubmatch(text, -1) {
		name := found[1]
		if _, err := os.Stat(name); err != nil {
			if strings.ContainsAny(name, "./") {
				t.Errorf("the page names %s, and there is none", name)
			}
			continue // a word of the code
		}
		named++
	}
	if named < 60 {
		t.Errorf("found only %d", named)
	}
}

// Each folder of internal has a row under "Rooms".
func TestArchitecture_rooms(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rooms, _ := strings.Cut(string(page), "## Rooms")
	rooms, _, _ = strings.Cut(rooms, "\n## ")
	folders, err := filepath.Glob(filepath.Join("internal", "*"))
	if err != nil || len(folders) < 10 {
		t.Fatalf("%v, %v", folders, err)
	}
	for _, folder := range folders {
		if !strings.Contains(rooms, "`"+filepath.ToSlash(folder)+"`") {
			t.Errorf("docs/architecture.md has no room for %s", folder)
		}
	}
}

// The top folder shows what the project is made of: what it has more of than a screen hides the code.
func TestArchitecture_topFolderIsShort(t *testing.T) {
	t.Parallel()
	const most = 66
	out, err := exec.Command("git", "ls-files").Output()
	if err != nil {
		t.Skip("no git, or no checkout: ", err)
	}
	entries := map[string]bool{}
	for name := range strings.Lines(string(out)) {
		top, _, _ := strings.Cut(strings.TrimSpace(name), "/")
		entries[top] = true
	}
	if len(entries) < 30 || len(entries) > most {
		t.Errorf("the top folder has %d entries, and at most %d are allowed: tests of the public API go to internal/e2e", len(entries), most)
	}
}

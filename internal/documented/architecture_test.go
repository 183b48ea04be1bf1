package documented

import (
	"bytes"
	"io/fs"
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

// No Go file of the repository has more than 400 lines: a reader can keep one in mind.
func TestArchitecture_filesAreShort(t *testing.T) {
	t.Parallel()
	const most = 400
	files := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := d.Name(); {
		case d.IsDir() && path != "." && path != ".ci" && strings.HasPrefix(name, "."):
			return filepath.SkipDir // of other tools
		case d.IsDir() && (name == "testdata" || name == "node_modules" || name == "vendor"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		if lines := bytes.Count(source, []byte("\n")); lines > most {
			t.Errorf("%s has %d lines, and %d are allowed: move one of its concepts to another file", path, lines, most)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("found only %d", files)
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
	const most = 65
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

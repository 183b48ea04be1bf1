package documented

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

// Each file and folder that docs/architecture.md names is there, and each folder of internal has a row under "Rooms".
func TestArchitecture_namesWhatThereIs(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/architecture.md")
	text, _, _ := strings.Cut(page, "## Pairs of features")
	named := 0
	for _, found := range regexp.MustCompile("`([a-z_/]+(?:\\.go|\\.lua)|(?:internal|lock|cmd)/[a-z]+|[a-z]+)`").FindAllStringSubmatch(text, -1) {
		name := found[1]
		if _, err := os.Stat(name); err == nil {
			named++
		} else if strings.ContainsAny(name, "./") { // else a word of the code
			t.Errorf("the page names %s, and there is none", name)
		}
	}
	if named < 60 {
		t.Errorf("found only %d", named)
	}
	_, rooms, _ := strings.Cut(page, "## Rooms")
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

// The parts of package lock stand in layers. Each imports of this module what is listed here, so none of
// them gets a Locker; and how a caller waits is decided without I/O or a mutex.
func TestArchitecture_layersOfLock(t *testing.T) {
	t.Parallel()
	const module = "github.com/automutex/automutex/"
	for part, allowed := range map[string][]string{
		"internal/life":    {},
		"internal/redisx":  {},
		"internal/control": {"internal/inside", "internal/keys", "internal/life", "internal/printable", "internal/redisx"},
		"internal/mark":    {"internal/inside", "internal/life", "internal/redisx"},
		"internal/engine":  {"internal/control", "internal/inside", "internal/keys", "internal/life", "internal/printable", "internal/redisx", "internal/turn"},
		"internal/turn":    {"internal/life"},
	} {
		files, err := filepath.Glob(filepath.Join(part, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no files: %v", part, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			redistest.Must(t, err)
			for _, spec := range parsed.Imports {
				path, err := strconv.Unquote(spec.Path.Value)
				redistest.Must(t, err)
				if own, ours := strings.CutPrefix(path, module); ours && !slices.Contains(allowed, own) {
					t.Errorf("%s imports %s, which stands above it: pass it a value or a function", file, own)
				}
				if part == "internal/turn" && (path == "sync" || path == "context" || path == "net" || strings.Contains(path, "go-redis")) {
					t.Errorf("%s imports %s: it only says what follows from what came", file, path)
				}
			}
		}
	}
}

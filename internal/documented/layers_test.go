package documented

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The parts of package lock stand in layers. Each imports of this module what is listed here, so none of
// them gets a Locker; and how a caller waits is decided without I/O or a mutex.
func TestArchitecture_layersOfLock(t *testing.T) {
	t.Parallel()
	const module = "github.com/automutex/automutex/"
	may := map[string][]string{
		"internal/life":    {},
		"internal/redisx":  {},
		"internal/control": {"internal/inside", "internal/keys", "internal/life", "internal/printable", "internal/redisx"},
		"internal/mark":    {"internal/inside", "internal/life", "internal/redisx"},
		"internal/engine":  {"internal/inside", "internal/keys", "internal/life", "internal/printable", "internal/redisx", "internal/turn"},
		"internal/turn":    {"internal/life"},
	}
	for part, allowed := range may {
		files, err := filepath.Glob(filepath.Join(part, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no files: %v", part, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range parsed.Imports {
				path, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
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

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
// them gets a Locker; and what processes agree on in Redis is read and written without I/O or a mutex.
func TestArchitecture_layersOfLock(t *testing.T) {
	t.Parallel()
	const module = "github.com/automutex/automutex/"
	text := []string{"internal/printable", "internal/keys", "internal/inside"}
	may := map[string][]string{
		"internal/life":     {},
		"internal/wire":     append([]string{"internal/exchange"}, text...),
		"internal/operate":  append([]string{"internal/exchange", "internal/wire", "internal/life"}, text...),
		"internal/claims":   append([]string{"internal/exchange", "internal/wire", "internal/operate"}, text...),
		"internal/parking":  append([]string{"internal/exchange", "internal/wire", "internal/life", "internal/claims"}, text...),
		"internal/controls": append([]string{"internal/exchange", "internal/wire", "internal/life"}, text...),
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
				if part == "internal/wire" && (path == "sync" || path == "context" || path == "net" || strings.Contains(path, "go-redis")) {
					t.Errorf("%s imports %s: it only turns text into values and back", file, path)
				}
			}
		}
	}
}

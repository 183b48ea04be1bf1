package automutex

import (
	"os"
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

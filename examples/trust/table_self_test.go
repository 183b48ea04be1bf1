package trust

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTable(t *testing.T) {
	t.Parallel()
	var s summary
	s.rows = []*row{
		{group: "network", what: "cuts", figures: []string{"overlaps 0", "lost 0"}, took: 1234 * time.Millisecond},
		{group: "a first one", what: "fails", failed: true},
	}
	file := filepath.Join(t.TempDir(), "table.md")
	var out strings.Builder
	if err := s.print(&out, file); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| a first one | fails | NO |", "| network | cuts | yes | overlaps 0, lost 0 | 1.2s |"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if a, b := strings.Index(out.String(), "first one"), strings.Index(out.String(), "cuts"); a < 0 || b < a {
		t.Errorf("not sorted:\n%s", out.String())
	}
}

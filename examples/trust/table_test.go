package trust

import (
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"
)

// results is the table of what the tests found.
var results summary

type summary struct {
	mu   sync.Mutex // guards rows: tests run at once
	rows []*row
}

// row is what one test found.
type row struct {
	group, what string
	figures     []string // guarded by results.mu
	failed      bool
	took        time.Duration
}

// found begins the row of a test. group is the kind of trouble ("network"), what
// says in a few words what was done. The row has its verdict and time when the
// test ends; figures come with notef.
func found(t *testing.T, group, what string) *row {
	t.Helper()
	r, start := &row{group: group, what: what}, time.Now()
	t.Cleanup(func() {
		results.mu.Lock()
		defer results.mu.Unlock()
		r.failed, r.took = t.Failed(), time.Since(start)
		if !t.Skipped() {
			results.rows = append(results.rows, r)
		}
	})
	return r
}

// notef adds a figure: r.notef("overlaps %d", n).
func (r *row) notef(format string, args ...any) {
	results.mu.Lock()
	defer results.mu.Unlock()
	r.figures = append(r.figures, fmt.Sprintf(format, args...))
}

// print writes the table, which is Markdown, to w and to a file if one is named.
func (s *summary) print(w io.Writer, file string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sort.SliceStable(s.rows, func(i, j int) bool {
		a, b := s.rows[i], s.rows[j]
		return a.group < b.group || a.group == b.group && a.what < b.what
	})
	page := "| fault | what was done | holds | figures | took |\n| --- | --- | --- | --- | --- |\n"
	for _, r := range s.rows {
		verdict := "yes"
		if r.failed {
			verdict = "NO"
		}
		page += fmt.Sprintf("| %s | %s | %s | %s | %s |\n", r.group, r.what, verdict, strings.Join(r.figures, ", "), r.took.Round(100*time.Millisecond))
	}
	if _, err := io.WriteString(w, page); err != nil || file == "" {
		return err
	}
	return os.WriteFile(file, []byte(page), 0o644)
}

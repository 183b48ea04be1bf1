package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func at(from, to int) span {
	return span{time.Duration(from) * time.Millisecond, time.Duration(to) * time.Millisecond}
}

// Overlaps and disorder are told from what the handlers did.
func TestDraw(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	d := &Demo{out: &out, Limit: 1, start: time.Now().Add(-time.Second), On: []string{"repository.full_name"}}
	add := func(row string, runs ...span) {
		d.tasks = append(d.tasks, &task{row: row, runs: runs})
	}
	add("turns", at(0, 100), at(500, 600)) // it failed, and kept its place
	add("turns", at(600, 700))
	add("overtaken", at(300, 400))
	add("overtaken", at(100, 200))
	add("overlaps", at(0, 500))
	add("overlaps", at(100, 600))
	add("overlaps", at(200, 300))
	add("overlaps", at(600, 0)) // it still runs
	if overlaps, disorder := d.draw(); overlaps != 2 || disorder != 1 {
		t.Errorf("%d overlaps, %d in disorder; want 2 and 1", overlaps, disorder)
	}
	lines := strings.Split(out.String(), "\n")[1:]
	for i, want := range []string{"repository.full_name ", "overlaps ", "overtaken ", "turns "} {
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d is %q, want %q", i, lines[i], want)
		}
	}
	if !strings.Contains(lines[1], "3") || !strings.Contains(lines[1], "4         2       0     100ms     600ms") {
		t.Errorf("%q", lines[1])
	}
}

package demo

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

// contended has turns at octo/hello, where tasks were parked, and overlaps at acme/anvil.
func contended() []row {
	rec := newRecorder()
	rec.with("octo/hello", []stay{at(0, 20)}, []stay{at(5, 35), at(35, 40)})
	rec.with("octo/hello", []stay{at(20, 60), at(80, 100)}, []stay{at(10, 80)})
	rec.with("acme/anvil", []stay{at(0, 50)}, nil)
	rec.with("acme/anvil", []stay{at(20, 100)}, nil)
	return newRows(rec, map[string]int{"octo/hello": 1, "acme/anvil": 1})
}

func plainChart(rows []row, width int) string {
	return ansi.Strip(chart(rows, "repository", width))
}

// lineOf gives the fields of the chart's line that begins with label.
func lineOf(t *testing.T, chart, label string) []string {
	t.Helper()
	for line := range strings.Lines(chart) {
		if strings.HasPrefix(line, label+" ") {
			return strings.Fields(line)
		}
	}
	t.Fatalf("no line for %s in\n%s", label, chart)
	return nil
}

func TestChart_turnsAndOverlaps(t *testing.T) {
	c := plainChart(contended(), 100)
	turns := lineOf(t, c, "octo/hello")
	if got := turns[1]; strings.Trim(got, "░▒▓█·") != "" || !strings.HasPrefix(got, "█") || !strings.HasSuffix(got, "█") {
		t.Errorf("turns are drawn as %q, want blocks with a gap", got)
	}
	if blocks, idle := strings.Count(turns[1], "█"), strings.Count(turns[1], "·"); blocks < 3*idle || blocks > 5*idle {
		t.Errorf("%d cells busy and %d idle, want about 80 to 20", blocks, idle)
	}
	if got := turns[2:4]; !slices.Equal(got, []string{"3", "0"}) {
		t.Errorf("runs and overlaps are %q, want 3 and 0", got)
	}
	over := lineOf(t, c, "acme/anvil")
	if twos, all := strings.Count(over[1], "2"), len([]rune(over[1])); !strings.HasPrefix(over[1], "█") || twos < all*25/100 || twos > all*35/100 {
		t.Errorf("overlap is drawn as %q, want one run, then two at once in 30 percent", over[1])
	}
	if got := over[2:4]; !slices.Equal(got, []string{"2", "1"}) {
		t.Errorf("runs and overlaps are %q, want 2 and 1", got)
	}
}

func TestChart_parked(t *testing.T) {
	c := plainChart(contended(), 100)
	if strings.Count(c, "\n  parked ") != 1 || strings.Index(c, "octo/hello") > strings.Index(c, "  parked ") || !strings.Contains(c, "tasks parked, 2 at most") {
		t.Errorf("want one line of parked tasks, right below octo/hello, and a legend:\n%s", c)
	}
	parked := lineOf(t, c, "  parked")
	if got := parked[2:]; !slices.Equal(got, []string{"3", "35ms", "70ms"}) {
		t.Errorf("the numbers are %q, want 3 times, p50 35ms, p95 70ms", got)
	}
	low, high := strings.Count(parked[1], "▄"), strings.Count(parked[1], "▇")
	if all := low + high; all != len([]rune(parked[1])) || high < all*35/100 || high > all*45/100 {
		t.Errorf("drawn as %q, want 5 parts of one task, 30 of two, 40 of one", parked[1])
	}
}

func TestChart_fitsTheWidth(t *testing.T) {
	for _, width := range []int{60, 80, 100, 200} {
		for line := range strings.Lines(plainChart(contended(), width)) {
			if got := ansi.StringWidth(strings.TrimRight(line, "\n")); got > max(width, 75) {
				t.Errorf("width %d: a line of %d columns: %q", width, got, line)
			}
		}
	}
}

func TestChart_manyKeys(t *testing.T) {
	rec := newRecorder()
	for i := range mostRows + 3 {
		rec.with(fmt.Sprintf("repo/%02d", i), []stay{at(0, 10)}, nil)
	}
	rec.with("zz/late", []stay{at(0, 5), at(0, 5)}, nil)
	c := plainChart(newRows(rec, nil), 100)
	if !strings.Contains(c, "and 4 more keys with 4 runs, ") {
		t.Errorf("the keys left out are not counted:\n%s", c)
	}
	lineOf(t, c, "zz/late") // the busiest is there
}

func TestChart_hostileKeys(t *testing.T) {
	rec := newRecorder()
	rec.with("evil\x1b[2Jrepo\nname\u202e", []stay{at(0, 10)}, nil)
	rec.with(strings.Repeat("\u9577", 50), []stay{at(0, 10)}, nil)
	c := chart(newRows(rec, nil), "on", 100)
	if strings.Contains(c, "\x1b[2J") || strings.Contains(c, "\u202e") || strings.Contains(c, "repo\n") {
		t.Errorf("a key's control characters reach the terminal: %q", c)
	}
	if !strings.Contains(c, "…") {
		t.Errorf("a long key is not shortened:\n%s", c)
	}
}

func TestPaint(t *testing.T) {
	two := []cell{{depth: 2, busy: 1}}
	if paint(two, 2) == paint(two, 1) {
		t.Error("depth 2 looks alike within a limit of 2 and beyond a limit of 1")
	}
	var cells []cell
	for _, c := range []struct {
		depth int
		busy  float64
	}{{0, 0}, {1, 0.1}, {1, 0.4}, {1, 0.6}, {1, 1}, {1, 1}, {2, 1}, {9, 1}, {10, 1}, {99, 1}} {
		cells = append(cells, cell{depth: c.depth, busy: c.busy})
	}
	if got, want := ansi.Strip(paint(cells, 1)), "·░▒▓██29++"; got != want {
		t.Errorf("paint = %q, want %q", got, want)
	}
}

func TestHill(t *testing.T) {
	if got, want := hill([]cell{{}, {depth: 1}, {depth: 5}, {depth: 7}, {}}, 7), " ▁▅▇ "; got != want {
		t.Errorf("hill = %q, want %q", got, want)
	}
	// Whatever the numbers, there is a sign for each, and one for itself for the most.
	for most := 1; most < 300; most++ {
		var cells []cell
		for parked := 1; parked <= most; parked++ {
			cells = append(cells, cell{depth: parked})
		}
		got := []rune(hill(cells, most))
		if len(got) != most || got[most-1] != '▇' || !slices.IsSorted(got) || most > 7 && got[0] != '▁' {
			t.Fatalf("1 to %d of %d: %q", most, most, string(got))
		}
	}
}

func TestArchived(t *testing.T) {
	counts := map[string]int{}
	for i := range 7 {
		counts[fmt.Sprintf("reason %d\x1b[2J", i)] = i + 1
	}
	lines := strings.Split(strings.TrimSuffix(archived(counts), "\n"), "\n")
	if len(lines) != 6 || !strings.HasPrefix(lines[0], "7 archived: reason 6") || !strings.Contains(lines[5], "2 other reasons") || strings.Contains(lines[0], "\x1b") {
		t.Errorf("got %q, want the five most frequent reasons and a count of the rest", lines)
	}
	if got := archived(nil); got != "" {
		t.Errorf("with nothing archived: %q", got)
	}
	// What differs between tasks that found their keys busy is told by none.
	for _, text := range []string{
		`automutex: rule "a": key "p:{a|1}" is busy: held by task q/1 on vm:1 until its deadline in 29.9s unless renewed`, `automutex: rule "a": key "p:{a|2}" is busy`,
	} {
		if got := busyText.ReplaceAllString(text, "${1}its key was busy"); got != `automutex: rule "a": its key was busy` {
			t.Errorf("%q is told as %q", text, got)
		}
	}
}

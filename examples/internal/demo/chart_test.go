package demo

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

// contended is a timeline with turns at octo/hello and overlaps at acme/anvil.
func contended() timeline {
	return newTimeline([]taskRun{
		at("octo/hello", 0, 20), at("octo/hello", 20, 60), at("octo/hello", 80, 100),
		at("acme/anvil", 0, 50), at("acme/anvil", 20, 100),
	}, nil, 1, "nobody")
}

func plainChart(t timeline, width int) string { return ansi.Strip(chart(t, "repository", width)) }

// lineOf gives the chart's line that begins with label.
func lineOf(t *testing.T, chart, label string) string {
	t.Helper()
	for line := range strings.Lines(chart) {
		if strings.HasPrefix(line, label+" ") {
			return line
		}
	}
	t.Fatalf("no line for %s in\n%s", label, chart)
	return ""
}

func TestChart_turnsAndOverlaps(t *testing.T) {
	c := plainChart(contended(), 100)

	turns := strings.Fields(lineOf(t, c, "octo/hello"))
	if got := turns[1]; strings.Trim(got, "░▒▓█·") != "" || !strings.HasPrefix(got, "█") || !strings.HasSuffix(got, "█") {
		t.Errorf("turns are drawn as %q, want blocks with a gap", got)
	}
	if blocks, idle := strings.Count(turns[1], "█"), strings.Count(turns[1], "·"); blocks < 3*idle || blocks > 5*idle {
		t.Errorf("%d cells busy and %d idle, want about 80 to 20", blocks, idle)
	}
	if got := turns[2:]; got[0] != "3" || got[1] != "0" {
		t.Errorf("runs and overlaps are %q, want 3 and 0", got[:2])
	}

	over := strings.Fields(lineOf(t, c, "acme/anvil"))
	cells := over[1]
	if first, second := strings.Index(cells, "█"), strings.Index(cells, "2"); first != 0 || second < 0 {
		t.Errorf("overlap is drawn as %q, want one run, then two", cells)
	}
	if twos, all := strings.Count(cells, "2"), len([]rune(cells)); twos < all*25/100 || twos > all*35/100 {
		t.Errorf("two at once in %d of %d cells, want 30 percent", twos, all)
	}
	if over[2] != "2" || over[3] != "1" {
		t.Errorf("runs and overlaps are %q, want 2 and 1", over[2:4])
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
	var runs []taskRun
	for i := range mostRows + 3 {
		runs = append(runs, at(fmt.Sprintf("repo/%02d", i), 0, 10))
	}
	runs = append(runs, at("zz/late", 0, 5), at("zz/late", 0, 5))
	c := plainChart(newTimeline(runs, nil, 1, "nobody"), 100)
	if !strings.Contains(c, "and 4 more keys with 4 runs, 0 overlaps") {
		t.Errorf("the keys left out are not counted:\n%s", c)
	}
	lineOf(t, c, "zz/late") // the busiest is there
}

func TestChart_hostileKeys(t *testing.T) {
	c := chart(newTimeline([]taskRun{at("evil\x1b[2Jrepo\nname\u202e", 0, 10), at(strings.Repeat("\u9577", 50), 0, 10)}, nil, 1, "nobody"), "on", 100)
	if strings.Contains(c, "\x1b[2J") || strings.Contains(c, "\u202e") || strings.Contains(c, "repo\n") {
		t.Errorf("a key's control characters reach the terminal: %q", c)
	}
	if !strings.Contains(c, "…") {
		t.Errorf("a long key is not shortened:\n%s", c)
	}
}

func TestScreen_plainWhereNoTerminal(t *testing.T) {
	var out bytes.Buffer
	s := newScreen(&out, &out)
	if s.animated {
		t.Error("a progress bar is shown where there is no terminal")
	}
	fmt.Fprint(s.out, chart(contended(), "repository", s.width))
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("escape sequences where there is no terminal: %q", out.String())
	}
	if !strings.Contains(out.String(), "octo/hello") {
		t.Error("nothing was drawn")
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

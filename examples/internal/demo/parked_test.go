package demo

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
)

// away makes a time that a task of entity was parked, in milliseconds.
func away(entity, task string, from, to int) parkedTime {
	return parkedTime{entity: entity, task: task, from: time.Duration(from) * ms, to: time.Duration(to) * ms}
}

// called is a timeline in which two tasks of octo/hello were parked, one of them
// twice, and none of acme/anvil.
func called() timeline {
	return newTimeline([]taskRun{
		at("octo/hello", 0, 40), at("octo/hello", 40, 60), at("octo/hello", 80, 100), at("acme/anvil", 0, 50),
	}, []parkedTime{away("octo/hello", "twice", 5, 35), away("octo/hello", "once", 10, 80), away("octo/hello", "twice", 35, 40)}, 1, "nobody")
}

func TestRecorder_parked(t *testing.T) {
	rec := newRecorder()
	rec.enqueue("a", "twice")
	rec.enqueue("b", "still away")
	rec.enqueue("c", "never")

	rec.park("twice")
	rec.back("twice", 0)
	_, first := rec.snapshot()
	rec.back("twice", -time.Hour) // it is back already
	if _, parked := rec.snapshot(); parked[0] != first[0] {
		t.Errorf("what was over, %+v, became %+v", first[0], parked[0])
	}
	rec.park("twice")
	rec.back("twice", time.Hour) // a wait from before it was parked
	rec.park("still away")
	rec.back("never", 0)

	_, parked := rec.snapshot()
	if len(parked) != 3 {
		t.Fatalf("%d parked times, want 3: %+v", len(parked), parked)
	}
	for i, want := range []parkedTime{{entity: "a", task: "twice"}, {entity: "a", task: "twice"}, {entity: "b", task: "still away"}} {
		got := parked[i]
		if got.entity != want.entity || got.task != want.task || got.to < got.from {
			t.Errorf("parked time %d is %+v, want one of %s of %s", i, got, want.task, want.entity)
		}
	}
	if parked[0].to > parked[1].from {
		t.Errorf("the second park began at %s, before the first was over at %s", parked[1].from, parked[0].to)
	}
	if parked[1].to != parked[1].from {
		t.Errorf("parked until %s, want no longer than from when it was: %s", parked[1].to, parked[1].from)
	}
	if _, later := rec.snapshot(); later[2].to <= parked[2].to {
		t.Error("what is parked still ended with the first look at it")
	}
}

// What a worker waited in line is no parked time.
func TestRecorder_backWaited(t *testing.T) {
	rec := newRecorder()
	rec.start = rec.start.Add(-time.Minute)
	rec.enqueue("a", "task")
	rec.park("task")
	rec.start = rec.start.Add(-10 * time.Second) // which are over now
	rec.back("task", 4*time.Second)
	_, parked := rec.snapshot()
	if got := parked[0].to - parked[0].from; got < 6*time.Second || got > 7*time.Second {
		t.Errorf("parked for %s, want the 6s until a worker had it", got)
	}
}

func TestParkedTimes_levels(t *testing.T) {
	tests := map[string]struct {
		parked parkedTimes
		want   []level
		most   int
	}{
		"none": {nil, nil, 0},
		"one":  {parkedTimes{away("a", "task", 2, 5)}, []level{{2 * ms, 5 * ms, 1}}, 1},
		"no time at all": {
			parkedTimes{away("a", "task", 2, 2)}, []level{{2 * ms, 2*ms + 1, 1}}, 1,
		},
		"with a gap": {
			parkedTimes{away("a", "task", 7, 9), away("a", "task", 2, 5)}, []level{{2 * ms, 5 * ms, 1}, {7 * ms, 9 * ms, 1}}, 1,
		},
		"one inside another": {
			parkedTimes{away("a", "task", 0, 9), away("a", "task", 2, 5)},
			[]level{{0, 2 * ms, 1}, {2 * ms, 5 * ms, 2}, {5 * ms, 9 * ms, 1}}, 2,
		},
		"together, one leaves as one comes": {
			parkedTimes{away("a", "task", 0, 4), away("a", "task", 0, 8), away("a", "task", 4, 8)}, []level{{0, 4 * ms, 2}, {4 * ms, 8 * ms, 2}}, 2,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			// Whatever the order in which they come.
			for range 2 {
				if got := test.parked.levels(); !reflect.DeepEqual(got, test.want) {
					t.Errorf("levels = %v, want %v", got, test.want)
				}
				if got := test.parked.most(); got != test.most {
					t.Errorf("most = %d, want %d", got, test.most)
				}
				slices.Reverse(test.parked)
			}
		})
	}
	for percent, want := range map[int]time.Duration{50: 35 * ms, 95: 70 * ms} {
		if got := called().parked.percentile(percent); got != want {
			t.Errorf("p%d of 30 + 5 and 70 ms = %s", percent, got)
		}
	}
}

func TestTimeline_parked(t *testing.T) {
	tl := newTimeline([]taskRun{at("ran", 0, 10)}, []parkedTime{away("ran", "task", 1, 5), away("never ran", "task", 20, 30)}, 1, "nobody")
	if tl.span != 30*ms {
		t.Errorf("span = %s, want the 30ms until nothing was parked", tl.span)
	}
	var labels []string
	for _, r := range tl.rows {
		labels = append(labels, r.label)
		if len(r.parked) != 1 {
			t.Errorf("%s was parked %d times, want once", r.label, len(r.parked))
		}
	}
	if want := []string{"ran", "never ran"}; !slices.Equal(labels, want) || len(tl.parked) != 2 {
		t.Errorf("rows are %q with %d parked times, want %q with 2", labels, len(tl.parked), want)
	}

	var most []int
	for _, c := range called().rows[0].cells(10, 100*ms) {
		most = append(most, c.parked)
	}
	if want := []int{1, 2, 2, 2, 1, 1, 1, 1, 0, 0}; !slices.Equal(most, want) {
		t.Errorf("parked per cell %v, want %v", most, want)
	}
}

func TestChart_parked(t *testing.T) {
	c := plainChart(called(), 100)
	lines := strings.Split(c, "\n")
	for i, line := range lines {
		parked := strings.HasPrefix(line, "  parked ")
		if want := i > 0 && strings.HasPrefix(lines[i-1], "octo/hello "); parked != want {
			t.Errorf("line %d tells of parked tasks: %t, want %t, which is right below octo/hello\n%s", i, parked, want, c)
		}
	}
	hello, parked := lineOf(t, c, "octo/hello"), lineOf(t, c, "  parked")
	if got := strings.Fields(parked)[2:]; !slices.Equal(got, []string{"3", "35ms", "70ms"}) {
		t.Errorf("the numbers are %q, want 3 times, p50 35ms, p95 70ms", got)
	}
	picture := strings.Fields(parked)[1]
	low, high := strings.Count(picture, "▄"), strings.Count(picture, "▇")
	if all := low + high; picture != strings.Repeat("▄", low-low*8/9)+strings.Repeat("▇", high)+strings.Repeat("▄", low*8/9) || high < all*35/100 || high > all*45/100 {
		t.Errorf("drawn as %q, want 5 parts of one task, 30 of two, 40 of one", picture)
	}
	// It lies below what ran then, and ends before the last run.
	if got, want := strings.Index(parked, "▄"), strings.Index(hello, "█"); got < want || got > want+3*len("█") {
		t.Errorf("the picture begins at byte %d, the runs at %d:\n%s%s", got, want, hello, parked)
	}
	if strings.Contains(parked, "█") {
		t.Errorf("what was parked looks like a run: %q", parked)
	}
	if !strings.Contains(c, "tasks parked, 2 at most") {
		t.Errorf("no legend:\n%s", c)
	}
	if c := plainChart(contended(), 100); strings.Contains(c, "parked") {
		t.Errorf("nothing was parked, and the chart tells of it:\n%s", c)
	}

	for _, width := range []int{60, 100, 200} {
		for line := range strings.Lines(plainChart(called(), width)) {
			if got := ansi.StringWidth(strings.TrimRight(line, "\n")); got > max(width, 75) {
				t.Errorf("width %d: a line of %d columns: %q", width, got, line)
			}
		}
	}
}

func TestHill(t *testing.T) {
	cells := []cell{{parked: 0}, {parked: 1}, {parked: 5}, {parked: 7}, {parked: 0}}
	if got, want := hill(cells, 7), " ▁▅▇ "; got != want {
		t.Errorf("hill = %q, want %q", got, want)
	}
	// Whatever the numbers, there is a sign for each, and one for itself for the most.
	for most := 1; most < 300; most++ {
		var cells []cell
		for parked := 1; parked <= most; parked++ {
			cells = append(cells, cell{parked: parked})
		}
		got := []rune(hill(cells, most))
		if len(got) != most || got[most-1] != '▇' || !slices.IsSorted(got) || most > 7 && got[0] != '▁' {
			t.Fatalf("1 to %d of %d: %q", most, most, string(got))
		}
	}
}

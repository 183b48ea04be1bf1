package demo

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// at makes a run of entity from begin to end, in milliseconds.
func at(entity string, begin, end int) taskRun {
	return taskRun{
		entity: entity, task: fmt.Sprintf("event-%d-%d", begin, end), kind: "github:push",
		begin: time.Duration(begin) * ms, end: time.Duration(end) * ms,
	}
}

func TestTimeline_overlaps(t *testing.T) {
	tests := map[string]struct {
		runs  []taskRun
		limit int
		want  int
	}{
		"nothing":                   {nil, 1, 0},
		"one after the other":       {[]taskRun{at("a", 0, 10), at("a", 10, 20), at("a", 25, 30)}, 1, 0},
		"touching, any order":       {[]taskRun{at("a", 10, 20), at("a", 0, 10)}, 1, 0},
		"different entities":        {[]taskRun{at("a", 0, 10), at("b", 5, 15)}, 1, 0},
		"one inside another":        {[]taskRun{at("a", 0, 10), at("a", 2, 3)}, 1, 1},
		"by an instant":             {[]taskRun{at("a", 0, 10), {entity: "a", begin: 10*ms - 1, end: 20 * ms}}, 1, 1},
		"a short one, then a third": {[]taskRun{at("a", 0, 10), at("a", 2, 3), at("a", 4, 12)}, 1, 2},
		"the same begin":            {[]taskRun{at("a", 0, 10), at("a", 0, 10), at("a", 0, 10)}, 1, 2},
		"two of two":                {[]taskRun{at("a", 0, 10), at("a", 5, 15), at("a", 10, 20)}, 2, 0},
		"three of two":              {[]taskRun{at("a", 0, 10), at("a", 5, 15), at("a", 9, 20)}, 2, 1},
		"in each of two entities":   {[]taskRun{at("a", 0, 9), at("b", 0, 9), at("a", 1, 2), at("b", 1, 2)}, 1, 2},
		"no entity, no lock":        {[]taskRun{at("", 0, 10), at("", 5, 15)}, 1, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := newTimeline(test.runs, nil, test.limit, "nobody").overlaps(); got != test.want {
				t.Errorf("overlaps = %d, want %d", got, test.want)
			}
		})
	}
}

func TestTimeline_rows(t *testing.T) {
	runs := []taskRun{at("b", 0, 10), at("a", 0, 10), at("c", 0, 10), at("c", 10, 40), at("", 0, 5)}
	runs[0].queued = -5 * ms
	tl := newTimeline(runs, nil, 1, "(no name)")
	var labels []string
	for _, r := range tl.rows {
		labels = append(labels, r.label)
	}
	if want := []string{"c", "(no name)", "a", "b"}; !slices.Equal(labels, want) {
		t.Errorf("rows are %q, want %q: busiest first, then by name", labels, want)
	}
	if tl.span != 40*ms {
		t.Errorf("span = %s, want 40ms", tl.span)
	}
	if got := tl.rows[0]; got.p50 != 0 || got.p95 != 10*ms {
		t.Errorf("waits of c: p50 %s, p95 %s, want 0s, 10ms", got.p50, got.p95)
	}
	if got := tl.rows[3]; got.p50 != 5*ms {
		t.Errorf("wait of b = %s, want 5ms", got.p50)
	}
}

func TestArrange_lanes(t *testing.T) {
	stays := arrange([]taskRun{at("a", 0, 10), at("a", 1, 5), at("a", 2, 20), at("a", 6, 9), at("a", 10, 12)})
	var lanes, depths []int
	for _, s := range stays {
		lanes, depths = append(lanes, s.lane), append(depths, s.depth)
	}
	if want := []int{0, 1, 2, 1, 0}; !slices.Equal(lanes, want) {
		t.Errorf("lanes = %v, want %v", lanes, want)
	}
	if want := []int{1, 2, 3, 3, 2}; !slices.Equal(depths, want) {
		t.Errorf("depths = %v, want %v", depths, want)
	}
}

func TestRow_cells(t *testing.T) {
	tests := map[string]struct {
		runs  []taskRun
		depth []int
		busy  []float64
	}{
		"exact cells":          {[]taskRun{at("a", 0, 10), at("a", 20, 40)}, []int{1, 0, 1, 1, 0}, []float64{1, 0, 1, 1, 0}},
		"two turns in a cell":  {[]taskRun{at("a", 1, 4), at("a", 4, 9)}, []int{1, 0, 0, 0, 0}, []float64{0.8, 0, 0, 0, 0}},
		"an overlap":           {[]taskRun{at("a", 0, 30), at("a", 12, 18)}, []int{1, 2, 1, 0, 0}, []float64{1, 1, 1, 0, 0}},
		"three deep":           {[]taskRun{at("a", 0, 50), at("a", 0, 50), at("a", 41, 42)}, []int{2, 2, 2, 2, 3}, []float64{1, 1, 1, 1, 1}},
		"begun and ended late": {[]taskRun{at("a", 49, 50)}, []int{0, 0, 0, 0, 1}, []float64{0, 0, 0, 0, 0.1}},
		"across an edge":       {[]taskRun{at("a", 5, 15)}, []int{1, 1, 0, 0, 0}, []float64{0.5, 0.5, 0, 0, 0}},
		"no time at all":       {[]taskRun{at("a", 15, 15)}, []int{0, 1, 0, 0, 0}, []float64{0, 0, 0, 0, 0}},
		"at the very end":      {[]taskRun{at("a", 50, 50)}, []int{0, 0, 0, 0, 1}, []float64{0, 0, 0, 0, 0}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := row{stays: arrange(test.runs)}
			for i, got := range r.cells(5, 50*ms) {
				if got.depth != test.depth[i] || math.Abs(got.busy-test.busy[i]) > 0.001 {
					t.Errorf("cell %d = %+v, want depth %d, busy %g", i, got, test.depth[i], test.busy[i])
				}
			}
		})
	}
	// Whatever the numbers, a cell is never outside.
	for n := 1; n < 60; n++ {
		row{stays: arrange([]taskRun{at("a", 0, 7), at("a", 3, 7)})}.cells(n, 7*ms)
	}
	row{stays: arrange([]taskRun{at("a", 0, 0)})}.cells(3, 0)
}

func TestPercentile(t *testing.T) {
	var values []time.Duration
	for i := 100; i > 0; i-- {
		values = append(values, time.Duration(i))
	}
	for p, want := range map[int]time.Duration{50: 50, 95: 95, 100: 100, 0: 1} {
		if got := percentile(values, p); got != want {
			t.Errorf("percentile %d of 1..100 = %d, want %d", p, got, want)
		}
	}
	if got := percentile([]time.Duration{7}, 95); got != 7 {
		t.Errorf("percentile of one value = %d, want 7", got)
	}
	if got := percentile(nil, 50); got != 0 {
		t.Errorf("percentile of nothing = %d, want 0", got)
	}
}

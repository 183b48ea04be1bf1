package demo

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

const ms = time.Millisecond

// at makes a run from begin to end, in milliseconds.
func at(begin, end int) stay {
	return stay{from: time.Duration(begin) * ms, to: time.Duration(end) * ms}
}

// with adds a task with runs and parked times to a recorder.
func (r *recorder) with(row string, runs, parked []stay) {
	r.tasks = append(r.tasks, &taskRecord{row: row, runs: runs, parked: parked})
}

func TestOverlaps(t *testing.T) {
	tests := map[string]struct {
		runs  []stay
		limit int
		want  int
	}{
		"nothing":                   {nil, 1, 0},
		"one after the other":       {[]stay{at(0, 10), at(10, 20), at(25, 30)}, 1, 0},
		"touching, any order":       {[]stay{at(10, 20), at(0, 10)}, 1, 0},
		"one inside another":        {[]stay{at(0, 10), at(2, 3)}, 1, 1},
		"by an instant":             {[]stay{at(0, 10), {from: 10*ms - 1, to: 20 * ms}}, 1, 1},
		"a short one, then a third": {[]stay{at(0, 10), at(2, 3), at(4, 12)}, 1, 2},
		"the same begin":            {[]stay{at(0, 10), at(0, 10), at(0, 10)}, 1, 2},
		"two of two":                {[]stay{at(0, 10), at(5, 15), at(10, 20)}, 2, 0},
		"three of two":              {[]stay{at(0, 10), at(5, 15), at(9, 20)}, 2, 1},
		"no lock":                   {[]stay{at(0, 10), at(5, 15)}, math.MaxInt, 0},
	}
	for name, test := range tests {
		if got := overlaps(test.runs, test.limit); got != test.want {
			t.Errorf("%s: overlaps = %d, want %d", name, got, test.want)
		}
	}
}

func TestNewRows(t *testing.T) {
	rec := newRecorder()
	rec.with("b", []stay{at(5, 10)}, nil)
	rec.with("a", []stay{at(0, 10)}, nil)
	rec.with("c", []stay{at(0, 10), at(10, 40)}, []stay{at(10, 15), at(20, 50)})
	rec.with("c", []stay{at(20, 30)}, nil)
	rec.with("parked only", nil, []stay{at(1, 2)})
	rec.with("never seen", nil, nil)
	rows := newRows(rec, map[string]int{"a": 1, "b": 1, "c": 1, "parked only": 1})
	var labels []string
	for _, r := range rows {
		labels = append(labels, r.label)
	}
	if want := []string{"c", "a", "b", "parked only"}; !slices.Equal(labels, want) {
		t.Fatalf("rows are %q, want %q: busiest first, then by name", labels, want)
	}
	if c := rows[0]; c.overlaps != 1 || c.p50 != 10*ms || c.p95 != 20*ms || c.away50 != 35*ms || len(c.parked) != 2 {
		t.Errorf("%+v", c)
	}
}

// A row is a key of the rule with the longest pattern; a task of no rule, or without a key, has none.
func TestRowOf(t *testing.T) {
	d := &Demo{Flags: Flags{config: "rules.yaml"}}
	var err error
	if d.keys, err = keysOf(automutex.Config{Rules: []automutex.Rule{
		{Task: "github:", On: []string{"repo"}, Scope: "all", Limit: 2}, {Task: "github:push", On: []string{"repo"}}, {Task: "mail"},
	}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind, payload, want string
		limit               int
	}{
		{"github:issues", `{"repo":"a"}`, "all a", 2},
		{"github:push", `{"repo":"a"}`, "github:push a", 1},
		{"github:push", `{}`, "(no rule)", math.MaxInt},
		{"mail", `{}`, "mail", 1},
		{"other", `{}`, "(no rule)", math.MaxInt},
	} {
		if got, limit := d.rowOf(t.Context(), asynq.NewTask(c.kind, []byte(c.payload))); got != c.want || limit != c.limit {
			t.Errorf("%s %s: %q, %d; want %q, %d", c.kind, c.payload, got, limit, c.want, c.limit)
		}
	}
}

func TestCells(t *testing.T) {
	tests := map[string]struct {
		stays []stay
		depth []int
		busy  []float64
	}{
		"exact cells":          {[]stay{at(0, 10), at(20, 40)}, []int{1, 0, 1, 1, 0}, []float64{1, 0, 1, 1, 0}},
		"two turns in a cell":  {[]stay{at(1, 4), at(4, 9)}, []int{1, 0, 0, 0, 0}, []float64{0.8, 0, 0, 0, 0}},
		"an overlap":           {[]stay{at(0, 30), at(12, 18)}, []int{1, 2, 1, 0, 0}, []float64{1, 1, 1, 0, 0}},
		"three deep":           {[]stay{at(0, 50), at(0, 50), at(41, 42)}, []int{2, 2, 2, 2, 3}, []float64{1, 1, 1, 1, 1}},
		"begun and ended late": {[]stay{at(49, 50)}, []int{0, 0, 0, 0, 1}, []float64{0, 0, 0, 0, 0.1}},
		"across an edge":       {[]stay{at(5, 15)}, []int{1, 1, 0, 0, 0}, []float64{0.5, 0.5, 0, 0, 0}},
		"no time at all":       {[]stay{at(15, 15)}, []int{0, 1, 0, 0, 0}, []float64{0, 0, 0, 0, 0}},
		"at the very end":      {[]stay{at(50, 50)}, []int{0, 0, 0, 0, 1}, []float64{0, 0, 0, 0, 0}},
	}
	for name, test := range tests {
		for i, got := range cells(test.stays, 5, 50*ms) {
			if got.depth != test.depth[i] || math.Abs(got.busy-test.busy[i]) > 0.001 {
				t.Errorf("%s: cell %d = %+v, want depth %d, busy %g", name, i, got, test.depth[i], test.busy[i])
			}
		}
	}
	// Whatever the numbers, a cell is never outside.
	for n := 1; n < 60; n++ {
		cells([]stay{at(0, 7), at(3, 7)}, n, 7*ms)
	}
	cells([]stay{at(0, 0)}, 3, 0)
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
	if one, none := percentile([]time.Duration{7}, 95), percentile(nil, 50); one != 7 || none != 0 {
		t.Errorf("percentiles of one value and of none: %d, %d", one, none)
	}
}

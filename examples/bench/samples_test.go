package main

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTurnsValues(t *testing.T) {
	t.Parallel()
	ms := int64(time.Millisecond)
	turns := []turn{
		{Who: 0, Asked: 0, Got: 1 * ms, Released: 2 * ms},              // before the window: counts for Jain only
		{Who: 1, Asked: 0, Got: 102 * ms, Released: 103 * ms},          // a hand-off after a gap of 100 ms
		{Who: 1, Asked: 103 * ms, Got: 103 * ms, Released: 104 * ms},   // the same again: none
		{Who: 0, Asked: 2 * ms, Got: 110 * ms, Released: 111 * ms},     // after 6 ms
		{Who: 1, Asked: 104 * ms, Got: 109 * ms, Released: 112 * ms},   // given out of order, and overlapped by the one above
		{Who: 2, Asked: 500 * ms},                                      // never had a turn
		{Who: 0, Asked: 111 * ms, Got: 2000 * ms, Released: 2001 * ms}, // after the window
	}
	v, err := turnsValues(turns, 3, 100*ms, 1100*ms, 12)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]float64{
		// Turns at 102, 103, 109 and 110, of which 102 and 110 follow on another's.
		"turns": 4, "rate": 2, "commands": 3, "overlaps": 1, "longest": 989,
		"jain": 36.0 / (3 * 18), "rounds": 0.989 * 4 / 3,
	} {
		if math.Abs(v[key]-want) > 1e-9 {
			t.Errorf("%s is %g, want %g", key, v[key], want)
		}
	}
	if _, err := turnsValues(turns, 3, 3000*ms, 4000*ms, 0); err == nil {
		t.Error("figures of a time in which nobody had a turn")
	}
}

// Ratios are formed within each repetition, and what was not done in time is
// nobody's reference.
func TestRatio(t *testing.T) {
	t.Parallel()
	s := &scenario{name: "X"}
	r := &record{}
	for _, x := range []struct {
		scenario, point, entry string
		run                    cellRun
	}{
		{"X", "p", "ref", cellRun{0, values{"k": 10}, false}}, {"X", "p", "me", cellRun{0, values{"k": 20}, false}},
		{"X", "p", "ref", cellRun{1, values{"k": 100}, false}}, {"X", "p", "me", cellRun{1, values{"k": 300}, false}},
		{"X", "p", "ref", cellRun{2, values{"k": 1}, true}}, {"X", "p", "me", cellRun{2, values{"k": 1000}, false}},
		{"X", "q", "me", cellRun{0, values{"k": 7}, true}},
		{"X", "r", "me", cellRun{0, values{"k": 7}, true}}, {"X", "r", "me", cellRun{1, values{"k": 8}, false}},
		{"Y", "p", "me", cellRun{0, values{"k": 1}, false}},
	} {
		r.add(&scenario{name: x.scenario}, x.point, x.entry, x.run)
	}
	if f, unfinished, ok := r.ratio(s, "p", "me", "k", "p", "ref"); !ok || unfinished || f != (spread{2.5, 2, 3, 2}) {
		t.Errorf("the ratio is %+v, %t, %t; want the median of 2 and 3", f, unfinished, ok)
	}
	if f, unfinished, ok := r.figure(s, "q", "me", "k"); !ok || !unfinished || f.median != 7 {
		t.Errorf("%+v, %t, %t; want 7, unfinished", f, unfinished, ok)
	}
	if f, unfinished, ok := r.figure(s, "r", "me", "k"); !ok || unfinished || f != (spread{8, 8, 8, 1}) {
		t.Errorf("%+v, %t, %t; want what was not given up", f, unfinished, ok)
	}
	if _, _, ok := r.ratio(s, "q", "me", "k", "q", "ref"); ok {
		t.Error("a ratio to what was not measured")
	}
}

// Whatever a goal or a table names has to be there.
func TestGoalsNameWhatThereIs(t *testing.T) {
	t.Parallel()
	b := &bench{}
	for _, s := range scenarios {
		for _, p := range s.points(b) {
			entries := s.entries(p)
			for i, entry := range entries {
				if slices.Contains(entries[:i], entry) {
					t.Errorf("%s, %s: %q is there twice", s.name, p.label, entry)
				}
			}
			for _, ref := range s.refs {
				if !slices.Contains(entries, ref) {
					t.Errorf("%s, %s: ratios to %q, which is not measured", s.name, p.label, ref)
				}
			}
		}
	}
	for _, g := range goals {
		found := false
		for _, p := range g.s.points(b) {
			if !strings.HasPrefix(p.label, g.point) {
				continue
			}
			entries := g.s.entries(p)
			mine := g.entries
			if mine == nil {
				mine = []string{ourDefault}
			}
			found = found || slices.ContainsFunc(mine, func(entry string) bool { return slices.Contains(entries, entry) })
			if g.to != "" && !slices.Contains(entries, g.to) {
				t.Errorf("%s: %q is to be held against %q, which is not measured at %s", g.s.name, g.what, g.to, p.label)
			}
		}
		if !found {
			t.Errorf("%s: %q is about nothing that is measured", g.s.name, g.what)
		}
		if !slices.ContainsFunc(g.s.metrics, func(m metric) bool { return m.key == g.metric }) {
			t.Errorf("%s: %q is about %q, which is not measured", g.s.name, g.what, g.metric)
		}
	}
}

func TestShow(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"12,345 (999 to 1,000,000)": show(spread{12345, 999, 1e6, 5}, 0, false, true),
		"1,234.50":                  show(spread{1234.5, 1, 2, 5}, 2, false, false),
		"> 100.0":                   show(spread{100, 100, 100, 1}, 1, true, true),
		"-0.4":                      show(spread{-0.4, -0.4, -0.4, 1}, 1, false, true),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The busiest second is any second, not one of the clock.
func TestBusiest(t *testing.T) {
	t.Parallel()
	at := func(ms ...int) (times []time.Time) {
		for _, n := range ms {
			times = append(times, time.UnixMilli(int64(n)))
		}
		return times
	}
	for _, c := range []struct {
		want  int
		times []time.Time
	}{{0, nil}, {1, at(5)}, {3, at(2100, 900, 1000, 1899)}, {2, at(0, 1000, 1999, 3000)}} {
		if got := busiest(c.times); got != c.want {
			t.Errorf("%v: %d in the busiest second, want %d", c.times, got, c.want)
		}
	}
}

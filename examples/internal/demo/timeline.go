package demo

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// stay is a run with its place among the other runs of its entity.
type stay struct {
	taskRun
	depth int // runs under way when this one began, itself included
	lane  int // the lowest lane (0, 1, ...) that was free then
}

// row is everything that was done for one entity.
type row struct {
	label    string
	stays    []stay // by begin
	limit    int    // how many of them may be under way at once
	overlaps int
	p50, p95 time.Duration // of the waiting times
	parked   parkedTimes
}

// timeline is what chart and page are drawn from.
type timeline struct {
	rows   []row // busiest first
	span   time.Duration
	limit  int         // runs that one entity may have at once
	parked parkedTimes // of all rows
}

// newTimeline sorts runs and parked times into rows. Those without an entity get
// a row of their own, named nobody, in which nothing counts as an overlap: no
// lock is theirs.
func newTimeline(runs []taskRun, parked []parkedTime, limit int, nobody string) timeline {
	t := timeline{limit: limit, parked: parked}
	type group struct {
		runs   []taskRun
		parked parkedTimes
	}
	byEntity := make(map[string]group)
	for _, r := range runs {
		g := byEntity[r.entity]
		g.runs = append(g.runs, r)
		byEntity[r.entity] = g
		t.span = max(t.span, r.end)
	}
	for _, p := range parked {
		g := byEntity[p.entity]
		g.parked = append(g.parked, p)
		byEntity[p.entity] = g
		t.span = max(t.span, p.to)
	}
	for entity, g := range byEntity {
		rw := row{label: entity, stays: arrange(g.runs), limit: limit, parked: g.parked}
		if entity == "" {
			rw.label, rw.limit = nobody, math.MaxInt
		}
		var waits []time.Duration
		for _, s := range rw.stays {
			waits = append(waits, s.waited())
			if s.depth > rw.limit {
				rw.overlaps++
			}
		}
		rw.p50, rw.p95 = percentile(waits, 50), percentile(waits, 95)
		t.rows = append(t.rows, rw)
	}
	slices.SortFunc(t.rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(len(b.stays), len(a.stays)), cmp.Compare(a.label, b.label))
	})
	return t
}

// overlaps is the number of runs that began while limit runs of their entity
// were already under way.
func (t timeline) overlaps() int {
	n := 0
	for _, r := range t.rows {
		n += r.overlaps
	}
	return n
}

// arrange orders the runs of one entity by begin and finds depth and lane of
// each. A run that begins in the very instant another ends does not overlap it.
func arrange(runs []taskRun) []stay {
	runs = slices.Clone(runs)
	slices.SortStableFunc(runs, func(a, b taskRun) int { return cmp.Compare(a.begin, b.begin) })
	stays := make([]stay, len(runs))
	var lanes []time.Duration // when each lane becomes free
	for i, r := range runs {
		s := stay{taskRun: r, depth: 1, lane: -1}
		for lane, free := range lanes {
			switch {
			case free > r.begin:
				s.depth++
			case s.lane < 0:
				s.lane = lane
			}
		}
		if s.lane < 0 {
			s.lane = len(lanes)
			lanes = append(lanes, 0)
		}
		lanes[s.lane] = r.end
		stays[i] = s
	}
	return stays
}

// cell is a piece of a row's time.
type cell struct {
	depth  int     // the most runs that were under way at one moment of it
	busy   float64 // the part of it, 0 to 1, in which any run was
	parked int     // the most tasks that were parked at one moment of it
}

// cells divides the row's time into n equal pieces. Two runs in one piece, one
// after the other, make it busier, not deeper.
func (r row) cells(n int, span time.Duration) []cell {
	out := make([]cell, n)
	width := float64(max(span, 1)) / float64(n)

	type edge struct {
		at   time.Duration
		step int
	}
	edges := make([]edge, 0, 2*len(r.stays))
	for _, s := range r.stays {
		end := max(s.end, s.begin+1) // an empty run is still to be seen
		edges = append(edges, edge{s.begin, 1}, edge{end, -1})
	}
	// Ends before begins, as in arrange.
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.step, b.step)) })
	depth := 0
	for i, e := range edges {
		depth += e.step
		if depth == 0 || edges[i+1].at == e.at {
			continue
		}
		// From this edge to the next, depth runs are under way.
		from, to := float64(e.at)/width, float64(edges[i+1].at)/width
		for c := min(int(from), n-1); c < n && float64(c) < to; c++ {
			out[c].depth = max(out[c].depth, depth)
			out[c].busy += max(0, min(to, float64(c+1))-max(from, float64(c)))
		}
	}
	for _, l := range r.parked.levels() {
		from, to := float64(l.from)/width, float64(l.to)/width
		for c := min(int(from), n-1); c < n && float64(c) < to; c++ {
			out[c].parked = max(out[c].parked, l.tasks)
		}
	}
	return out
}

// percentile is the smallest value that p percent of all do not exceed; 0 for
// none. It sorts values.
func percentile(values []time.Duration, p int) time.Duration {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	i := (len(values)*p + 99) / 100
	return values[max(i, 1)-1]
}

package demo

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// parkedTimes are the parked times of one entity, or of all.
type parkedTimes []parkedTime

// percentile is that of how long a task was parked, all its times together.
// Tasks that never were do not count.
func (p parkedTimes) percentile(percent int) time.Duration {
	byTask := make(map[string]time.Duration)
	for _, t := range p {
		byTask[t.task] += t.to - t.from
	}
	return percentile(slices.Collect(maps.Values(byTask)), percent)
}

// level is a time in which the same number of tasks was parked.
type level struct {
	from, to time.Duration
	tasks    int // at least 1
}

// levels tells how many tasks were parked when, in the order of time. There are
// none for the times in which no task was.
func (p parkedTimes) levels() []level {
	type edge struct {
		at   time.Duration
		step int
	}
	edges := make([]edge, 0, 2*len(p))
	for _, t := range p {
		edges = append(edges, edge{t.from, 1}, edge{max(t.to, t.from+1), -1})
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	var out []level
	tasks := 0
	for i, e := range edges {
		tasks += e.step
		if tasks > 0 && edges[i+1].at > e.at {
			out = append(out, level{e.at, edges[i+1].at, tasks})
		}
	}
	return out
}

// most is how many tasks were parked at once.
func (p parkedTimes) most() int {
	most := 0
	for _, l := range p.levels() {
		most = max(most, l.tasks)
	}
	return most
}

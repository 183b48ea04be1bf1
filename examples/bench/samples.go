package main

import (
	"slices"
	"time"
)

// values are what one cell measured, by the keys of its scenario's metrics.
type values map[string]float64

// sample is one cell: one entry at one point of a scenario in one repetition.
type sample struct {
	Scenario, Point, Entry string
	Rep                    int
	Values                 values
	// Unfinished: it was given up when its time was over. Values tell how far it
	// came; the first of them is no more than a bound.
	Unfinished bool `json:",omitempty"`
}

// record is all that a run has measured, and on what. Its summary is written beside the
// report, so that the report can be made again from it; see record.encode.
type record struct {
	Machine machine
	Count   int
	Quick   bool
	Samples []sample
}

// spread is what became of one figure over the repetitions.
type spread struct {
	median, low, high float64
	n                 int // of how many
}

// spreadOf needs at least one value.
func spreadOf(v []float64) spread {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return spread{(v[(n-1)/2] + v[n/2]) / 2, v[0], v[n-1], n}
}

// figure is the spread of one metric of a cell; ok: it was measured at all. What
// was given up counts only where nothing else is there (unfinished).
func (r *record) figure(s *scenario, p, entry, key string) (f spread, unfinished, ok bool) {
	return r.over(s, p, entry, key, func(int) float64 { return 1 })
}

// over is the spread of a metric of a cell, each divided by what belongs to its
// repetition; 0: nothing does.
func (r *record) over(s *scenario, p, entry, key string, by func(rep int) float64) (f spread, unfinished, ok bool) {
	var done, givenUp []float64
	for _, x := range r.Samples {
		value, has := x.Values[key]
		if x.Scenario != s.name || x.Point != p || x.Entry != entry || !has || by(x.Rep) == 0 {
			continue
		}
		if x.Unfinished {
			givenUp = append(givenUp, value/by(x.Rep))
		} else {
			done = append(done, value/by(x.Rep))
		}
	}
	switch {
	case len(done) > 0:
		return spreadOf(done), false, true
	case len(givenUp) > 0:
		return spreadOf(givenUp), true, true
	}
	return spread{}, false, false
}

// ratio is the spread of a metric as a multiple of the same metric of another
// cell in the same repetition.
func (r *record) ratio(s *scenario, p, entry, key, toPoint, toEntry string) (f spread, unfinished, ok bool) {
	of := map[int]float64{}
	for _, x := range r.Samples {
		if x.Scenario == s.name && x.Point == toPoint && x.Entry == toEntry && !x.Unfinished {
			of[x.Rep] = x.Values[key]
		}
	}
	return r.over(s, p, entry, key, func(rep int) float64 { return of[rep] })
}

// has tells whether there are samples of a scenario, and of a point and an entry of
// it where they are named.
func (r *record) has(s *scenario, p, entry string) bool {
	return slices.ContainsFunc(r.Samples, func(x sample) bool {
		return x.Scenario == s.name && (p == "" || x.Point == p) && (entry == "" || x.Entry == entry)
	})
}

// quantile is the q-th of the durations; they are sorted for it. 0 for none.
func quantile(v []time.Duration, q float64) time.Duration {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[int(q*float64(len(v)-1))]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func inMilliseconds(durations []time.Duration) []float64 {
	v := make([]float64, len(durations))
	for i, d := range durations {
		v[i] = milliseconds(d)
	}
	return v
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

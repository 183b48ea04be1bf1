package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"
)

// values are what one run of a cell measured, by the keys of its scenario's metrics.
type values map[string]float64

// record is all that a run of the program has measured, and on what. It is written beside the report, so that the
// report can be made again from it.
type record struct {
	Machine machine
	Count   int
	Quick   bool
	Cells   []*cell
}

// cell is what one entry did at one point of a scenario.
type cell struct {
	Scenario, Point, Entry string
	Runs                   []cellRun
}

// cellRun is one repetition of a cell.
type cellRun struct {
	Rep    int
	Values values
	// Unfinished: it was given up when its time was over. Values tell how far it
	// came; the first of them is no more than a bound.
	Unfinished bool `json:",omitempty"`
}

// unfinished reports whether a cell was given up; it may be nil.
func (c *cell) unfinished() bool {
	return c != nil && slices.ContainsFunc(c.Runs, func(run cellRun) bool { return run.Unfinished })
}

// cell is nil for what was not measured.
func (r *record) cell(s *scenario, point, entry string) *cell {
	for _, c := range r.Cells {
		if c.Scenario == s.name && c.Point == point && c.Entry == entry {
			return c
		}
	}
	return nil
}

// add notes a run of a cell, with six digits: no figure is more exact.
func (r *record) add(s *scenario, point, entry string, run cellRun) *cell {
	run.Values = maps.Clone(run.Values)
	for key, v := range run.Values {
		run.Values[key], _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 64), 64) // a number as it was just written
	}
	c := r.cell(s, point, entry)
	if c == nil {
		c = &cell{Scenario: s.name, Point: point, Entry: entry}
		r.Cells = append(r.Cells, c)
	}
	c.Runs = append(c.Runs, run)
	return c
}

// encode gives the text of the record's file: a line for each cell.
func (r *record) encode() ([]byte, error) {
	text, err := json.Marshal(r)
	return append(bytes.ReplaceAll(text, []byte(`{"Scenario":`), []byte("\n"+`{"Scenario":`)), '\n'), err
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
	c := r.cell(s, p, entry)
	if c == nil {
		return spread{}, false, false
	}
	var done, givenUp []float64
	for _, run := range c.Runs {
		value, has := run.Values[key]
		switch {
		case !has || by(run.Rep) == 0:
		case run.Unfinished:
			givenUp = append(givenUp, value/by(run.Rep))
		default:
			done = append(done, value/by(run.Rep))
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
	if to := r.cell(s, toPoint, toEntry); to != nil {
		for _, run := range to.Runs {
			if !run.Unfinished {
				of[run.Rep] = run.Values[key]
			}
		}
	}
	return r.over(s, p, entry, key, func(rep int) float64 { return of[rep] })
}

// has tells whether there are figures of a scenario, and of an entry of it where one is named.
func (r *record) has(s *scenario, entry string) bool {
	return slices.ContainsFunc(r.Cells, func(c *cell) bool { return c.Scenario == s.name && (entry == "" || c.Entry == entry) })
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
func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

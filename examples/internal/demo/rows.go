package demo

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// ruleKeys makes the keys of one rule.
type ruleKeys struct {
	rule  automutex.Rule
	maker *automutex.KeyMaker
}

// keysOf makes them for all rules; those of longer patterns come first.
func keysOf(cfg automutex.Config) (all []ruleKeys, err error) {
	cfg.Logger = slog.New(slog.DiscardHandler) // the guard says what there is to say
	rules := slices.Clone(cfg.Rules)
	slices.SortStableFunc(rules, func(a, b automutex.Rule) int { return cmp.Compare(len(b.Task), len(a.Task)) })
	for _, rule := range rules {
		cfg.Rules = []automutex.Rule{rule}
		maker, err := automutex.NewKeyMaker(cfg)
		if err != nil {
			return nil, err
		}
		all = append(all, ruleKeys{rule, maker})
	}
	return all, nil
}

// rowOf is the row of the chart that a task belongs to, and how many of it may run at once: the
// key of the first rule that applies. Tasks that name no key share a row in which nothing is an overlap.
func (d *Demo) rowOf(ctx context.Context, t *asynq.Task) (label string, limit int) {
	for _, of := range d.keys {
		keys, err := of.maker.Keys(ctx, t)
		if err != nil {
			break
		}
		if len(keys) == 0 {
			continue // not of this rule
		}
		_, text, _ := strings.Cut(keys[0], "{")
		scope, value, _ := strings.Cut(strings.TrimSuffix(text, "}"), "|")
		switch {
		case d.config != "":
			value = strings.TrimSpace(scope + " " + value)
		case value == "":
			value = "(all)" // no fields: one lock for everything
		}
		return value, max(of.rule.Limit, 1)
	}
	if d.config != "" {
		return "(no rule)", math.MaxInt
	}
	return "(no " + strings.Join(d.On, ", ") + ")", math.MaxInt
}

// row is everything that was done for one key.
type row struct {
	label        string
	runs, parked []stay
	overlaps     int // runs that began while limit others were under way
	limit        int
	p50, p95     time.Duration // of the time from the enqueue to the start of the handler
	away50       time.Duration // the same of how long a task was parked, all its times together
	away95       time.Duration
}

// rowsOf sorts runs and parked times into rows, the busiest first.
func (d *Demo) rowsOf() []row {
	limits := map[string]int{}
	for _, e := range d.events {
		label, limit := d.rowOf(context.Background(), asynq.NewTask(e.Type, e.Payload))
		limits[label] = limit
	}
	return newRows(d.rec, limits)
}

func newRows(rec *recorder, limits map[string]int) (rows []row) {
	rec.stop()
	byLabel := map[string][]*taskRecord{}
	for _, t := range rec.tasks {
		if len(t.runs)+len(t.parked) > 0 {
			byLabel[t.row] = append(byLabel[t.row], t)
		}
	}
	for label, tasks := range byLabel {
		r := row{label: label, limit: limits[label]}
		var waits, aways []time.Duration
		for _, t := range tasks {
			r.runs, r.parked = append(r.runs, t.runs...), append(r.parked, t.parked...)
			for _, run := range t.runs {
				waits = append(waits, max(0, run.from-t.queued))
			}
			away := time.Duration(0)
			for _, stay := range t.parked {
				away += stay.to - stay.from
			}
			if len(t.parked) > 0 {
				aways = append(aways, away)
			}
		}
		r.overlaps = overlaps(r.runs, r.limit)
		r.p50, r.p95 = percentile(waits, 50), percentile(waits, 95)
		r.away50, r.away95 = percentile(aways, 50), percentile(aways, 95)
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(len(b.runs), len(a.runs)), cmp.Compare(a.label, b.label))
	})
	return rows
}

// overlaps counts the runs that began while limit others were under way. A run that begins in
// the very instant another ends does not overlap it.
func overlaps(runs []stay, limit int) (n int) {
	runs = slices.SortedFunc(slices.Values(runs), func(a, b stay) int { return cmp.Compare(a.from, b.from) })
	var under []time.Duration // when those under way end
	for _, r := range runs {
		under = slices.DeleteFunc(under, func(end time.Duration) bool { return end <= r.from })
		if len(under) >= limit {
			n++
		}
		under = append(under, r.to)
	}
	return n
}

// cell is a piece of a row's time.
type cell struct {
	depth int     // the most stays that were under way at one moment of it
	busy  float64 // the part of it, 0 to 1, in which any was
}

// cells divides the time into n equal pieces. Two stays in one piece, one after the other,
// make it busier, not deeper.
func cells(stays []stay, n int, span time.Duration) []cell {
	out := make([]cell, n)
	width := float64(max(span, 1)) / float64(n)
	type edge struct {
		at   time.Duration
		step int
	}
	edges := make([]edge, 0, 2*len(stays))
	for _, s := range stays {
		edges = append(edges, edge{s.from, 1}, edge{max(s.to, s.from+1), -1}) // an empty one is still to be seen
	}
	// Ends before begins, as in overlaps.
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.step, b.step)) })
	depth := 0
	for i, e := range edges {
		depth += e.step
		if depth == 0 || edges[i+1].at == e.at {
			continue
		}
		// From this edge to the next, depth stays are under way.
		from, to := float64(e.at)/width, float64(edges[i+1].at)/width
		for c := min(int(from), n-1); c < n && float64(c) < to; c++ {
			out[c].depth = max(out[c].depth, depth)
			out[c].busy += max(0, min(to, float64(c+1))-max(from, float64(c)))
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

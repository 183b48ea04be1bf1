package web

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inspect"
)

const (
	// maxMetricsKeys bounds Options.MetricsKeys: each key is three series.
	maxMetricsKeys = 1000
	// metricsWithin bounds a look at all locks for Prometheus, whose own bound is 10 s.
	metricsWithin = 9 * time.Second
)

// metrics answers Prometheus with the lines of all processes, by rule. All who ask share
// one look at the locks, which is at most about a minute old; see pauseAfter. A scrape by
// itself has no further look made.
func (p *page) metrics(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), metricsWithin)
	defer cancel()
	snap := p.sampler.whole(ctx)
	if snap == nil || snap.err != nil {
		http.Error(w, errNoAnswer.Error(), http.StatusServiceUnavailable) // Prometheus sets up to 0
		return
	}
	var b bytes.Buffer
	p.writeTotals(&b, snap)
	p.writeKeys(&b, snap)
	now := time.Now()
	gauge(&b, "automutex_locks_age_seconds", "How old these numbers are.", sample{"", now.Sub(snap.at).Seconds()})
	gauge(&b, "automutex_locks_look_seconds", "How long the look at all locks took.", sample{"", snap.took.Seconds()})
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = b.WriteTo(w) // Prometheus went away
}

type sample struct {
	labels string
	value  float64
}

// gauge writes one metric in Prometheus' text format.
func gauge(b *bytes.Buffer, name, help string, samples ...sample) {
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %[1]s gauge\n", name, help)
	for _, s := range samples {
		fmt.Fprintf(b, "%s%s %v\n", name, s.labels, s.value)
	}
}

// gauges writes the four numbers of locks under their names.
func gauges(b *bytes.Buffer, names, help [4]string, labels []string, values []totals) {
	for i, name := range names {
		if name == "" {
			continue
		}
		samples := make([]sample, len(labels))
		for n, t := range values {
			samples[n] = sample{labels[n], float64([4]int{t.Locks, t.Held, t.Waiting, t.Parked}[i])}
		}
		gauge(b, name, help[i], samples...)
	}
}

// writeTotals writes the numbers by rule. Locks that no rule makes, and those beyond
// maxRows, have an empty rule.
func (p *page) writeTotals(b *bytes.Buffer, snap *snapshot) {
	byRule := map[string]*totals{"": {}}
	for _, rule := range p.rules {
		byRule[rule.Name] = &totals{}
	}
	rest := snap.totals
	byScope := map[string]*totals{}
	for _, r := range snap.rows {
		scope := scopeOf(r.Key)
		of := byScope[scope]
		if of == nil {
			name := p.namesFor(scope)
			if byRule[name] == nil { // rules that share a scope
				byRule[name] = &totals{}
			}
			of = byRule[name]
			byScope[scope] = of
		}
		of.Locks, of.Held, of.Waiting, of.Parked = of.Locks+1, of.Held+r.Held, of.Waiting+r.Waiting, of.Parked+r.Parked
		rest.Locks, rest.Held, rest.Waiting, rest.Parked = rest.Locks-1, rest.Held-r.Held, rest.Waiting-r.Waiting, rest.Parked-r.Parked
	}
	none := byRule[""]
	none.Locks, none.Held, none.Waiting, none.Parked = none.Locks+rest.Locks, none.Held+rest.Held, none.Waiting+rest.Waiting, none.Parked+rest.Parked
	names := slices.Sorted(maps.Keys(byRule))
	labels, values := make([]string, len(names)), make([]totals, len(names))
	for i, name := range names {
		labels[i], values[i] = `{rule="`+labelValue(name)+`"}`, *byRule[name]
	}
	gauges(b, [4]string{"automutex_locks", "automutex_locks_held", "automutex_locks_waiting", "automutex_parked"}, [4]string{
		"Locks that are held or waited for, of all processes.", "Holders of locks, of all processes.",
		"Tasks in line in workers, of all processes.", "Tasks parked in asynq, the called ones included, of all processes.",
	}, labels, values)
}

// writeKeys writes the most contended keys, as many as Options.MetricsKeys says.
func (p *page) writeKeys(b *bytes.Buffer, snap *snapshot) {
	if p.o.MetricsKeys == 0 {
		return
	}
	rows := snap.rows[:min(len(snap.rows), p.o.MetricsKeys)]
	labels, values := make([]string, len(rows)), make([]totals, len(rows))
	for i, r := range rows {
		labels[i] = `{key="` + labelValue(inspect.InBraces(r.Key)) + `",rule="` + labelValue(p.namesFor(scopeOf(r.Key))) + `"}`
		values[i] = totals{1, r.Held, r.Waiting, r.Parked}
	}
	gauges(b, [4]string{"", "automutex_key_held", "automutex_key_waiting", "automutex_key_parked"}, [4]string{
		"", "Holders of the most contended keys.", "Tasks in line in workers for the most contended keys.", "Tasks parked in asynq for the most contended keys.",
	}, labels, values)
}

// labelValue escapes what stands in a label. Prometheus wants UTF-8.
func labelValue(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(s, "\uFFFD"))
}

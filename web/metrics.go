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
	_, _ = p.fleetNow(ctx) // without its answer locks have no rule
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

// metric is one number of locks, with its name and what it says.
type metric struct {
	name, help string
	of         func(totals) int
}

// gauges writes numbers of locks.
func gauges(b *bytes.Buffer, metrics []metric, labels []string, values []totals) {
	for _, m := range metrics {
		samples := make([]sample, len(labels))
		for n, t := range values {
			samples[n] = sample{labels[n], float64(m.of(t))}
		}
		gauge(b, m.name, m.help, samples...)
	}
}

var totalMetrics = []metric{
	{"automutex_locks", "Locks that are held or waited for, of all processes.", func(t totals) int { return t.Locks }},
	{"automutex_locks_held", "Holders of locks, of all processes.", func(t totals) int { return t.Held }},
	{"automutex_locks_waiting", "Tasks in line in workers, of all processes.", func(t totals) int { return t.Waiting }},
	{"automutex_parked", "Tasks parked in asynq, the called ones included, of all processes.", func(t totals) int { return t.Parked }},
	{"automutex_queued", "Tasks of ordered keys that are in order and do not run.", func(t totals) int { return t.Queued }},
	{"automutex_order_blocked", "Ordered keys whose next task has failed or is archived, and keeps others waiting.", func(t totals) int { return t.Blocked }},
}

var keyMetrics = []metric{
	{"automutex_key_held", "Holders of the most contended keys.", func(t totals) int { return t.Held }},
	{"automutex_key_waiting", "Tasks in line in workers for the most contended keys.", func(t totals) int { return t.Waiting }},
	{"automutex_key_parked", "Tasks parked in asynq for the most contended keys.", func(t totals) int { return t.Parked }},
	{"automutex_key_queued", "Tasks in order for the most contended keys.", func(t totals) int { return t.Queued }},
}

// writeTotals writes the numbers by rule. Locks that no rule makes, and those of
// scopes beyond maxScopes, have an empty rule.
func (p *page) writeTotals(b *bytes.Buffer, snap *snapshot) {
	known := p.known.Load()
	byRule, stands := map[string]*totals{"": {}}, map[string]time.Time{}
	for _, rule := range known.rules {
		byRule[rule.Name] = &totals{}
	}
	for scope, its := range snap.byScope {
		name := known.namesFor(scope)
		if byRule[name] == nil { // rules that share a scope
			byRule[name] = &totals{}
		}
		*byRule[name] = byRule[name].plus(its.totals)
		if since := stands[name]; !its.Stands.IsZero() && (since.IsZero() || its.Stands.Before(since)) {
			stands[name] = its.Stands
		}
	}
	names := slices.Sorted(maps.Keys(byRule))
	labels, values, ages := make([]string, len(names)), make([]totals, len(names)), make([]sample, len(names))
	for i, name := range names {
		labels[i], values[i] = `{rule="`+labelValue(name)+`"}`, *byRule[name]
		ages[i] = sample{labels[i], 0}
		if since := stands[name]; !since.IsZero() {
			ages[i].value = max(0, snap.at.Sub(since).Seconds())
		}
	}
	gauges(b, totalMetrics, labels, values)
	gauge(b, "automutex_order_blocked_seconds", "For how long the next task of a blocked key has kept others waiting, at most; 0: none does.", ages...)
}

// writeKeys writes the most contended keys, as many as Options.MetricsKeys says.
func (p *page) writeKeys(b *bytes.Buffer, snap *snapshot) {
	if p.o.MetricsKeys == 0 {
		return
	}
	rows := snap.rows[:min(len(snap.rows), p.o.MetricsKeys)]
	labels, values := make([]string, len(rows)), make([]totals, len(rows))
	for i, r := range rows {
		labels[i] = `{key="` + labelValue(inspect.InBraces(r.Key)) + `",rule="` + labelValue(p.namesFor(inspect.ScopeOf(r.Key))) + `"}`
		values[i] = r.totals()
	}
	gauges(b, keyMetrics, labels, values)
}

// labelValue escapes what stands in a label. Prometheus wants UTF-8.
func labelValue(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(s, "\uFFFD"))
}

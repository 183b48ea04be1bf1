package metrics

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

func mustNew(t *testing.T, reg prometheus.Registerer, o Options) *Metrics {
	t.Helper()
	m, err := New(reg, o)
	redistest.Must(t, err)
	return m
}

func acquired(rule, task string) automutex.Event {
	return automutex.Event{Kind: automutex.EventAcquired, Rule: rule, Task: task, Waited: time.Second, Parked: time.Minute}
}

func TestNew_refuses(t *testing.T) {
	t.Parallel()
	taken := prometheus.NewRegistry()
	mustNew(t, taken, Options{})
	var none *prometheus.Registry
	for name, c := range map[string]struct {
		reg  prometheus.Registerer
		o    Options
		want []string
	}{
		"twice":                {taken, Options{}, []string{"has these metrics already", "share one Metrics", "Options.Labels"}},
		"other label names":    {taken, Options{Labels: prometheus.Labels{"guard": "a"}}, []string{"Options.Labels", "same ones for all"}},
		"a nil registry":       {none, Options{}, []string{"nil *prometheus.Registry"}},
		"a label of ours":      {prometheus.NewRegistry(), Options{Labels: prometheus.Labels{"rule": "a"}}, []string{"Options.Labels", "none of rule"}},
		"a bad label name":     {prometheus.NewRegistry(), Options{Labels: prometheus.Labels{"": "a"}}, []string{"Options.Labels", "valid names"}},
		"a bad label value":    {prometheus.NewRegistry(), Options{Labels: prometheus.Labels{"a": "\xff"}}, []string{"Options.Labels"}},
		"negative types":       {prometheus.NewRegistry(), Options{MaxTypes: -1}, []string{"MaxTypes", "-1"}},
		"buckets that descend": {prometheus.NewRegistry(), Options{Buckets: []float64{1, 1}}, []string{"Buckets[1]", "increasing"}},
		"buckets of no number": {prometheus.NewRegistry(), Options{Buckets: []float64{1, math.NaN()}}, []string{"Buckets[1]"}},
		"a first of no number": {prometheus.NewRegistry(), Options{Buckets: []float64{math.NaN()}}, []string{"Buckets[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := New(c.reg, c.o)
			if err == nil || m != nil {
				t.Fatalf("got %v, %v; want an error", m, err)
			}
			for _, text := range append(c.want, "metrics: ") {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q does not say %q", err, text)
				}
			}
		})
	}
}

// Nothing of what was refused stays in the registry.
func TestNew_refusedLeavesNothing(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	if _, err := New(reg, Options{Labels: prometheus.Labels{"task": "x"}}); err == nil {
		t.Fatal("task is a label of ours")
	}
	mustNew(t, reg, Options{}).Observe(t.Context(), acquired("r", "t"))
	serve(t, reg).await(map[string]float64{`automutex_held{rule="r",task="t"}`: 1})
}

// Two guards in one process: one Metrics for both, or one each in one registry, or
// in a registry of its own; and one can be taken out again.
func TestNew_severalGuards(t *testing.T) {
	t.Parallel()
	reg, apart := prometheus.NewRegistry(), prometheus.NewRegistry()
	a := mustNew(t, reg, Options{Labels: prometheus.Labels{"guard": "a"}})
	b := mustNew(t, reg, Options{Labels: prometheus.Labels{"guard": "b"}})
	c := mustNew(t, apart, Options{})
	for m, n := range map[*Metrics]int{a: 1, b: 2, c: 3} {
		for range n {
			m.Observe(t.Context(), acquired("r", "t"))
		}
	}
	serve(t, reg).await(map[string]float64{
		`automutex_acquisitions_total{guard="a",rule="r",task="t"}`: 1,
		`automutex_acquisitions_total{guard="b",rule="r",task="t"}`: 2,
	})
	serve(t, apart).await(map[string]float64{`automutex_acquisitions_total{rule="r",task="t"}`: 3})

	if !reg.Unregister(a) {
		t.Error("not taken out")
	}
	again := mustNew(t, reg, Options{Labels: prometheus.Labels{"guard": "a"}})
	again.Observe(t.Context(), acquired("r", "t"))
	serve(t, reg).await(map[string]float64{`automutex_acquisitions_total{guard="a",rule="r",task="t"}`: 1})
}

func TestNew_defaultRegisterer(t *testing.T) { // the process' own: not parallel
	m := mustNew(t, nil, Options{})
	if !prometheus.Unregister(m) {
		t.Error("it is not in the default registry")
	}
}

// Whatever the task type, the number of series is bounded, the gauges come back to
// zero and nothing panics.
func TestObserve_attackersTypes(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := mustNew(t, reg, Options{MaxTypes: 4, Buckets: []float64{1}})
	types := []string{"", "\xff\xfe", "\xff", "other", "a\nb\"c\\", strings.Repeat("x", 1<<20), strings.Repeat("y", maxType+1)}
	for i := range 1000 {
		types = append(types, fmt.Sprintf("report:%d", i))
	}
	var wg sync.WaitGroup
	for worker := range 4 {
		redistest.Go(&wg, func() {
			for i := range types {
				task := types[(i+worker*100)%len(types)]
				for _, kind := range []automutex.EventKind{
					automutex.EventWaiting, automutex.EventWaited, automutex.EventAcquired, automutex.EventBusy,
					automutex.EventReleased, automutex.EventLost, automutex.EventOverdue, automutex.EventBackendError,
				} {
					m.Observe(t.Context(), automutex.Event{Kind: kind, Rule: "report:", Task: task, Parked: time.Second})
				}
				m.Observe(t.Context(), automutex.Event{Kind: automutex.EventKeyError, Task: task})
			}
		})
	}
	wg.Wait()
	samples := serve(t, reg).scrape()
	// Five types: 4 and other. Nine metrics that are one sample, three histograms of
	// four (a bucket, +Inf, sum, count); and key errors.
	if most := 5*(9+3*4) + 5; len(samples) > most {
		t.Errorf("%d samples, want at most %d", len(samples), most)
	}
	sums := map[string]float64{}
	for sample, value := range samples {
		name, _, _ := strings.Cut(sample, "{")
		sums[name] += value
	}
	all := float64(4 * len(types))
	for name, want := range map[string]float64{
		"automutex_held": 0, "automutex_waiting": 0, "automutex_acquisitions_total": all, "automutex_busy_total": all,
		"automutex_lost_total": all, "automutex_overdue_total": all, "automutex_key_errors_total": all,
		"automutex_backend_errors_total": all, "automutex_wait_seconds_count": all, "automutex_parked_seconds_count": all, "automutex_hold_seconds_count": all,
	} {
		if sums[name] != want {
			t.Errorf("%s is %v in all, want %v", name, sums[name], want)
		}
	}
}

// Types that are no labels as they stand.
func TestObserve_oddTypes(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := mustNew(t, reg, Options{})
	for _, task := range []string{"a\xffb", "a\xfeb", "", strings.Repeat("x", maxType), strings.Repeat("x", maxType+1), "q\"q"} {
		m.Observe(t.Context(), acquired("r\xff", task))
		m.Observe(t.Context(), automutex.Event{Kind: automutex.EventKeyError, Task: task})
	}
	want := map[string]float64{}
	for _, metric := range []string{`automutex_held{rule="r\ufffd",`, `automutex_key_errors_total{`} {
		metric = strings.ReplaceAll(metric, `\ufffd`, "\ufffd")
		for task, n := range map[string]float64{"a\ufffdb": 2, "": 1, strings.Repeat("x", maxType): 1, "other": 1, `q\"q`: 1} {
			want[metric+`task="`+task+`"}`] = n
		}
	}
	serve(t, reg).await(want)
}

// The types of one rule do not take another rule's places.
func TestObserve_typesOfEachRule(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := mustNew(t, reg, Options{MaxTypes: 1})
	for _, e := range [][2]string{{"a:", "a:1"}, {"a:", "a:2"}, {"b:", "b:1"}} {
		m.Observe(t.Context(), acquired(e[0], e[1]))
	}
	serve(t, reg).await(map[string]float64{
		`automutex_held{rule="a:",task="a:1"}`:   1,
		`automutex_held{rule="a:",task="other"}`: 1,
		`automutex_held{rule="b:",task="b:1"}`:   1,
	})
}

func TestObserve_nothingToCount(t *testing.T) {
	t.Parallel()
	var none *Metrics
	none.Observe(t.Context(), acquired("r", "t"))
	none.WatchControls(nil)
	reg := prometheus.NewRegistry()
	m := mustNew(t, reg, Options{})
	m.WatchControls(nil)
	m.Observe(t.Context(), automutex.Event{})
	m.Observe(t.Context(), automutex.Event{Kind: automutex.EventRetried, Task: "t"}) // the Guard was closed
	if samples := serve(t, reg).scrape(); len(samples) > 0 {
		t.Errorf("got %v", samples)
	}
	m.Observe(t.Context(), automutex.Event{Kind: "of a later version", Rule: "r", Task: "t"})
	serve(t, reg).await(map[string]float64{`automutex_held{rule="r",task="t"}`: 0})
}

// Tasks that leave an ordered key, or keep it, by an operator or by asynq: the one who skips a head does not know its type.
func TestObserve_order(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := mustNew(t, reg, Options{})
	for range 2 {
		m.Observe(t.Context(), automutex.Event{Kind: automutex.EventBlocked, Rule: "r", Task: "t"})
	}
	m.Observe(t.Context(), automutex.Event{Kind: automutex.EventHeadSkipped, Rule: "r"})
	serve(t, reg).await(map[string]float64{
		`automutex_order_blocked_total{rule="r",task="t"}`: 2,
		`automutex_order_skipped_total{rule="r"}`:          1,
	})
}

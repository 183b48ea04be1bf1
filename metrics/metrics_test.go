package metrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

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

// gather gives what a registry has, by name and labels as a scrape has them: of a histogram the count and the sum.
func gather(t *testing.T, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	redistest.Must(t, err)
	samples := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, label.GetName()+`="`+label.GetValue()+`"`)
			}
			of := "{" + strings.Join(labels, ",") + "}"
			if h := metric.GetHistogram(); h != nil {
				samples[family.GetName()+"_count"+of], samples[family.GetName()+"_sum"+of] = float64(h.GetSampleCount()),
					h.GetSampleSum()
				continue
			}
			samples[family.GetName()+of] = cmp.Or(metric.GetCounter().GetValue(), metric.GetGauge().GetValue())
		}
	}
	return samples
}

// holds fails the test unless the registry has these samples.
func holds(t *testing.T, reg prometheus.Gatherer, want map[string]float64) {
	t.Helper()
	got := gather(t, reg)
	maps.DeleteFunc(got, func(name string, _ float64) bool { _, wanted := want[name]; return !wanted })
	if !maps.Equal(got, want) {
		t.Errorf("the registry has %v, want %v", got, want)
	}
}

func TestNew_refuses(t *testing.T) {
	t.Parallel()
	taken := prometheus.NewRegistry()
	mustNew(t, taken, Options{})
	labels := func(name, value string) Options { return Options{Labels: prometheus.Labels{name: value}} }
	buckets := func(bounds ...float64) Options { return Options{Buckets: bounds} }
	for name, c := range map[string]struct {
		reg  prometheus.Registerer
		o    Options
		want []string
	}{
		"twice": {taken, Options{}, []string{"has these metrics already", "share one Metrics", "Options.Labels"}},

		"other label names":    {taken, labels("guard", "a"), []string{"Options.Labels", "same ones for all"}},
		"a label of ours":      {nil, labels("rule", "a"), []string{"Options.Labels", "none of rule"}},
		"a bad label name":     {nil, labels("", "a"), []string{"Options.Labels", "valid names"}},
		"a bad label value":    {nil, labels("a", "\xff"), []string{"Options.Labels"}},
		"negative types":       {nil, Options{MaxTypes: -1}, []string{"MaxTypes", "-1"}},
		"buckets that descend": {nil, buckets(1, 1), []string{"Buckets[1]", "increasing"}},
		"buckets of no number": {nil, buckets(1, math.NaN()), []string{"Buckets[1]"}},
		"a first of no number": {nil, buckets(math.NaN()), []string{"Buckets[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.reg == nil {
				c.reg = prometheus.NewRegistry()
			}
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

// Two guards in one process have one Metrics, one each in one registry, or in one of its own; and one can be taken out
// again. Nothing of what was refused stays in a registry.
func TestNew_severalGuards(t *testing.T) { // one of them in the process' own registry: not parallel
	reg, apart := prometheus.NewRegistry(), prometheus.NewRegistry()
	if _, err := New(apart, Options{Labels: prometheus.Labels{"task": "x"}}); err == nil {
		t.Fatal("task is a label of ours")
	}
	a := mustNew(t, reg, Options{Labels: prometheus.Labels{"guard": "a"}})
	b := mustNew(t, reg, Options{Labels: prometheus.Labels{"guard": "b"}})
	c := mustNew(t, apart, Options{})
	for m, n := range map[*Metrics]int{a: 1, b: 2, c: 3} {
		for range n {
			m.Observe(t.Context(), acquired("r", "t"))
		}
	}
	const name = "automutex_acquisitions_total"
	holds(t, reg, map[string]float64{name + `{guard="a",rule="r",task="t"}`: 1, name + `{guard="b",rule="r",task="t"}`: 2})
	holds(t, apart, map[string]float64{name + `{rule="r",task="t"}`: 3})
	if !reg.Unregister(a) || !prometheus.Unregister(mustNew(t, nil, Options{})) {
		t.Error("not taken out")
	}
	mustNew(t, reg, Options{Labels: prometheus.Labels{"guard": "a"}})
}

// Whatever the task type, the number of series is bounded, the gauges come back to zero and nothing panics.
func TestObserve_attackersTypes(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	m := mustNew(t, reg, Options{MaxTypes: 4})
	types := []string{" ", "\xff\xfe", "\xff", "other", "a\nb\"c\\", strings.Repeat("x", 1<<20),
		strings.Repeat("y", maxType+1)}
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
	samples := gather(t, reg)
	// Five types: 4 and other. Ten metrics that are one sample, three histograms of two; and key errors.
	if most := 5*(10+3*2) + 5; len(samples) > most {
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
		"automutex_backend_errors_total": all, "automutex_wait_seconds_count": all, "automutex_parked_seconds_count": all,
		"automutex_hold_seconds_count": all,
	} {
		if sums[name] != want {
			t.Errorf("%s is %v in all, want %v", name, sums[name], want)
		}
	}
}

// Types that are no labels as they stand, and those of one rule, which do not take another rule's places.
func TestObserve_oddTypes(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxType)
	for types, want := range map[[4]string]map[string]float64{
		{"a\xffb", "a\xfeb", "", ""}:       {"a\ufffdb": 2, "": 2},
		{long, long + "x", "q\"q", "q\"q"}: {long: 1, "other": 1, "q\"q": 2},
		{"1", "2", "3", "4"}:               {"1": 1, "2": 1, "3": 1, "other": 1},
	} {
		reg := prometheus.NewRegistry()
		m := mustNew(t, reg, Options{MaxTypes: 3})
		held := map[string]float64{}
		for _, rule := range []string{"r\xff", "another"} {
			for _, task := range types {
				m.Observe(t.Context(), acquired(rule, task))
			}
			for task, n := range want {
				held[`automutex_held{rule="`+valid(rule)+`",task="`+task+`"}`] = n
			}
		}
		holds(t, reg, held)
	}
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
	if samples := gather(t, reg); len(samples) > 0 {
		t.Errorf("got %v", samples)
	}
	m.Observe(t.Context(), automutex.Event{Kind: "of a later version", Rule: "r", Task: "t"})
	holds(t, reg, map[string]float64{`automutex_held{rule="r",task="t"}`: 0})
}

// Each event is counted once, whatever the policy.
func TestObserve_events(t *testing.T) {
	t.Parallel()
	const labels = `{rule="r",task="t"}`
	for name, c := range map[string]struct {
		events []automutex.Event
		want   map[string]float64
	}{
		"a wait": {
			[]automutex.Event{{Kind: automutex.EventWaiting}, {Kind: automutex.EventWaiting, Last: true},
				{Kind: automutex.EventWaiting, Last: true}, {Kind: automutex.EventWaited, Last: true}},
			map[string]float64{
				"automutex_waiting" + labels: 2, "automutex_last_attempts" + labels: 1, "automutex_held" + labels: 0,
				"automutex_lost_total" + labels:           0,
				"automutex_overdue_total" + labels:        0,
				"automutex_backend_errors_total" + labels: 0, "automutex_order_blocked_total" + labels: 0,
				`automutex_outcomes_total{outcome="archived",rule="r",task="t"}`: 0,
			},
		},
		"holds": {
			[]automutex.Event{
				acquired("r", "t"), {Kind: automutex.EventAcquired, Waited: 2 * time.Second},
				{Kind: automutex.EventReleased, Held: 3 * time.Second},
			},
			map[string]float64{
				"automutex_held" + labels: 1, "automutex_acquisitions_total" + labels: 2,
				"automutex_wait_seconds_count" + labels: 2, "automutex_wait_seconds_sum" + labels: 3,
				"automutex_parked_seconds_count" + labels: 1, "automutex_parked_seconds_sum" + labels: 60,
				"automutex_hold_seconds_count" + labels: 1, "automutex_hold_seconds_sum" + labels: 3,
			},
		},
		// The one who skips a head does not know its type.
		"order": {
			[]automutex.Event{{Kind: automutex.EventBlocked}, {Kind: automutex.EventBlocked},
				{Kind: automutex.EventHeadSkipped}},
			map[string]float64{"automutex_order_blocked_total" + labels: 2, `automutex_order_skipped_total{rule="r"}`: 1},
		},
	} {
		reg := prometheus.NewRegistry()
		m := mustNew(t, reg, Options{})
		for _, e := range c.events {
			e.Rule, e.Task = "r", "t"
			m.Observe(t.Context(), e)
		}
		t.Log(name)
		holds(t, reg, c.want)
	}
	type kinds []automutex.EventKind
	for outcome, c := range map[string]struct {
		policy automutex.Policy
		kinds  kinds
	}{
		"skipped":  {automutex.Skip, kinds{automutex.EventBusy, automutex.EventSkipped}},
		"retried":  {automutex.Retry, kinds{automutex.EventBusy, automutex.EventRetried}},
		"parked":   {automutex.Park, kinds{automutex.EventBusy, automutex.EventParked}},
		"replaced": {automutex.Replace, kinds{automutex.EventReplaced}},
		"late":     {automutex.Archive, kinds{automutex.EventLate}},
		"archived": {automutex.Archive, kinds{automutex.EventBusy}},
		"failed":   {automutex.Fail, kinds{automutex.EventBusy}},
		"allowed":  {automutex.Allow, kinds{automutex.EventBusy}},
	} {
		reg := prometheus.NewRegistry()
		m := mustNew(t, reg, Options{})
		for _, kind := range c.kinds {
			m.Observe(t.Context(), automutex.Event{Kind: kind, Policy: c.policy, Rule: "r", Task: "t"})
		}
		all := 0.0
		for sample, value := range gather(t, reg) {
			if strings.HasPrefix(sample, "automutex_outcomes_total{") {
				all += value
			}
		}
		if all != 1 {
			t.Errorf("%s: %v outcomes", outcome, all)
		}
		holds(t, reg, map[string]float64{`automutex_outcomes_total{outcome="` + outcome + `",rule="r",task="t"}`: 1})
	}
}

// newGuard is a Guard without a server.
func newGuard(t *testing.T, rdb redis.UniversalClient, cfg automutex.Config) *automutex.Guard {
	t.Helper()
	cfg.Prefix, cfg.Logger = redistest.Name(t), slog.New(slog.DiscardHandler)
	guard, err := automutex.New(rdb, cfg)
	redistest.Must(t, err)
	t.Cleanup(func() {
		if err := guard.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return guard
}

// What a Guard does is counted as it does it, and no metric names a value of a payload.
func TestGuard(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		reg := prometheus.NewPedanticRegistry()
		m := mustNew(t, reg, Options{})
		var hook redistest.FailHook
		rdb := s.Client(t)
		rdb.AddHook(&hook)
		guard := newGuard(t, rdb, automutex.Config{Observe: m.Observe, Rules: []automutex.Rule{
			{Task: "turn", Name: "turns", On: []string{"id"}, Busy: automutex.Retry, Wait: time.Minute},
			{Task: "skip", On: []string{"id"}, Busy: automutex.Skip},
			{Task: "rate", Busy: automutex.Skip, Limit: 1, Rate: automutex.Rate{Starts: 1, Per: time.Hour}},
			{Task: "pause"},
		}})
		nothing := func(context.Context, *asynq.Task) error { return nil }
		run := func(taskType, payload string, handler asynq.HandlerFunc) error {
			return guard.Middleware(handler).ProcessTask(t.Context(), asynq.NewTask(taskType, []byte(payload)))
		}
		const payload = `{"id": "secret-42"}`
		turns := `{rule="turns",task="turn"}`
		holding, let, ended := make(chan struct{}), make(chan struct{}), make(chan error, 2)
		go func() { // ends when it is let go
			ended <- run("turn", payload, func(context.Context, *asynq.Task) error {
				close(holding)
				<-let
				return nil
			})
		}()
		<-holding
		go func() { ended <- run("turn", payload, nothing) }()
		redistest.Eventually(t, redistest.Patience, func() bool { return gather(t, reg)["automutex_waiting"+turns] == 1 },
			"one stands in line")
		holds(t, reg, map[string]float64{"automutex_held" + turns: 1, "automutex_acquisitions_total" + turns: 1})
		close(let)
		redistest.Must(t, errors.Join(<-ended, <-ended))
		redistest.Must(t, run("skip", payload, func(context.Context, *asynq.Task) error {
			return run("skip", payload, nothing)
		}))
		redistest.Must(t, run("rate", "", nothing))
		redistest.Must(t, run("rate", "", nothing))
		if err := run("turn", "{}", nothing); err == nil {
			t.Error("a task without its field ran")
		}
		m.WatchControls(guard.Controls())
		redistest.Must(t, guard.Controls().Pause(t.Context(), "pause", time.Time{}, ""))
		redistest.Must(t, guard.Controls().SetLimit(t.Context(), "skip", 3, ""))
		if err := run("pause", "", nothing); err == nil {
			t.Error("a paused task ran")
		}
		hook.Before(func(redis.Cmder) error { return errors.New("away") })
		if err := run("turn", payload, nothing); err == nil {
			t.Error("a task ran without Redis")
		}
		hook.Before(nil)
		holds(t, reg, map[string]float64{
			"automutex_held" + turns: 0, "automutex_waiting" + turns: 0, "automutex_acquisitions_total" + turns: 2,
			"automutex_hold_seconds_count" + turns:   2,
			"automutex_backend_errors_total" + turns: 1, `automutex_key_errors_total{task="turn"}`: 1,
			`automutex_busy_total{policy="skip",reason="held",rule="skip",task="skip"}`:     1,
			`automutex_busy_total{policy="skip",reason="rate",rule="rate",task="rate"}`:     1,
			`automutex_busy_total{policy="park",reason="paused",rule="pause",task="pause"}`: 1,
			`automutex_controls{kind="pause"}`:                                              1,
			`automutex_controls{kind="limit"}`:                                              1,
		})
		for sample := range gather(t, reg) {
			if strings.Contains(sample, "secret") {
				t.Errorf("a payload value is in %s", sample)
			}
		}
	})
}

func TestMain(m *testing.M) { redistest.Main(m) }

// span records the events of a span, as "name key=value ...".
type span struct {
	noop.Span
	ended bool

	mu     sync.Mutex
	events []string
}

func (s *span) IsRecording() bool { return !s.ended }

func (s *span) AddEvent(name string, options ...trace.EventOption) {
	s.mu.Lock()
	defer s.mu.Unlock()
	config := trace.NewEventConfig(options...)
	for _, attribute := range config.Attributes() {
		name += fmt.Sprintf(" %s=%s", attribute.Key, attribute.Value.Emit())
	}
	s.events = append(s.events, name)
}

func (s *span) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// names are the events' names, without the package's.
func (s *span) names() (names []string) {
	for _, event := range s.list() {
		name, _, _ := strings.Cut(event, " ")
		names = append(names, strings.TrimPrefix(name, "automutex."))
	}
	return names
}

func TestTrace_attributes(t *testing.T) {
	t.Parallel()
	busy := &automutex.BusyError{Rule: "r", Key: "secret", Holder: "worker-1", HolderTask: "secret", Waited: time.Second}
	for want, e := range map[string]automutex.Event{
		"automutex.waiting automutex.rule=r": {Kind: automutex.EventWaiting, Rule: "r"},
		"automutex.waited automutex.rule=r automutex.waited_seconds=1.5": {Kind: automutex.EventWaited, Rule: "r",
			Waited: 1500 * time.Millisecond},
		"automutex.released automutex.rule=r automutex.held_seconds=2": {Kind: automutex.EventReleased, Rule: "r",
			Held: 2 * time.Second},
		"automutex.lost automutex.rule=r": {Kind: automutex.EventLost, Rule: "r",
			Err: errors.New("secret")},
		"automutex.key_error": {Kind: automutex.EventKeyError,
			Err: errors.New("secret")},
		"automutex.retried automutex.delay_seconds=3": {Kind: automutex.EventRetried,
			Delay: 3 * time.Second},
		"automutex.parked automutex.rule=r automutex.policy=park automutex.holder=worker-1 automutex.delay_seconds=9": {
			Kind: automutex.EventParked, Rule: "r", Policy: automutex.Park, Busy: busy, Delay: 9 * time.Second,
		},
		"automutex.acquired automutex.rule=r automutex.waited_seconds=1 automutex.parked_seconds=60": {
			Kind: automutex.EventAcquired, Rule: "r", Waited: time.Second, Parked: time.Minute,
		},
		"automutex.skipped automutex.rule=r automutex.policy=skip": {Kind: automutex.EventSkipped, Rule: "r",
			Policy: automutex.Skip},
		"automutex.acquired automutex.rule=\uFFFD": {Kind: automutex.EventAcquired, Rule: "\xff"},
		"automutex.busy automutex.rule=r automutex.policy=retry in 5s automutex.holder=worker-1 automutex.waited_seconds=1": {
			Kind: automutex.EventBusy, Rule: "r", Policy: automutex.RetryIn(5 * time.Second), Busy: busy, Waited: time.Second,
		},
	} {
		e.Key, e.Task, e.TaskID = "secret", "t", "secret"
		s := &span{}
		Trace(trace.ContextWithSpan(t.Context(), s), e)
		if got := s.list(); !slices.Equal(got, []string{want}) {
			t.Errorf("got %q\nwant %q", got, want)
		}
	}
}

// Without a span, or with one that has ended, nothing happens.
func TestTrace_noSpan(t *testing.T) {
	t.Parallel()
	e := automutex.Event{Kind: automutex.EventWaiting, Rule: "r"}
	Trace(t.Context(), e)
	s := &span{ended: true}
	Trace(trace.ContextWithSpan(t.Context(), s), e)
	if got := s.list(); len(got) > 0 {
		t.Errorf("got %q", got)
	}
}

// The events of a wait and of a hold are on the span of the task that waited.
func TestTrace_waitAndHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		waiting := make(chan struct{})
		guard := newGuard(t, s.Client(t), automutex.Config{
			Rules: []automutex.Rule{{Task: "work", Busy: automutex.Retry, Wait: time.Minute}},
			Observe: automutex.JoinObservers(nil, Trace, func(_ context.Context, e automutex.Event) {
				if e.Kind == automutex.EventWaiting {
					close(waiting) // a second one would panic
				}
			}),
		})
		first, second := &span{}, &span{}
		holding, ended := make(chan struct{}), make(chan error)
		run := func(s *span, handler asynq.HandlerFunc) error {
			return guard.Middleware(handler).ProcessTask(trace.ContextWithSpan(t.Context(), s), asynq.NewTask("work", nil))
		}
		go func() { // ends with the second's wait
			ended <- run(first, func(context.Context, *asynq.Task) error {
				close(holding)
				<-waiting
				return nil
			})
		}()
		<-holding
		redistest.Must(t, run(second, func(context.Context, *asynq.Task) error { return nil }))
		redistest.Must(t, <-ended)
		if got := first.names(); !slices.Equal(got, []string{"acquired", "released"}) {
			t.Errorf("the first span has %q", got)
		}
		if got := second.names(); !slices.Equal(got, []string{"waiting", "waited", "acquired", "released"}) {
			t.Errorf("the second span has %q", got)
		}
	})
}

package metrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/automutex/automutex"
)

// Options configure [New]. The zero value is ready to use.
type Options struct {
	// Labels are added to every metric. They tell the Metrics of one registry apart: {"guard": "billing"} and {"guard":
	// "mail"}. All Metrics of a registry must have the same label names. rule, task, policy, outcome, reason and kind are
	// taken.
	Labels prometheus.Labels

	// MaxTypes is how many task types of one rule have a label value of their own; see the package's "Task types". 0 means
	// 50; negative numbers are refused.
	MaxTypes int

	// Buckets are the upper bounds of the histograms, in seconds, increasing. Empty means 1 ms to 30 min in 17 steps.
	Buckets []float64
}

const defaultMaxTypes = 50

var defaultBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}

// Metrics counts the events of one Guard, or of several Guards together. Safe for concurrent use. There is nothing to
// close.
type Metrics struct {
	types types

	acquisitions, busy, outcomes, lost, overdue, keyErrors, backendErrors, blocked, skipped *prometheus.CounterVec

	wait, parked, hold  *prometheus.HistogramVec
	held, waiting, last *prometheus.GaugeVec

	controls *controls
	all      []prometheus.Collector
}

// New makes Metrics and registers them with reg; nil means prometheus.DefaultRegisterer. After an error, because an
// option is wrong or reg has such metrics already, nothing is registered.
//
// Several Guards in one process can share one Metrics: put its Observe into each Config. Or give each Guard its own
// Metrics, with different [Options].Labels.
func New(reg prometheus.Registerer, o Options) (*Metrics, error) {
	if reg == nil {
		reg = prometheus.DefaultRegisterer
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	o.MaxTypes = cmp.Or(o.MaxTypes, defaultMaxTypes)
	if len(o.Buckets) == 0 {
		o.Buckets = defaultBuckets
	}
	m := &Metrics{types: types{most: o.MaxTypes, known: map[string]*ruleTypes{}}, controls: newControls(o.Labels)}
	m.all = append(m.all, m.controls)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "automutex", Name: name, Help: help,
			ConstLabels: o.Labels}, labels)
		m.all = append(m.all, c)
		return c
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "automutex", Name: name, Help: help,
			ConstLabels: o.Labels}, []string{"rule", "task"})
		m.all = append(m.all, g)
		return g
	}
	buckets := slices.Clone(o.Buckets)
	histogram := func(name, help string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "automutex", Name: name, Help: help,
			ConstLabels: o.Labels, Buckets: buckets}, []string{"rule", "task"})
		m.all = append(m.all, h)
		return h
	}
	m.acquisitions = counter("acquisitions_total", "Locks taken.", "rule", "task")
	m.busy = counter("busy_total", "Attempts that did not get their lock, by the policy that applied and by the reason.",
		"rule", "task", "policy", "reason")
	m.outcomes = counter("outcomes_total", "What the Guard did with tasks that did not get their locks, were late, or "+
		"lost them.", "rule", "task", "outcome")
	m.wait = histogram("wait_seconds", "Time from asking for a lock to holding it, of those that got it.")
	m.parked = histogram("parked_seconds", "Time from the first place in line to holding it, of those that were parked.")
	m.hold = histogram("hold_seconds", "Time from taking a lock to releasing it.")
	m.held, m.waiting = gauge("held", "Locks held now."), gauge("waiting", "Tasks that wait in line now.")
	m.last = gauge("last_attempts", "Tasks that wait in line on their last attempt.")
	m.lost = counter("lost_total", "Leases that ended while their handlers ran.", "rule", "task")
	m.overdue = counter("overdue_total", "Handlers that ran past their task's end.", "rule", "task")
	m.keyErrors = counter("key_errors_total", "Tasks that no key could be made from.", "task")
	m.blocked = counter("order_blocked_total", "Tasks of ordered keys that asynq archived, and that hold their keys.",
		"rule", "task")
	m.skipped = counter("order_skipped_total", "Tasks of ordered keys that an operator skipped through this process.",
		"rule")
	m.backendErrors = counter("backend_errors_total", "Times that Redis failed, or that a key could not be made for now.",
		"rule", "task")
	if err := reg.Register(m); err != nil {
		var already prometheus.AlreadyRegisteredError
		if errors.As(err, &already) {
			return nil, fmt.Errorf("metrics: the registry has these metrics already: several guards may share one Metrics, "+
				"or each have their own, with other values in Options.Labels: %w", err)
		}
		return nil, fmt.Errorf("metrics: the registry refuses: Options.Labels need valid names, none of rule, task, "+
			"policy, outcome, reason and kind, and the same ones for all Metrics of a registry: %w", err)
	}
	return m, nil
}

func (o Options) check() error {
	if o.MaxTypes < 0 {
		return fmt.Errorf("metrics: Options.MaxTypes: %d is negative; use 0 for %d", o.MaxTypes, defaultMaxTypes)
	}
	for i, bound := range o.Buckets {
		// Not (before < bound), so that NaN is caught too.
		if bound != bound || i > 0 && !(o.Buckets[i-1] < bound) {
			return fmt.Errorf("metrics: Options.Buckets[%d]: %v does not come after %v; give increasing seconds", i, bound,
				o.Buckets[max(0, i-1)])
		}
	}
	return nil
}

// Observe counts an event. Use it as Config.Observe; with other observers, join them with [automutex.JoinObservers].
// Observe ignores kinds of events that no metric counts. A nil *Metrics counts nothing.
func (m *Metrics) Observe(_ context.Context, e automutex.Event) {
	if m == nil {
		return
	} else if e.Kind == automutex.EventKeyError {
		// Its rule is not always known; the types have a bound of their own.
		task, _ := m.types.label("", e.Task)
		m.keyErrors.WithLabelValues(task).Inc()
		return
	}
	rule := valid(e.Rule)
	if e.Rule == "" {
		return
	} else if e.Kind == automutex.EventHeadSkipped { // its type is not known
		m.skipped.WithLabelValues(rule).Inc()
		return
	}
	task, first := m.types.label(rule, e.Task)
	if first {
		m.begin(rule, task)
	}
	outcome := outcomes[e.Kind]
	if e.Kind == automutex.EventBusy {
		outcome = busyOutcomes[e.Policy.String()]
	}
	if outcome != "" {
		m.outcomes.WithLabelValues(rule, task, outcome).Inc()
	}
	switch e.Kind {
	case automutex.EventWaiting:
		m.addWaiting(rule, task, e.Last, 1)
	case automutex.EventWaited:
		m.addWaiting(rule, task, e.Last, -1)
	case automutex.EventAcquired:
		m.acquisitions.WithLabelValues(rule, task).Inc()
		m.held.WithLabelValues(rule, task).Inc()
		m.wait.WithLabelValues(rule, task).Observe(e.Waited.Seconds())
		if e.Parked > 0 {
			m.parked.WithLabelValues(rule, task).Observe(e.Parked.Seconds())
		}
	case automutex.EventReleased:
		m.held.WithLabelValues(rule, task).Dec()
		m.hold.WithLabelValues(rule, task).Observe(e.Held.Seconds())
	case automutex.EventBusy:
		reason := ""
		if e.Busy != nil {
			reason = e.Busy.Reason
		}
		m.busy.WithLabelValues(rule, task, e.Policy.String(), reason).Inc()
	case automutex.EventLost:
		m.lost.WithLabelValues(rule, task).Inc()
		if e.Task == "" { // of Guard.Lock: nothing follows
			m.held.WithLabelValues(rule, task).Dec()
			m.hold.WithLabelValues(rule, task).Observe(e.Held.Seconds())
		}
	case automutex.EventBlocked:
		m.blocked.WithLabelValues(rule, task).Inc()
	case automutex.EventOverdue:
		m.overdue.WithLabelValues(rule, task).Inc()
	case automutex.EventBackendError:
		m.backendErrors.WithLabelValues(rule, task).Inc()
	}
}

func (m *Metrics) addWaiting(rule, task string, isLast bool, n float64) {
	m.waiting.WithLabelValues(rule, task).Add(n)
	if isLast {
		m.last.WithLabelValues(rule, task).Add(n)
	}
}

// begin makes the series of a rule and type that was not seen before, at zero: a rate cannot see the first one of a
// counter that begins at one.
func (m *Metrics) begin(rule, task string) {
	for _, counter := range []*prometheus.CounterVec{m.acquisitions, m.lost, m.overdue, m.backendErrors, m.blocked} {
		counter.WithLabelValues(rule, task)
	}
	m.outcomes.WithLabelValues(rule, task, outcomeArchived) // there is an alert for it
	m.held.WithLabelValues(rule, task)
	m.waiting.WithLabelValues(rule, task)
	m.last.WithLabelValues(rule, task)
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.all {
		c.Describe(to)
	}
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.all {
		c.Collect(to)
	}
}

const outcomeArchived = "archived"

// outcomes are those of events that tell what became of an attempt that did not get its lock, and busyOutcomes those of
// a busy lock, by policy. What AfterFailure answers has no outcome of its own.
var (
	outcomes = map[automutex.EventKind]string{
		automutex.EventSkipped: "skipped", automutex.EventRetried: "retried", automutex.EventParked: "parked",
		automutex.EventReplaced: "replaced", automutex.EventLate: "late",
	}
	busyOutcomes = map[string]string{
		automutex.Archive.String(): outcomeArchived, automutex.Fail.String(): "failed", automutex.Allow.String(): "allowed",
	}
)

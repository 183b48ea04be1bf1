package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/automutex/automutex"
)

// What became of a busy task is counted once, whatever its policy.
func TestObserve_outcomes(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := mustNew(t, reg, Options{})
	for _, e := range []automutex.Event{
		{Kind: automutex.EventBusy, Policy: automutex.Skip}, {Kind: automutex.EventSkipped, Policy: automutex.Skip},
		{Kind: automutex.EventBusy, Policy: automutex.Retry}, {Kind: automutex.EventRetried, Policy: automutex.Retry},
		{Kind: automutex.EventBusy, Policy: automutex.Park}, {Kind: automutex.EventParked, Policy: automutex.Park},
		{Kind: automutex.EventReplaced, Policy: automutex.Replace},
		{Kind: automutex.EventBusy, Policy: automutex.Archive},
		{Kind: automutex.EventBusy, Policy: automutex.Fail},
		{Kind: automutex.EventBusy, Policy: automutex.Allow},
		{Kind: automutex.EventHeld, Policy: automutex.Archive, Busy: &automutex.BusyError{Reason: "rate"}}, // EventBusy follows
		{Kind: automutex.EventAcquired},
	} {
		e.Rule, e.Task = "r", "t"
		m.Observe(t.Context(), e)
	}
	want := map[string]float64{}
	for _, outcome := range []string{"skipped", "retried", "parked", "replaced", "archived", "failed", "allowed"} {
		want[`automutex_outcomes_total{outcome="`+outcome+`",rule="r",task="t"}`] = 1
	}
	serve(t, reg).await(want)
}

// Archived tasks are counted from zero, so that the alert on them sees the first one.
func TestObserve_archivedFromZero(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := mustNew(t, reg, Options{})
	m.Observe(t.Context(), automutex.Event{Kind: automutex.EventAcquired, Rule: "r", Task: "t"})
	serve(t, reg).await(map[string]float64{`automutex_outcomes_total{outcome="archived",rule="r",task="t"}`: 0})
}

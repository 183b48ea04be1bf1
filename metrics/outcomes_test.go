package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
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

// No policy ends a task that meets a closed gate: the task is retried, and counted as retried alone,
// whatever the policy of its rule.
func TestObserve_outcomeDuringAHold(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := mustNew(t, reg, Options{})
	policies := []automutex.Policy{automutex.Archive, automutex.Fail, automutex.Skip, automutex.Replace, automutex.RetryIn(time.Minute)}
	var rules []automutex.Rule
	for _, policy := range policies {
		rules = append(rules, automutex.Rule{Task: policy.String(), Busy: policy, Wait: time.Millisecond})
	}
	guard, err := automutex.New(redistest.Mini(t).Client(t), automutex.Config{
		Rules: rules, Prefix: redistest.Name(t), Observe: m.Observe, Logger: slog.New(slog.DiscardHandler),
	})
	redistest.Must(t, err)
	defer func() { _ = guard.Close(t.Context()) }()
	handler := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error { return automutex.CloseGate(ctx, time.Hour) }))
	for _, policy := range policies {
		task := asynq.NewTask(policy.String(), nil)
		redistest.Must(t, handler.ProcessTask(t.Context(), task))
		if err := handler.ProcessTask(t.Context(), task); !errors.Is(err, automutex.ErrBusy) {
			t.Errorf("%s: while the gate is closed: %v", policy, err)
		}
	}
	samples := serve(t, reg).scrape()
	for _, policy := range policies {
		labels := fmt.Sprintf(`rule="%[1]s",task="%[1]s"}`, policy)
		for outcome, want := range map[string]float64{"retried": 1, "archived": 0, "failed": 0, "skipped": 0} {
			if name := `automutex_outcomes_total{outcome="` + outcome + `",` + labels; samples[name] != want {
				t.Errorf("%s is %v, want %v", name, samples[name], want)
			}
		}
		applied := policy
		if policy == automutex.Archive || policy == automutex.Fail || policy == automutex.Skip {
			applied = automutex.Retry // in place of what would end the task
		}
		if name := `automutex_busy_total{policy="` + applied.String() + `",reason="closed",` + labels; samples[name] != 1 {
			t.Errorf("%s is %v, want 1", name, samples[name])
		}
	}
}

// Archived tasks are counted from zero, so that the alert on them sees the first one.
func TestObserve_archivedFromZero(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := mustNew(t, reg, Options{})
	m.Observe(t.Context(), automutex.Event{Kind: automutex.EventAcquired, Rule: "r", Task: "t"})
	serve(t, reg).await(map[string]float64{`automutex_outcomes_total{outcome="archived",rule="r",task="t"}`: 0})
}

package metrics

import (
	"log/slog"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// The orders that are in force, and the tasks that meet a pause, are counted.
func TestControls(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m, err := New(reg, Options{})
	redistest.Must(t, err)
	site := serve(t, reg)
	if samples := site.scrape(); len(samples) != 0 {
		t.Errorf("before anything happens: %v", samples)
	}
	guard, err := automutex.New(redistest.Mini(t).Client(t), automutex.Config{
		Rules: []automutex.Rule{{Task: "work"}}, Prefix: redistest.Name(t), Observe: m.Observe, Logger: slog.New(slog.DiscardHandler),
	})
	redistest.Must(t, err)
	defer func() { _ = guard.Close(t.Context()) }()
	m.WatchControls(guard.Controls())
	redistest.Must(t, guard.Controls().Pause(t.Context(), "work", time.Time{}, ""))
	redistest.Must(t, guard.Controls().SetLimit(t.Context(), "work", 3, ""))
	handler := guard.Middleware(asynq.NotFoundHandler())
	if err := handler.ProcessTask(t.Context(), asynq.NewTask("work", nil)); err == nil {
		t.Error("a paused task ran")
	}
	samples := site.scrape()
	for name, want := range map[string]float64{
		`automutex_controls{kind="pause"}`: 1, `automutex_controls{kind="limit"}`: 1,
		`automutex_busy_total{policy="park",reason="paused",rule="work",task="work"}`: 1,
	} {
		if got, ok := samples[name]; !ok || got != want {
			t.Errorf("%s is %v, want %v; %v", name, got, want, samples)
		}
	}
}

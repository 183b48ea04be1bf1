package metrics

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Tasks that meet a closed gate are counted by what closed it.
func TestGated(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m, err := New(reg, Options{})
	redistest.Must(t, err)
	site := serve(t, reg)
	guard, err := automutex.New(redistest.Mini(t).Client(t), automutex.Config{
		Rules:  []automutex.Rule{{Task: "work", Busy: automutex.Skip, Limit: 1, Rate: automutex.Rate{Starts: 1, Per: time.Hour}}},
		Prefix: redistest.Name(t), Observe: m.Observe, Logger: slog.New(slog.DiscardHandler),
	})
	redistest.Must(t, err)
	defer func() { _ = guard.Close(t.Context()) }()
	handler := guard.Middleware(asynq.HandlerFunc(func(_ context.Context, _ *asynq.Task) error { return nil }))
	for range 3 {
		redistest.Must(t, handler.ProcessTask(t.Context(), asynq.NewTask("work", nil)))
	}
	samples := site.scrape()
	const name = `automutex_busy_total{policy="skip",reason="rate",rule="work",task="work"}`
	if got := samples[name]; got != 2 {
		t.Errorf("%s is %v, want 2; %v", name, got, samples)
	}
}

package e2e

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/lock"
)

// holder takes keys of one scope under a Guard of its own, as tasks would. That Guard can
// wake parked tasks, so whoever is next is called as soon as a lease is released.
type holder struct {
	tb      testing.TB
	scope   string
	handler asynq.Handler
	taken   chan *lock.Lease
}

// newHolder makes a holder with the prefix and the inspector of cfg. It is closed when the test ends.
func newHolder(tb testing.TB, locks lock.Client, cfg automutex.Config, scope string) *holder {
	tb.Helper()
	cfg.Rules = []automutex.Rule{{Task: scope, Limit: 1, Busy: automutex.Park, Key: func(_ context.Context, task *asynq.Task) (parts []string, err error) {
		err = json.Unmarshal(task.Payload(), &parts)
		return parts, err
	}}}
	cfg.Observe, cfg.Logger = nil, slog.New(slog.DiscardHandler)
	guard, err := automutex.New(locks, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	h, end := &holder{tb: tb, scope: scope, taken: make(chan *lock.Lease)}, make(chan struct{})
	h.handler = guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		lease, _ := automutex.Lease(ctx)
		h.taken <- lease
		select {
		case <-ctx.Done(): // the lease was released, or lost
		case <-end:
		}
		return nil
	}))
	tb.Cleanup(func() {
		close(end)
		if err := guard.Close(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	return h
}

// take takes a key, which has to be free, until its lease is released or the test ends.
func (h *holder) take(parts ...string) *lock.Lease {
	h.tb.Helper()
	payload, err := json.Marshal(parts)
	if err != nil {
		h.tb.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- h.handler.ProcessTask(context.Background(), asynq.NewTask(h.scope, payload)) }() // ends with the lease, or with the test
	select {
	case lease := <-h.taken:
		return lease
	case err := <-ended:
		h.tb.Fatalf("the key %v is not free: %v", parts, err)
		return nil
	}
}

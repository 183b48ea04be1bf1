package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// RunContext ends when its context ends, and starts nothing if it has ended before.
func TestRunContext(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	g, err := automutex.New(s.Client(t), automutex.Config{Prefix: redistest.Name(t), Rules: []automutex.Rule{{Task: "work"}}})
	redistest.Must(t, err)
	srv := asynq.NewServerFromRedisClient(s.Client(t), g.ServerConfig(asynq.Config{Concurrency: 1, Logger: redistest.Silent{}, Queues: map[string]int{redistest.Name(t): 1}}))
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
	stopped := errors.New("stopped")
	ended, end := context.WithCancelCause(t.Context())
	end(stopped)
	if err := g.RunContext(ended, srv, handler); !errors.Is(err, stopped) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- g.RunContext(ctx, srv, handler) }()
	cancel()
	select {
	case err := <-result:
		if err != nil && !errors.Is(err, context.Canceled) { // it may end before it has started
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("RunContext does not return")
	}
	_ = g.Close(t.Context())
}

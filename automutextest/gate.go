package automutextest

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// CloseGate closes the gate of a task's key for d, as a handler does with automutex.CloseGate: in
// that time no task gets the key, and no policy drops one. If the task needs several locks,
// CloseGate closes the one that the task takes last.
//
// CloseGate takes the locks of the task for a moment, as [Hold] does, which counts as a start
// for a Rate. If a lock has no free slot, CloseGate fails the test at once.
func CloseGate(tb testing.TB, g *Guard, task *asynq.Task, d time.Duration) {
	tb.Helper()
	g.explain(tb, "CloseGate", task)
	holder := g.holder(tb, "CloseGate", "a CloseGate")
	err := holder.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		return automutex.CloseGate(ctx, d)
	})).ProcessTask(context.Background(), task)
	_ = holder.Close(context.Background()) // nothing is under way
	if err != nil {
		tb.Fatalf("automutextest: CloseGate: %v", err)
	}
}

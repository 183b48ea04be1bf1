package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"
)

// handler works on one event. It knows nothing of locks.
func handler(opts options, rec *recorder) asynq.HandlerFunc {
	return func(ctx context.Context, t *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		entity, _ := opts.entity(t.Type(), t.Payload())
		end := rec.begin(entity, id, t.Type())
		err := work(ctx, opts.work)
		end(err)
		return err
	}
}

// work takes d, give or take half, unless ctx ends before.
func work(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// serverConfig is an ordinary asynq configuration, with shorter intervals than
// asynq's own so that the demo doesn't take long.
func serverConfig(opts options, queue string, log *slog.Logger) asynq.Config {
	return asynq.Config{
		Concurrency:              opts.workers,
		Queues:                   map[string]int{queue: 1},
		TaskCheckInterval:        20 * time.Millisecond,
		DelayedTaskCheckInterval: 200 * time.Millisecond,
		ShutdownTimeout:          3 * time.Second,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration {
			return time.Second // for attempts that failed: -busy fail
		},
		Logger:   asynqLog{log},
		LogLevel: asynq.ErrorLevel, // at WarnLevel there is a line per archived task
	}
}

// enqueue hands the events to asynq until ctx ends.
func enqueue(ctx context.Context, client *asynq.Client, queue string, events []event, on []string, rec *recorder) error {
	for i, e := range events {
		select {
		case <-ctx.Done():
			return nil // interrupted: not an error, and accounted for
		default:
		}
		id := fmt.Sprintf("event-%06d", i+1)
		entity, _ := entityOf(e.Payload, on)
		rec.enqueue(entity, id)
		// Not under ctx: an enqueue cut off half-way may have happened or not.
		_, err := client.Enqueue(asynq.NewTask(e.Type, e.Payload),
			asynq.Queue(queue), asynq.TaskID(id), asynq.MaxRetry(3))
		if err != nil {
			rec.forget(id)
			return fmt.Errorf("enqueueing event %d of %d: %w", i+1, len(events), err)
		}
	}
	return nil
}

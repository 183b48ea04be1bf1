package automutex

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/lock"
)

// LeadScheduler runs an asynq Scheduler in one process at a time, of all processes that call
// it with the same name. So several replicas of a program enqueue each tick once.
// LeadScheduler blocks until ctx ends, and then returns nil.
//
// newScheduler returns a Scheduler with its tasks registered. LeadScheduler calls it once for
// each term: return a new Scheduler each time, since asynq starts a Scheduler only once.
// LeadScheduler starts the Scheduler, and shuts it down when the term ends. It returns an
// error of newScheduler, or of the start, at once.
//
// When a process shuts down, the next one starts its scheduler at once. A process that
// dies is replaced after the locker's TTL (30 s by default), and ticks due in between are
// not enqueued. A process that was stopped for longer than the TTL may enqueue one more
// tick when it goes on, before it learns that another one leads. If that matters, add a
// Rule with Cooldown and Skip for the task.
//
// Close locker after LeadScheduler has returned. See [lock.Locker.Lead] for outages of
// Redis.
func LeadScheduler(ctx context.Context, locker *lock.Locker, name string, newScheduler func() (*asynq.Scheduler, error)) error {
	if locker == nil || newScheduler == nil {
		return errors.New("automutex: LeadScheduler needs a locker and a function that makes the Scheduler")
	}
	err := locker.Lead(ctx, name, func(term context.Context) error {
		scheduler, err := newScheduler()
		switch {
		case err != nil:
			return fmt.Errorf("automutex: LeadScheduler %q: the Scheduler cannot be made: %w", name, err)
		case scheduler == nil:
			return fmt.Errorf("automutex: LeadScheduler %q: the function returned no Scheduler and no error", name)
		}
		if err := scheduler.Start(); err != nil {
			return fmt.Errorf("automutex: LeadScheduler %q: the Scheduler does not start; return a new one for each call: %w", name, err)
		}
		// The scheduler's goroutines end with Shutdown, which waits for them, and so
		// before the lease is released.
		defer scheduler.Shutdown()
		<-term.Done()
		return nil
	})
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Cause(ctx))) {
		return nil
	}
	return err
}

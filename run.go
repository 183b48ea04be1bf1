package automutex

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/lock"
)

var errShutdownTimeout = errors.New("the server's ShutdownTimeout is over")

// Run starts srv with handler, wrapped in [Guard.Middleware], and blocks until the
// process gets SIGTERM or SIGINT. Then it calls srv.Shutdown and [Guard.Close] at the same
// time: tasks in line return to asynq at once, and running handlers keep their locks
// until they return. On Unix, SIGTSTP stops the server from taking new tasks, as with
// srv.Run.
//
// srv is a server made with [Guard.ServerConfig] that was not started. handler is usually
// an asynq.ServeMux; it needs no mux.Use(guard.Middleware), which does no harm either.
//
// If srv does not start, Run returns the error of srv.Start and leaves the Guard open.
// Otherwise it returns the error of [Guard.Close]: not nil if handlers still ran at the end of the
// ShutdownTimeout.
func (g *Guard) Run(srv *asynq.Server, handler asynq.Handler) error {
	return g.RunContext(context.Background(), srv, handler)
}

// RunContext is [Guard.Run] that also ends when ctx ends, and does not start srv if ctx has ended before: then it
// returns the cause of ctx. A ctx that ends later is no error.
func (g *Guard) RunContext(ctx context.Context, srv *asynq.Server, handler asynq.Handler) error {
	switch {
	case srv == nil:
		return errors.New("automutex: Run: the asynq.Server is nil: make it with asynq.NewServer and Guard.ServerConfig")
	case handler == nil:
		return errors.New("automutex: Run: the handler is nil: pass the mux")
	case ctx.Err() != nil:
		return fmt.Errorf("automutex: Run: the server was not started: %w", context.Cause(ctx))
	}
	// Notify before Start: a signal in between would end the process. The channel keeps one
	// signal until the loop below receives it.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, append([]os.Signal{syscall.SIGTERM, syscall.SIGINT}, stopSignals...)...)
	defer signal.Stop(signals)
	if err := srv.Start(g.Middleware(handler)); err != nil {
		return fmt.Errorf("automutex: Run: the server did not start: %w", err)
	}
	for {
		select {
		case s := <-signals:
			if isStop(s) {
				srv.Stop()
				continue
			}
		case <-ctx.Done():
		}
		return g.closeBeside(srv.Shutdown)
	}
}

// closeBeside closes the Guard beside shutdown, with as much time as that takes.
func (g *Guard) closeBeside(shutdown func()) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	closed := make(chan error, 1) // Close returns when ctx ends, at the latest
	go func() { closed <- g.Close(ctx) }()
	shutdown()
	cancel(errShutdownTimeout)
	return <-closed
}

// isStop reports whether s only stops the server from taking tasks.
func isStop(s os.Signal) bool {
	for _, stop := range stopSignals {
		if s == stop {
			return true
		}
	}
	return false
}

// LeadScheduler runs an asynq Scheduler in one process at a time, of all processes that call
// it with the same name. So several replicas of a program enqueue each tick once.
// LeadScheduler blocks until ctx ends, and then returns nil.
//
// newScheduler returns an *asynq.Scheduler with its tasks registered, or an
// *asynq.PeriodicTaskManager. LeadScheduler calls it once for
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
// Register tasks with times of the clock ("*/10 * * * *"), not with periods ("@every 10m"): a
// period begins anew with each term, so one that is longer than the terms never ends.
//
// Close locker after LeadScheduler has returned. See [lock.Locker.Lead] for outages of
// Redis.
func LeadScheduler[S interface {
	comparable
	Start() error
	Shutdown()
}](ctx context.Context, locker *lock.Locker, name string, newScheduler func() (S, error)) error {
	if locker == nil || newScheduler == nil {
		return errors.New("automutex: LeadScheduler needs a locker and a function that makes the Scheduler")
	}
	err := locker.Lead(ctx, name, func(term context.Context) error {
		var none S
		scheduler, err := newScheduler()
		switch {
		case err != nil:
			return fmt.Errorf("automutex: LeadScheduler %q: the Scheduler cannot be made: %w", name, err)
		case scheduler == none:
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

package automutex

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hibiken/asynq"
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
// Otherwise it returns the error of [Guard.Close]: not nil if handlers still ran at the end of
// the ShutdownTimeout.
func (g *Guard) Run(srv *asynq.Server, handler asynq.Handler) error {
	switch {
	case srv == nil:
		return errors.New("automutex: Run: the asynq.Server is nil: make it with asynq.NewServer and Guard.ServerConfig")
	case handler == nil:
		return errors.New("automutex: Run: the handler is nil: pass the mux")
	}
	// Notify before Start: a signal in between would end the process. The channel keeps one
	// signal until the loop below receives it.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, append([]os.Signal{syscall.SIGTERM, syscall.SIGINT}, stopSignals...)...)
	defer signal.Stop(signals)
	if err := srv.Start(g.Middleware(handler)); err != nil {
		return fmt.Errorf("automutex: Run: the server did not start: %w", err)
	}
	for isStop(<-signals) {
		srv.Stop()
	}
	return g.closeBeside(srv.Shutdown)
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

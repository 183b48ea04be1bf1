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
// process gets SIGTERM or SIGINT. Then it closes the Guard beside srv.Shutdown:
// tasks in line return to asynq at once, and running handlers keep their locks
// until they return. On Unix SIGTSTP has the server take no new tasks and go on,
// as with srv.Run.
//
// srv is a server made with [Guard.ServerConfig] that was not started. handler is
// a mux without mux.Use(guard.Middleware), which Run makes superfluous (with it,
// the second Middleware passes tasks through).
//
// The error is that of srv.Start, and then the Guard is not closed; or that of
// [Guard.Close], when handlers still ran at the end of the ShutdownTimeout.
func (g *Guard) Run(srv *asynq.Server, handler asynq.Handler) error {
	switch {
	case srv == nil:
		return errors.New("automutex: Run: the asynq.Server is nil: make it with asynq.NewServer and Guard.ServerConfig")
	case handler == nil:
		return errors.New("automutex: Run: the handler is nil: pass the mux")
	}
	// Before Start, or a signal in between would end the process. One is kept
	// while nobody receives; further ones change nothing.
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
	closed := make(chan error, 1) // Close ends: ctx does
	go func() { closed <- g.Close(ctx) }()
	shutdown()
	cancel(errShutdownTimeout)
	return <-closed
}

// isStop tells whether a signal only stops the server from taking tasks.
func isStop(s os.Signal) bool {
	for _, stop := range stopSignals {
		if s == stop {
			return true
		}
	}
	return false
}

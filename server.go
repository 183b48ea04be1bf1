package automutex

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
)

// server marks the contexts of one asynq server that was configured through
// ServerConfig.
type server struct {
	guard   *Guard
	workers *workers

	guarded  atomic.Bool // a task of it came to the Middleware
	checking atomic.Bool // checkGuarded is due, or was called
}

// serverKey finds the mark of one Guard; stacked guards each leave their own.
type serverKey struct{ guard *Guard }

// ServerConfig adapts an asynq configuration so that tasks which the Guard
// hands back keep their attempts: they count as no failure, come back after the
// Guard's own delay, and are kept from the ErrorHandler, as are tasks that were
// replaced. IsFailure, RetryDelayFunc, ErrorHandler and BaseContext of cfg go on
// working for all other errors; asynq's defaults stand in where they are nil.
//
// Call it once for each server: the policy Park counts the server's workers by
// it, and takes Concurrency for their number. With several guards:
// g1.ServerConfig(g2.ServerConfig(cfg)).
func (g *Guard) ServerConfig(cfg asynq.Config) asynq.Config {
	concurrency := cfg.Concurrency
	if concurrency < 1 {
		concurrency = runtime.NumCPU() // as asynq has it
	}
	mark := &server{guard: g, workers: newWorkers(concurrency)}

	isFailure := cfg.IsFailure
	cfg.IsFailure = func(err error) bool {
		switch {
		case g.handedBack(err) != nil, g.revokes(err):
			return false
		case isFailure != nil:
			return isFailure(err)
		}
		return err != nil
	}

	retryDelay := cfg.RetryDelayFunc
	if retryDelay == nil {
		retryDelay = asynq.DefaultRetryDelayFunc
	}
	cfg.RetryDelayFunc = func(n int, err error, t *asynq.Task) time.Duration {
		if h := g.handedBack(err); h != nil {
			return h.delay
		}
		return retryDelay(n, err, t)
	}

	if errorHandler := cfg.ErrorHandler; errorHandler != nil {
		cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, t *asynq.Task, err error) {
			if g.handedBack(err) == nil && !g.revokes(err) {
				errorHandler.HandleError(ctx, t, err)
			}
		})
	}

	baseContext := cfg.BaseContext
	if baseContext == nil {
		baseContext = context.Background
	}
	cfg.BaseContext = func() context.Context {
		return context.WithValue(baseContext(), serverKey{g}, mark.newTask())
	}
	return cfg
}

// handedBack is the Guard's own disposition in err, or nil.
func (g *Guard) handedBack(err error) *handBack {
	var h *handBack
	for errors.As(err, &h) {
		if h.guard == g {
			return h
		}
		err = h.err
	}
	return nil
}

// serverOf is the server of ctx, nil when that was not configured through
// ServerConfig.
func (g *Guard) serverOf(ctx context.Context) *server {
	if m, _ := ctx.Value(serverKey{g}).(*taskMark); m != nil {
		return m.server
	}
	return nil
}

package automutex

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"
)

// server marks the contexts of one asynq server that was configured through
// ServerConfig.
type server struct{ guard *Guard }

// serverKey finds the mark of one Guard; stacked guards each leave their own.
type serverKey struct{ guard *Guard }

// ServerConfig adapts an asynq configuration so that tasks which the Guard
// hands back keep their attempts: they count as no failure, come back after the
// Guard's own delay, and are kept from the ErrorHandler, as are tasks that were
// replaced. IsFailure, RetryDelayFunc, ErrorHandler and BaseContext of cfg go on
// working for all other errors; asynq's defaults stand in where they are nil.
//
// Call it once for each server. With several guards:
// g1.ServerConfig(g2.ServerConfig(cfg)).
func (g *Guard) ServerConfig(cfg asynq.Config) asynq.Config {
	mark := &server{guard: g}

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
		return context.WithValue(baseContext(), serverKey{g}, mark)
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

// marked tells whether the server of ctx was configured through ServerConfig.
func (g *Guard) marked(ctx context.Context) bool {
	return ctx.Value(serverKey{g}) != nil
}

package automutex

import (
	"context"
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

// serverOf is the server of ctx, nil when that was not configured through
// ServerConfig.
func (g *Guard) serverOf(ctx context.Context) *server {
	if m, _ := ctx.Value(serverKey{g}).(*taskMark); m != nil {
		return m.server
	}
	return nil
}

// taskMark marks the context of one task of a server, which asynq asks BaseContext
// for: before the handler is called, once for each task.
type taskMark struct {
	server *server
	inside atomic.Int32 // how many calls of this Guard's Middleware it is in
}

// newTask makes the mark of the next task. With the first one a check is due of
// whether the Middleware is there at all: without it everything would run
// unguarded, and nothing would tell. The timer ends by itself, and after Close it does
// nothing: no log line comes from a Guard that is closed.
func (s *server) newTask() *taskMark {
	if !s.guarded.Load() && s.checking.CompareAndSwap(false, true) {
		time.AfterFunc(guardedWithin, s.checkGuarded)
	}
	return &taskMark{server: s}
}

// guardedWithin is how long after a server took its first task that task has
// reached the Middleware, if there is any. asynq starts the handler right after it
// made the task's context, so this is only time for a machine that is busy.
const guardedWithin = time.Second

// checkGuarded warns of a server whose tasks do not pass the Middleware. A program
// that wraps only some of its handlers, by calling Middleware itself, is not warned:
// the first task may be one for another handler, and BaseContext does not see its
// type.
func (s *server) checkGuarded() {
	if s.guarded.Load() || s.guard.wrapped.Load() || !s.guard.enter() {
		return
	}
	defer s.guard.leave() // Close waits for the log line
	s.guard.warnOnce("no Middleware", "tasks run UNGUARDED: the asynq server was made with Guard.ServerConfig, but its handler does not pass Guard.Middleware; "+
		"start the server with guard.Run(srv, mux), or call mux.Use(guard.Middleware) before srv.Start or srv.Run")
}

// enterTask notes that a task is in the Middleware, and takes a worker: once,
// however often its handlers are wrapped. The returned function undoes that.
func (g *Guard) enterTask(ctx context.Context) (leave func()) {
	m, _ := ctx.Value(serverKey{g}).(*taskMark)
	if m == nil {
		return func() {}
	}
	m.server.guarded.Store(true)
	if !g.rules.parks {
		return func() {}
	}
	if m.inside.Add(1) == 1 {
		m.server.workers.enter()
	}
	return func() {
		if m.inside.Add(-1) == 0 {
			m.server.workers.leave()
		}
	}
}

// passedKey finds the task that a Guard's Middleware around this one runs.
type passedKey struct{ guard *Guard }

// passed tells whether ctx is that of a handler which the Guard runs for this very
// task: installed twice, its Middleware has nothing left to do.
func (g *Guard) passed(ctx context.Context, t *asynq.Task) bool {
	outer, _ := ctx.Value(passedKey{g}).(*asynq.Task)
	return outer == t && t != nil
}

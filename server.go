package automutex

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
)

// server marks the contexts of one asynq server that was configured through
// ServerConfig.
type server struct {
	guard   *Guard
	workers *workers

	guarded  atomic.Bool // a task of the server has come to the Middleware
	checking atomic.Bool // checkGuarded is due, or was called

	mu     sync.Mutex                    // guards inside; held for moments
	inside map[*taskMark]context.Context // the tasks in the Middleware, under Park; see noteInside
}

// serverKey finds the taskMark of one Guard. Of several guards, each has its own.
type serverKey struct{ guard *Guard }

// ServerConfig returns cfg with functions that make asynq understand the Guard's errors. A
// task that the Guard returns to asynq keeps its attempt: asynq does not count it as a
// failure, runs it again after the Guard's delay, and does not call the ErrorHandler.
// asynq does not call the ErrorHandler for replaced tasks either. For all other errors the
// IsFailure, RetryDelayFunc and ErrorHandler of cfg are called; nil means asynq's
// defaults. BaseContext of cfg is called for each task.
//
// Call ServerConfig once for each server: the policy Park counts the busy workers of
// each, out of cfg.Concurrency. With several guards, nest the calls:
// g1.ServerConfig(g2.ServerConfig(cfg)).
func (g *Guard) ServerConfig(cfg asynq.Config) asynq.Config {
	concurrency := cfg.Concurrency
	if concurrency < 1 {
		concurrency = runtime.NumCPU() // as asynq has it
	}
	g.configured.Store(true)
	mark := &server{guard: g, workers: newWorkers(concurrency), inside: make(map[*taskMark]context.Context)}
	if g.rules.parks {
		interval := cfg.TaskCheckInterval
		if interval <= 0 {
			interval = time.Second // as asynq has it
		}
		inner.ArriveWithin(g.locker, 2*interval) // asynq adds up to a half as jitter
	}

	isFailure := cfg.IsFailure
	cfg.IsFailure = func(err error) bool {
		switch {
		case g.findReturned(err) != nil, g.isRevoked(err), wantsRetryAfter(err) != nil:
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
		if h := g.findReturned(err); h != nil {
			return h.delay
		}
		if r := wantsRetryAfter(err); r != nil {
			return notBefore(r.delay)
		}
		delay := capRedelivery(retryDelay(n, err, t), err, t)
		if isCutLast(n, err, t) && (isFailure == nil || isFailure(err)) { // else asynq spends no attempt, and the next delivery is not refused
			return min(delay, redeliveryDelay)
		}
		return delay
	}

	if errorHandler := cfg.ErrorHandler; errorHandler != nil {
		cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, t *asynq.Task, err error) {
			if g.findReturned(err) == nil && !g.isRevoked(err) && wantsRetryAfter(err) == nil {
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

// serverOf returns the server of ctx and the number of its task; nil and 0 when the server was
// made without ServerConfig.
func (g *Guard) serverOf(ctx context.Context) (s *server, number int64) {
	if m, _ := ctx.Value(serverKey{g}).(*taskMark); m != nil {
		return m.server, m.number
	}
	return nil, 0
}

// taskMark marks the context of one task. asynq calls BaseContext once for each task,
// before it calls the handler.
type taskMark struct {
	server *server
	number int64        // of the task, in the order in which the server started them; 0: not counted
	began  atomic.Bool  // the task has come to the Middleware
	nested atomic.Int32 // calls of this Guard's Middleware that the task is in
}

// newTask makes the mark of the next task. The first one starts a timer that checks
// whether the Middleware is installed: without it all tasks would run unguarded, and
// nothing would say so. The timer fires once. After Close it does nothing, so that a
// closed Guard logs nothing.
func (s *server) newTask() *taskMark {
	if !s.guarded.Load() && s.checking.CompareAndSwap(false, true) {
		time.AfterFunc(guardedWithin, s.checkGuarded)
	}
	mark := &taskMark{server: s}
	if s.guard.rules.parks {
		mark.number = s.workers.taskStarted()
	}
	return mark
}

// guardedWithin is how long a server's first task has to reach the Middleware. asynq
// starts the handler right after it made the task's context, so only a busy machine
// needs this time.
const guardedWithin = time.Second

// checkGuarded warns of a server whose tasks do not pass the Middleware. It does not
// warn a program that wraps only some of its handlers by calling Middleware itself: the
// first task may be for another handler, and BaseContext does not get its type.
func (s *server) checkGuarded() {
	if s.guarded.Load() || s.guard.middlewareUsed.Load() || !s.guard.enter() {
		return
	}
	defer s.guard.leave() // Close waits for the log line
	s.guard.warnOnce("no Middleware", "tasks run UNGUARDED, without their locks: the asynq server was made with Guard.ServerConfig, but its handler is not wrapped in Guard.Middleware; "+
		"start the server with guard.Run(srv, mux), or call mux.Use(guard.Middleware) before srv.Start or srv.Run")
}

// enterTask counts a task's worker as busy until the returned function is called. It
// counts the task once, however often its handler is wrapped.
func (g *Guard) enterTask(ctx context.Context) (leave func()) {
	m, _ := ctx.Value(serverKey{g}).(*taskMark)
	if m == nil {
		return func() {}
	}
	m.server.guarded.Store(true)
	if !g.rules.parks {
		return func() {}
	}
	if m.nested.Add(1) == 1 {
		if m.began.Swap(true) {
			m.server.workers.taskStarted() // once more: newTask has counted the first time
		}
		m.server.noteInside(ctx, m)
	}
	return func() {
		if m.nested.Add(-1) == 0 {
			m.server.workers.taskEnded()
			m.server.mu.Lock()
			defer m.server.mu.Unlock()
			delete(m.server.inside, m)
		}
	}
}

// noteInside notes that a task is in the Middleware, and warns if more tasks are than the server has
// workers: then several servers were made from one Config. A task whose context has ended does not
// count, since asynq gives its worker another one while the handler still runs.
func (s *server) noteInside(ctx context.Context, m *taskMark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside[m] = ctx
	if int64(len(s.inside)) <= s.workers.limit {
		return
	}
	n := int64(0)
	for _, ctx := range s.inside {
		if ctx.Err() == nil {
			n++
		}
	}
	if n > s.workers.limit {
		s.guard.warnOnce("one ServerConfig", "more tasks run than one server has workers, so several servers were made from what one call of Guard.ServerConfig returned: "+
			"under Park, tasks may wait in workers that others need; call ServerConfig once for each server", "workers", s.workers.limit)
	}
}

// guardedTaskKey finds the task that an outer Middleware of the same Guard runs.
type guardedTaskKey struct{ guard *Guard }

// alreadyGuarded reports whether an outer Middleware of the same Guard runs this task.
// A Middleware that is installed twice has nothing left to do.
func (g *Guard) alreadyGuarded(ctx context.Context, t *asynq.Task) bool {
	outer, _ := ctx.Value(guardedTaskKey{g}).(*asynq.Task)
	return outer == t && t != nil
}

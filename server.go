package automutex

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine/workers"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/lock"
)

type server struct {
	guard   *Guard
	workers workers.Server
	lenders sync.Map // by scope: *workers.Lender

	lasts           atomic.Int64 // waits on a last attempt
	first, returned sync.Once    // task, and task that went back to asynq

	// asynq has called ErrorHandler, IsFailure and RetryDelayFunc for one that went back
	handled, failureAsked, delayAsked atomic.Bool

	cut stamp.Cuts
}

// serverKey finds, in a context, the worker of one Guard.
type serverKey struct{ guard *Guard }

// ServerConfig returns cfg with functions that make asynq understand the Guard's errors: a task that the Guard returns
// keeps its attempt, runs again after the Guard's delay, and is not given to the ErrorHandler, nor is a replaced one.
// For all other errors the IsFailure, RetryDelayFunc and ErrorHandler of cfg are called; nil means asynq's defaults.
// BaseContext of cfg is called for each task. Set these four in cfg, and not in the result, where they would replace
// the Guard's.
//
// Call ServerConfig once for each server: it counts the busy workers of each, out of cfg.Concurrency. With several
// guards, nest the calls: g1.ServerConfig(g2.ServerConfig(cfg)).
func (g *Guard) ServerConfig(cfg asynq.Config) asynq.Config {
	concurrency := cfg.Concurrency
	if concurrency < 1 {
		concurrency = runtime.NumCPU() // as asynq has it
	}
	interval := cfg.TaskCheckInterval
	if interval <= 0 {
		interval = time.Second // as asynq has it
	}
	// With an empty queue asynq pauses for between a half and three halves of the interval.
	s := &server{guard: g, workers: workers.Server{
		Limit: concurrency, Gap: min(workers.FullAfter, interval/2), Usual: interval, Check: g.engine.CheckSoon,
	}}
	g.warnLeaveIdle(concurrency)
	if g.rules.parks {
		g.engine.ArriveWithin(2 * interval)
	}

	isFailure := cfg.IsFailure
	cfg.IsFailure = func(err error) bool {
		switch v := g.verdictIn(err); {
		case v != nil && v.kind == goesBack:
			s.failureAsked.Store(true)
			return false
		case wantsRetryAfter(err) != nil:
			return false
		case s.cut.Take(err):
			return true
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
		if v := g.verdictIn(err); v != nil && v.kind == goesBack {
			s.delayAsked.Store(true)
			return v.delay
		}
		if r := wantsRetryAfter(err); r != nil {
			return decide.Delay(decide.AsAsked, r.delay)
		}
		if errors.Is(err, asynq.ErrLeaseExpired) { // asynq asks IsFailure next
			s.cut.Add(g.rules.match(t.Type()) != nil && stamp.IsLast(t, n), err)
		}
		return stamp.CapRedelivery(retryDelay(n, err, t), n, err, t)
	}
	cfg.ErrorHandler = s.errorHandler(cfg.ErrorHandler)
	baseContext := cfg.BaseContext
	if baseContext == nil {
		baseContext = context.Background
	}
	cfg.BaseContext = func() context.Context { return s.newTask(baseContext()) }
	return cfg
}

func (g *Guard) warnLeaveIdle(concurrency int) {
	for _, rule := range g.rules.rules {
		if rule.LeaveIdle >= concurrency {
			g.log.Warn("automutex: a rule leaves as many workers idle as the server has: none of its tasks starts above "+
				"the Limit there", "rule", rule.Name, "LeaveIdle", rule.LeaveIdle, "concurrency", concurrency)
		}
	}
}

func (s *server) errorHandler(theirs asynq.ErrorHandler) asynq.ErrorHandler {
	return asynq.ErrorHandlerFunc(func(ctx context.Context, t *asynq.Task, err error) {
		v := s.guard.verdictIn(err)
		if v != nil && v.kind == goesBack {
			s.handled.Store(true)
		}
		f := s.guard.factsOf(ctx, t)
		last := f.isLast()
		if !errors.Is(err, asynq.ErrLeaseExpired) { // of which asynq stores nothing before it is found to be lost
			s.cut.Add(f.rules != nil && last && !f.last, err)
		}
		if theirs != nil && (v == nil || v.kind == archived) && wantsRetryAfter(err) == nil {
			theirs.HandleError(context.WithValue(ctx, lastAttemptKey{}, last), t, err)
		}
	})
}

func (s *server) lender(scope string, leave int) *workers.Lender {
	known, ok := s.lenders.Load(scope)
	if !ok {
		known, _ = s.lenders.LoadOrStore(scope, &workers.Lender{Server: &s.workers, Scope: scope, Idle: leave})
	}
	lender, _ := known.(*workers.Lender)
	return lender
}

// sawReturned starts the time of checkFunctions with the first task that goes back to asynq.
func (s *server) sawReturned() {
	s.returned.Do(func() { s.guard.after(time.Second, s.checkFunctions) })
}

// checkFunctions warns if asynq has not called all of the Guard's functions for it: the program has put others in their
// place.
func (s *server) checkFunctions() {
	if !s.handled.Load() || !s.failureAsked.Load() || !s.delayAsked.Load() {
		s.guard.warnOnce("functions", "IsFailure, RetryDelayFunc or ErrorHandler was set on the asynq.Config that "+
			"Guard.ServerConfig returned: tasks that go back spend attempts, "+
			"come back at other times, or are handled as errors; set them in the asynq.Config that is given to ServerConfig")
	}
}

// worker is what a task's context has of the worker that runs the task.
type worker struct {
	context.Context
	server *server
	inside atomic.Bool // the task is in the Middleware
	works  atomic.Bool // its handler runs, or it waits for as long as it likes
}

func (w *worker) worksNow() {
	if w.inside.Load() && w.works.CompareAndSwap(false, true) {
		w.server.workers.Works()
	}
}

// The first newTask starts a timer that checks whether the Middleware is installed.
func (s *server) newTask(base context.Context) *worker {
	s.first.Do(func() {
		s.guard.after(time.Second, s.checkGuarded)
		s.guard.after(time.Minute, s.guard.checkMet)
	})
	return &worker{Context: base, server: s}
}

func (w *worker) Value(key any) any {
	if key == (serverKey{w.server.guard}) {
		return w
	}
	return w.Context.Value(key)
}

// after checks a server's set-up when its first task has had time to pass through. After Close it does not; Close waits
// for the log line.
func (g *Guard) after(d time.Duration, check func()) {
	time.AfterFunc(d, func() { g.life.Spawn(check) })
}

// checkGuarded warns of a server whose tasks do not pass the Middleware.
func (s *server) checkGuarded() {
	if s.guard.middlewareUsed.Load() {
		return
	}
	s.guard.warnOnce("no Middleware", "tasks run UNGUARDED, without their locks: the asynq server was made with "+
		"Guard.ServerConfig, but its handler is not wrapped in Guard.Middleware; "+
		"start the server with guard.Run(srv, mux), or call mux.Use(guard.Middleware) before it starts")
}

// enterTask counts a task's worker as busy until its leave; nil: it is counted already, or nobody's.
func (g *Guard) enterTask(ctx context.Context) *worker {
	w, _ := ctx.Value(serverKey{g}).(*worker)
	if w == nil || !w.inside.CompareAndSwap(false, true) {
		return nil
	}
	w.server.workers.Started()
	return w
}

func (w *worker) leave() {
	if w != nil && w.inside.CompareAndSwap(true, false) {
		w.server.workers.Ended(w.works.Swap(false))
	}
}

var errShutdownTimeout = errors.New("the server's ShutdownTimeout is over")

// Run starts srv, which was made with [Guard.ServerConfig], with handler, usually an asynq.ServeMux, wrapped in
// [Guard.Middleware]. It blocks until the process gets SIGTERM or SIGINT. Then it calls srv.Shutdown and [Guard.Close]
// at the same time. On Unix, SIGTSTP stops the server from taking new tasks, as with srv.Run.
//
// If srv does not start, Run returns the error of srv.Start and leaves the Guard open; otherwise that of Close: not nil
// if handlers still ran at the end of the ShutdownTimeout.
func (g *Guard) Run(srv *asynq.Server, handler asynq.Handler) error {
	return g.RunContext(context.Background(), srv, handler)
}

// RunContext is [Guard.Run] that also ends when ctx ends. If ctx has ended before, it does not start srv, and returns
// the cause of ctx; after [Guard.Close] it returns [ErrClosed].
func (g *Guard) RunContext(ctx context.Context, srv *asynq.Server, handler asynq.Handler) error {
	switch {
	case srv == nil:
		return errors.New("automutex: Run: the asynq.Server is nil: make it with asynq.NewServer and Guard.ServerConfig")
	case handler == nil:
		return errors.New("automutex: Run: the handler is nil: pass the mux")
	case ctx.Err() != nil:
		return fmt.Errorf("automutex: Run: the server was not started: %w", context.Cause(ctx))
	case g.life.Closing.Err() != nil:
		return ErrClosed
	}
	// Notify before Start: a signal in between would end the process. The channel keeps one signal until the loop below
	// receives it.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, append([]os.Signal{syscall.SIGTERM, syscall.SIGINT}, inside.StopSignals...)...)
	defer signal.Stop(signals)
	if err := srv.Start(g.Middleware(handler)); err != nil {
		return fmt.Errorf("automutex: Run: the server did not start: %w", err)
	}
	for {
		select {
		case s := <-signals:
			if slices.Contains(inside.StopSignals, s) {
				srv.Stop()
				continue
			}
		case <-ctx.Done():
		}
		return g.closeBeside(srv.Shutdown)
	}
}

func (g *Guard) closeBeside(shutdown func()) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	closed := make(chan error, 1) // Close ends soon after ctx
	go func() { closed <- g.Close(ctx) }()
	shutdown()
	cancel(errShutdownTimeout)
	return <-closed
}

// LeadScheduler runs an asynq Scheduler in one process at a time, of all that call it with the same name, so that
// replicas enqueue each tick once. It blocks until ctx ends, and then returns nil.
//
// newScheduler returns a new *asynq.Scheduler with its tasks registered, or an *asynq.PeriodicTaskManager.
// LeadScheduler calls it once for each term, from the Scheduler's Start to its Shutdown: [lock.Locker.Leader] says who
// leads. It returns an error of newScheduler, or of the start, at once.
//
// A process that shuts down is replaced at once, one that dies after the locker's TTL: ticks due in between are not
// enqueued. One that was stopped for longer may enqueue a tick more: see [Rule].Cooldown and [Skip].
//
// Register tasks with times of the clock ("*/10 * * * *"): a period ("@every 10m") begins anew with each term. Close
// locker after LeadScheduler has returned.
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
			return fmt.Errorf("the Scheduler cannot be made: %w", err)
		case scheduler == none:
			return errors.New("the function returned no Scheduler and no error")
		}
		if err := scheduler.Start(); err != nil {
			return fmt.Errorf("the Scheduler does not start; return a new one for each call: %w", err)
		}
		// Shutdown waits for the scheduler's goroutines: they end before the lease is released.
		defer scheduler.Shutdown()
		<-term.Done()
		return nil
	})
	if err == nil || ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return fmt.Errorf("automutex: LeadScheduler %q: %w", name, err)
}

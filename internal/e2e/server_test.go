package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/unique"
)

// theirs are a user's own four functions, and what they were called with.
type theirs struct {
	mu      sync.Mutex
	failure []error // IsFailure
	delay   []error // RetryDelayFunc
	handled []error // ErrorHandler
}

type theirKey struct{}

var (
	errPlain    = errors.New("plain")
	errHarmless = errors.New("harmless") // no failure, says their IsFailure
)

func (u *theirs) install(c *asynq.Config) {
	note := func(list *[]error, err error) {
		u.mu.Lock()
		defer u.mu.Unlock()
		*list = append(*list, err)
	}
	c.IsFailure = func(err error) bool {
		note(&u.failure, err)
		return err != nil && !errors.Is(err, errHarmless)
	}
	c.RetryDelayFunc = func(_ int, err error, _ *asynq.Task) time.Duration {
		note(&u.delay, err)
		return 2 * time.Hour
	}
	c.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, _ *asynq.Task, err error) {
		if ctx.Value(theirKey{}) != "base" {
			err = errors.New("not their context")
		}
		note(&u.handled, err)
	})
	c.BaseContext = func() context.Context { return context.WithValue(context.Background(), theirKey{}, "base") }
}

// told checks how often each of the four has been called, and starts anew.
func (u *theirs) told(t *testing.T, what string, failure, delay, handled int, err error) {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.failure) != failure || len(u.delay) != delay || len(u.handled) != handled {
		t.Errorf("%s: IsFailure %v, RetryDelayFunc %v, ErrorHandler %v; want %d, %d, %d", what, u.failure, u.delay, u.handled,
			failure, delay, handled)
	}
	for _, list := range [][]error{u.failure, u.delay, u.handled} {
		for _, got := range list {
			if !errors.Is(got, err) {
				t.Errorf("%s: told %v, want %v", what, got, err)
			}
		}
	}
	u.failure, u.delay, u.handled = nil, nil, nil
}

func TestServer_composes(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		u := &theirs{}
		r := start(t, s, setup{
			rules: []automutex.Rule{
				{Task: "retry", Busy: automutex.Retry}, {Task: "archive", Busy: automutex.Archive},
				{Task: "fail", Busy: automutex.Fail},
				{Task: "keyed", On: onID, Busy: automutex.Retry}, {Task: "free", Scope: "free", Busy: automutex.Retry},
			},
			served: u.install,
		})
		runs := func(taskType string, err error) string {
			id := r.enqueue(taskType, nil)
			run := r.next()
			if run.ctx.Value(theirKey{}) != "base" {
				t.Error("the handler has not their context")
			}
			run.returns(err)
			return id
		}
		for _, taskType := range []string{"free", "no rule"} {
			if until := time.Until(r.awaitRetried(runs(taskType, errPlain), 1).NextProcessAt); until < time.Hour {
				t.Errorf("%s: it comes back in %s, their RetryDelayFunc says 2 h", taskType, until)
			}
			u.told(t, taskType, 1, 1, 1, errPlain)
			r.awaitRetried(runs(taskType, errHarmless), 0)
			u.told(t, taskType, 1, 1, 1, errHarmless)
			r.awaitDone(runs(taskType, nil))
			u.told(t, taskType, 0, 0, 0, nil)
		}

		r.take("retry")
		r.take("archive")
		r.take("fail")
		if until := time.Until(r.awaitRetried(r.enqueue("retry", nil), 0).NextProcessAt); until > 5*time.Second {
			t.Errorf("it comes back in %s", until)
		}
		u.told(t, "retry", 0, 0, 0, nil)
		r.awaitArchived(r.enqueue("archive", nil))
		u.told(t, "archive", 0, 0, 1, automutex.ErrBusy)
		r.awaitRetried(r.enqueue("fail", nil), 1)
		u.told(t, "fail", 1, 1, 1, automutex.ErrBusy)
		r.awaitArchived(r.enqueue("keyed", nil))
		u.told(t, "keyed", 0, 0, 1, asynq.SkipRetry)
		r.await(r.enqueue("fail", nil, asynq.MaxRetry(0)), asynq.TaskStateArchived)
		u.told(t, "last attempt", 0, 0, 1, automutex.ErrBusy)
	})
}

// ServerConfig leaves everything else alone.
func TestServer_keepsTheRest(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), &redistest.Log{}, &events{},
		automutex.Rule{Task: "work", Busy: automutex.Retry})
	got := guard.ServerConfig(asynq.Config{Concurrency: 7, Queues: map[string]int{"q": 1}, StrictPriority: true,
		ShutdownTimeout: time.Hour})
	if got.Concurrency != 7 || got.Queues["q"] != 1 || !got.StrictPriority || got.ShutdownTimeout != time.Hour {
		t.Errorf("got %+v", got)
	}
	got.ErrorHandler.HandleError(t.Context(), asynq.NewTask("work", nil), errPlain) // nobody's
	if !got.IsFailure(errPlain) || got.IsFailure(nil) {
		t.Error("not asynq's default IsFailure")
	}
}

// Two servers in one process, one of them without ServerConfig: there, and only there, a hand-back costs an attempt. It
// is said once.
func TestServer_withoutServerConfig(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{{Busy: automutex.Retry}}}, func(t *testing.T, r *rig) {
		warned := func() int { return strings.Count(r.log.Text(-100), "without Guard.ServerConfig") }
		other := redistest.Name(t)
		plain := asynq.NewServerFromRedisClient(r.rdb, asynq.Config{
			Queues: map[string]int{other: 1}, TaskCheckInterval: redistest.CheckEvery, Logger: redistest.Silent{},
		})
		redistest.Must(t, plain.Start(r.guard.Middleware(r.stage)))
		t.Cleanup(plain.Shutdown)
		lease := r.take("work")
		r.awaitRetried(r.enqueue("work", nil), 0)
		r.queue = other // from here on all goes to the plain server
		r.finish(r.enqueue("play", nil))
		if warned() > 0 {
			t.Error("warned of a server that has it, or of a task without a rule")
		}
		for range 3 {
			r.awaitRetried(r.enqueue("work", nil), 1)
		}
		// No attempts left: it waits in the worker all the same.
		id := r.enqueue("work", nil, asynq.MaxRetry(0))
		r.awaitLine(1, "work")
		r.free(lease)
		r.finish(id)
		if n := warned(); n != 1 {
			t.Errorf("warned %d times: %s", n, r.log.Text(0))
		}
	})
}

// Without ServerConfig, and where BaseContext was set on what it returned, there is a warning for RetryAfter of a task
// without a rule, too, and no EventRetried says that the attempt is not spent.
func TestServer_withoutTheGuardsContext(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t), setup{
		plain: true, rules: []automutex.Rule{{Busy: automutex.Retry}},
		handler: func(context.Context, *asynq.Task) error { return automutex.RetryAfter(0, errUpstream) },
	})
	r.await(r.enqueue("free", nil), asynq.TaskStateRetry)
	lease := r.take("work")
	r.awaitRetried(r.enqueue("work", nil), 1)
	r.free(lease)
	if n := len(r.seen.list(automutex.EventRetried)); n > 0 {
		t.Errorf("%d EventRetried", n)
	}
	if text := r.log.Text(slog.LevelWarn); strings.Count(text, "BaseContext was set") != 1 {
		t.Errorf("the log says %q", text)
	}
}

// RunContext ends when its context ends, and starts nothing if it has ended before.
func TestRunContext(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	g, err := automutex.New(s.Client(t), automutex.Config{Prefix: redistest.Name(t),
		Rules: []automutex.Rule{{Task: "work"}}})
	redistest.Must(t, err)
	srv := asynq.NewServerFromRedisClient(s.Client(t), g.ServerConfig(asynq.Config{Concurrency: 1,
		Logger: redistest.Silent{}, Queues: map[string]int{redistest.Name(t): 1}}))
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
	stopped := errors.New("stopped")
	ended, end := context.WithCancelCause(t.Context())
	end(stopped)
	if err := g.RunContext(ended, srv, handler); !errors.Is(err, stopped) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- g.RunContext(ctx, srv, handler) }()
	cancel()
	select {
	case err := <-result:
		if err != nil && !errors.Is(err, context.Canceled) { // it may end before it has started
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("RunContext does not return")
	}
	_ = g.Close(t.Context())
}

// runEnv makes this test binary a worker that runs under Guard.Run, see runMain.
const runEnv = "AUTOMUTEX_TEST_RUN"

// runShutdown is the ShutdownTimeout of that worker: what a task in line would take
// if the Guard was not closed.
const runShutdown = 20 * time.Second

// runMain serves the queue, under the prefix, on the Redis of the variable's value, "<redis address> <queue> <prefix>
// <use>".
func runMain() {
	words := strings.Fields(os.Getenv(runEnv))
	rdb := redis.NewClient(&redis.Options{Addr: words[0]})
	guard, err := automutex.New(rdb, automutex.Config{Prefix: words[2],
		Rules: []automutex.Rule{{Task: "work", Wait: time.Minute}}})
	if err != nil {
		panic(err)
	}
	mux := asynq.NewServeMux()
	if words[3] == "use" {
		mux.Use(guard.Middleware)
	}
	mux.HandleFunc("work", func(ctx context.Context, _ *asynq.Task) error {
		if _, ok := automutex.Lease(ctx); !ok {
			return errors.New("unguarded")
		}
		return nil
	})
	mux.HandleFunc("other", func(context.Context, *asynq.Task) error { return nil })
	srv := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{
		Concurrency: 4, Queues: map[string]int{words[1]: 1}, TaskCheckInterval: redistest.CheckEvery,
		ShutdownTimeout: runShutdown, Logger: redistest.Silent{},
	}))
	if err := guard.Run(srv, mux); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// watch has the rig take keys of another prefix from outside.
func (r *rig) watch(s *redistest.Server, prefix string) {
	redistest.Must(r.t, r.others.Close())
	r.others = lock.New(s.Client(r.t), lock.Options{Prefix: prefix, Owner: "somebody-else"})
}

// A signal ends a worker at once although a task stands in line, which goes back
// with its attempt not spent.
func TestRun_signals(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	for _, sig := range []string{"TERM", "INT"} {
		for _, use := range []string{"use", "leave"} {
			t.Run(sig+" "+use, func(t *testing.T) {
				t.Parallel()
				r := start(t, s, setup{}) // enqueues and inspects; it serves a queue of its own
				r.queue = redistest.Name(t)
				prefix := redistest.Name(t)
				r.watch(s, prefix)
				child := redistest.StartChild(t, runEnv+"="+strings.Join([]string{s.Addr(), r.queue, prefix, use}, " "))
				r.awaitDone(r.enqueue("work", nil))
				held := r.take("work")
				id := r.enqueue("work", nil)
				r.awaitLine(1, "work")
				began := time.Now()
				signalChild(t, child.PID(), sig)
				child.End(t, patience)
				if took := time.Since(began); took > runShutdown/2 {
					t.Errorf("it took %s", took)
				}
				r.awaitRetried(id, 0)
				r.free(held)
			})
		}
	}
}

// SIGTSTP stops the pulling of tasks; what runs goes on, and SIGTERM ends it.
func TestRun_stopsPulling(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	r := start(t, s, setup{})
	r.queue = redistest.Name(t)
	prefix := redistest.Name(t)
	r.watch(s, prefix)
	child := redistest.StartChild(t, runEnv+"="+strings.Join([]string{s.Addr(), r.queue, prefix, "leave"}, " "))
	held := r.take("work")
	waits := r.enqueue("work", nil)
	r.awaitLine(1, "work")
	signalChild(t, child.PID(), "TSTP")
	var left string
	eventually(t, func() bool {
		left = r.enqueue("other", nil)
		deadline := time.Now().Add(300 * time.Millisecond) // 30 looks of a server that pulls
		for time.Now().Before(deadline) {
			if info, err := r.inspector.GetTaskInfo(r.queue, left); err != nil || info.State != asynq.TaskStatePending {
				return false
			}
			<-time.After(10 * time.Millisecond)
		}
		return true
	}, "it takes no new tasks")
	r.free(held)
	r.awaitDone(waits) // what it had goes on
	signalChild(t, child.PID(), "TERM")
	child.End(t, patience)
	r.await(left, asynq.TaskStatePending)
}

func TestRun_refuses(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	guard := newGuard(t, s, &redistest.Log{}, &events{}, automutex.Rule{Task: "work", Busy: automutex.Retry})
	srv := asynq.NewServerFromRedisClient(s.Client(t), guard.ServerConfig(asynq.Config{Logger: redistest.Silent{}}))
	if err := guard.Run(nil, asynq.NewServeMux()); err == nil || !strings.Contains(err.Error(), "asynq.Server is nil") {
		t.Errorf("got %v", err)
	}
	if err := guard.Run(srv, nil); err == nil || !strings.Contains(err.Error(), "handler is nil") {
		t.Errorf("got %v", err)
	}
	redistest.Must(t, srv.Start(guard.Middleware(asynq.NewServeMux())))
	defer srv.Shutdown()
	if err := guard.Run(srv, asynq.NewServeMux()); err == nil || !strings.Contains(err.Error(), "did not start") {
		t.Errorf("got %v", err)
	}
	redistest.Must(t, guard.Close(t.Context()))
	if err := guard.Run(srv, asynq.NewServeMux()); !errors.Is(err, automutex.ErrClosed) {
		t.Errorf("of a closed Guard: %v", err)
	}
}

func TestServerConfig_withoutMiddleware(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{
			rules:   []automutex.Rule{{Busy: automutex.Retry}},
			handler: func(context.Context, *asynq.Task) error { return nil },
			wrap:    func(_ *automutex.Guard, h asynq.Handler) asynq.Handler { return h },
		})
		for range 3 {
			r.awaitDone(r.enqueue("work", nil))
		}
		eventually(t, func() bool { return strings.Contains(r.log.Text(slog.LevelWarn), "UNGUARDED") },
			"a warning")
		r.awaitDone(r.enqueue("work", nil))
		if n := strings.Count(r.log.Text(slog.LevelWarn), "UNGUARDED"); n != 1 {
			t.Errorf("%d warnings", n)
		}
	})
}

// Server, guard and inspector work as a user who may do what docs/redis.md says,
// and nothing else.
func TestRights(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	redistest.AsUser(t, redistest.AllRights(t, "../../docs/redis.md"), []string{
		"Middleware_mux", "Middleware_limit", "Middleware_keyError", "Policy_retry", "Policy_archive",
		"Attempt_maxRetryZero", "Attempt_ignoredTimeout", "Park_explainsItself", "Park_yieldsTheLastWorker",
		"Park_concurrencyOne", "Park_wakeAtFront",
		"Replace_holderReturnsAnError", "Replace_waiting", "Shutdown_waiters",
		"InOrder_throughFailures", "InOrder_holdKey", "InOrder_full", "InOrder_operators", "InOrder_isSeen",
		"InOrder_redelivery",
	})
}

// Two guards around one handler serve their own tasks, and on the last attempt a RetryAfter waits without the lock.
func TestServer_stacked(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		prefix, seen, log := redistest.Name(t), &events{}, &redistest.Log{}
		inner, err := automutex.New(s.Client(t), automutex.Config{Prefix: prefix, Observe: seen.observe, Logger: log.Logger(),
			Rules: []automutex.Rule{{Task: "work"}, {Task: "other"}}})
		redistest.Must(t, err)
		t.Cleanup(func() { redistest.Must(t, inner.Close(context.Background())) })
		r := start(t, s, setup{
			prefix: prefix, rules: []automutex.Rule{{Task: "work"}, {Task: "mine"}},
			served: func(c *asynq.Config) { *c = inner.ServerConfig(*c) },
			wrap:   func(g *automutex.Guard, h asynq.Handler) asynq.Handler { return g.Middleware(inner.Middleware(h)) },
		})
		for i, name := range []string{"other", "mine"} {
			id := r.enqueue(name, nil, asynq.MaxRetry(0))
			run := r.nextIs(id)
			if _, ok := automutex.LeaseOf(run.ctx, name); !ok {
				t.Errorf("no lease of %s", name)
			}
			run.returns(automutex.RetryAfter(0, nil))
			r.finish(id)
			if n := len(r.seen.list(automutex.EventReleased)) + len(seen.list(automutex.EventReleased)); n != 2*(i+1) {
				t.Errorf("%s: %d releases", name, n)
			}
		}
		claimed, err := r.once(unique.Rule{Task: "mine", Until: unique.UntilStart}).Enqueue(asynq.NewTask("mine", nil))
		redistest.Must(t, err)
		for _, id := range []string{r.enqueue("work", nil), claimed.ID} {
			info := r.awaitArchived(id)
			if text := "give one Guard all rules of a type"; !strings.Contains(info.LastErr, text) ||
				!strings.Contains(log.Text(slog.LevelWarn), text) {
				t.Errorf("archived with %q, the log says %q", info.LastErr, log.Text(slog.LevelWarn))
			}
		}
		r.none()
	})
}

// Who sets a function on what ServerConfig returned is warned when a task has gone back, if no other one ever does.
func TestServer_withOtherFunctions(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*asynq.Config){
		"IsFailure": func(c *asynq.Config) { c.IsFailure = func(error) bool { return true } },
		"RetryDelayFunc": func(c *asynq.Config) {
			c.RetryDelayFunc = func(int, error,
				*asynq.Task) time.Duration {
				return 0
			}
		},
		"ErrorHandler": func(c *asynq.Config) {
			c.ErrorHandler = asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) {})
		},
		"none": func(*asynq.Config) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Mini(t)
			for _, workers := range []int{1, 1000} {
				r := start(t, s, setup{workers: workers, rules: []automutex.Rule{{Busy: automutex.Retry}},
					after: set})
				lease := r.take("work")
				r.awaitEvent(automutex.EventRetried, r.enqueue("work", nil))
				began := time.Now()
				eventually(t, func() bool {
					return strings.Contains(r.log.Text(slog.LevelWarn), "IsFailure, RetryDelayFunc or ErrorHandler was set") ||
						name == "none" && time.Since(began) > 2*time.Second
				}, "a warning")
				r.free(lease)
				if text := r.log.Text(slog.LevelWarn); name == "none" && text != "" {
					t.Errorf("%d workers: the log says %q", workers, text)
				}
			}
		})
	}
}

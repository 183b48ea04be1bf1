package automutex

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// runEnv makes this test binary a worker that runs under Guard.Run, see runMain.
const runEnv = "AUTOMUTEX_TEST_RUN"

// runShutdown is the ShutdownTimeout of that worker: what a task in line would take
// if the Guard was not closed.
const runShutdown = 20 * time.Second

// runMain serves the queue, under the prefix, on the Redis of the variable's value,
// "<redis address> <queue> <prefix> <use>". With "use" for the last the mux has the
// Middleware as well. It ends with a signal.
func runMain() {
	words := strings.Fields(os.Getenv(runEnv))
	rdb := redis.NewClient(&redis.Options{Addr: words[0]})
	guard, err := New(rdb, Config{Prefix: words[2], Rules: []Rule{{Task: "work", Wait: time.Minute}}})
	if err != nil {
		panic(err)
	}
	mux := asynq.NewServeMux()
	if words[3] == "use" {
		mux.Use(guard.Middleware)
	}
	mux.HandleFunc("work", func(ctx context.Context, _ *asynq.Task) error {
		if _, ok := Lease(ctx); !ok {
			return errors.New("unguarded")
		}
		return nil
	})
	mux.HandleFunc("other", func(context.Context, *asynq.Task) error { return nil })
	srv := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{
		Concurrency: 4, Queues: map[string]int{words[1]: 1}, TaskCheckInterval: 10 * time.Millisecond, ShutdownTimeout: runShutdown, Logger: silent{},
	}))
	if err := guard.Run(srv, mux); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// watch has the rig take keys of another prefix from outside.
func (r *rig) watch(s *redistest.Server, prefix string) {
	if err := r.others.Close(); err != nil {
		r.t.Fatal(err)
	}
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
				r.await(r.enqueue("work", nil), asynq.TaskStateCompleted)
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
	redistest.Eventually(t, patience, func() bool {
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
	r.await(waits, asynq.TaskStateCompleted) // what it had goes on
	signalChild(t, child.PID(), "TERM")
	child.End(t, patience)
	r.await(left, asynq.TaskStatePending)
}

func TestRun_refuses(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	guard := newGuard(t, s, &logged{}, &events{}, Rule{Task: "work"})
	srv := asynq.NewServerFromRedisClient(s.Client(t), guard.ServerConfig(asynq.Config{Logger: silent{}}))
	if err := guard.Run(nil, asynq.NewServeMux()); err == nil || !strings.Contains(err.Error(), "asynq.Server is nil") {
		t.Errorf("got %v", err)
	}
	if err := guard.Run(srv, nil); err == nil || !strings.Contains(err.Error(), "handler is nil") {
		t.Errorf("got %v", err)
	}
	if err := srv.Start(guard.Middleware(asynq.NewServeMux())); err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	if err := guard.Run(srv, asynq.NewServeMux()); err == nil || !strings.Contains(err.Error(), "did not start") {
		t.Errorf("got %v", err)
	}
}

// Close beside Shutdown has as much time as Shutdown takes.
func TestRun_handlerOutlivesShutdown(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t), setup{rules: []Rule{{Task: "work"}}})
	r.enqueue("work", nil)
	run := r.stage.next(t)
	if err := r.guard.closeBeside(func() {}); !errors.Is(err, errShutdownTimeout) {
		t.Errorf("got %v", err)
	}
	run.returns(nil)
}

// Without the Middleware everything runs unguarded, and the Guard says so.
func TestServerConfig_withoutMiddleware(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{
			rules: []Rule{{Task: "work"}}, handler: func(context.Context, *asynq.Task) error { return nil },
			wrap: func(_ *Guard, h asynq.Handler) asynq.Handler { return h },
		})
		for range 3 {
			r.await(r.enqueue("work", nil), asynq.TaskStateCompleted)
		}
		redistest.Eventually(t, patience, func() bool { return strings.Contains(r.log.text(slog.LevelWarn), "UNGUARDED") }, "a warning")
		r.await(r.enqueue("work", nil), asynq.TaskStateCompleted)
		if n := strings.Count(r.log.text(slog.LevelWarn), "UNGUARDED"); n != 1 {
			t.Errorf("%d warnings", n)
		}
	})
}

// With the Middleware, on all handlers, on some, or twice, there is no such warning,
// and a task takes one worker.
func TestServerConfig_withMiddleware(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, wrap := range map[string]func(*Guard, asynq.Handler) asynq.Handler{
			"used": func(g *Guard, h asynq.Handler) asynq.Handler {
				mux := asynq.NewServeMux()
				mux.Use(g.Middleware)
				mux.Handle("work", h)
				return mux
			},
			"some": func(g *Guard, h asynq.Handler) asynq.Handler {
				mux := asynq.NewServeMux()
				mux.Handle("work", h)
				mux.Handle("guarded", g.Middleware(h))
				return mux
			},
			"twice": func(g *Guard, h asynq.Handler) asynq.Handler { return g.Middleware(g.Middleware(h)) },
		} {
			r := start(t, s, setup{rules: []Rule{{Task: "park", Busy: Park}}, wrap: wrap})
			id := r.enqueue("work", nil)
			run := r.stage.next(t)
			m := run.ctx.Value(serverKey{r.guard}).(*taskMark)
			if busy := m.server.workers.busy.Load(); busy > 1 {
				t.Errorf("%s: one task counts as %d", name, busy)
			}
			m.server.checkGuarded()
			if text := r.log.text(slog.LevelWarn); text != "" {
				t.Errorf("%s: logged %q", name, text)
			}
			run.returns(nil)
			r.await(id, asynq.TaskStateCompleted)
			r.stop()
		}
	})
}

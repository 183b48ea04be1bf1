package e2e

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

	"github.com/automutex/automutex"
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
	guard, err := automutex.New(rdb, automutex.Config{Prefix: words[2], Rules: []automutex.Rule{{Task: "work", Wait: time.Minute}}})
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
		Concurrency: 4, Queues: map[string]int{words[1]: 1}, TaskCheckInterval: redistest.CheckEvery, ShutdownTimeout: runShutdown, Logger: redistest.Silent{},
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
}

// Without the Middleware everything runs unguarded, and the Guard says so.
func TestServerConfig_withoutMiddleware(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{
			rules: []automutex.Rule{{Task: "work", Busy: automutex.Retry}}, handler: func(context.Context, *asynq.Task) error { return nil },
			wrap: func(_ *automutex.Guard, h asynq.Handler) asynq.Handler { return h },
		})
		for range 3 {
			r.await(r.enqueue("work", nil), asynq.TaskStateCompleted)
		}
		redistest.Eventually(t, patience, func() bool { return strings.Contains(r.log.Text(slog.LevelWarn), "UNGUARDED") }, "a warning")
		r.await(r.enqueue("work", nil), asynq.TaskStateCompleted)
		if n := strings.Count(r.log.Text(slog.LevelWarn), "UNGUARDED"); n != 1 {
			t.Errorf("%d warnings", n)
		}
	})
}

package automutextest

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// Server is an asynq server on a Guard's Redis in memory; see [Serve].
type Server struct {
	guard     *Guard
	queues    map[string]int
	client    *asynq.Client
	inspector *asynq.Inspector
	tasks     []*Task // enqueued here; belongs to the test's goroutine
}

// Serve starts an asynq server with the Guard's ServerConfig. handler must include
// guard.Middleware, as in the program: pass the program's own mux, or
// guard.Middleware(handler). The server has ten workers and the queue "default"; adjust
// functions may change that. The server ends with the test.
//
// Tasks that asynq keeps for later (handed back, failed, or scheduled) stay there
// until [Task.Again] or [Server.Drain], so that a test does not depend on asynq's
// clock. Parked tasks run by themselves when their turn comes.
func Serve(tb testing.TB, g *Guard, handler asynq.Handler, adjust ...func(*asynq.Config)) *Server {
	tb.Helper()
	g.check(tb, "Serve")
	if handler == nil {
		tb.Fatal("automutextest: Serve: the handler is nil")
	}
	cfg := asynq.Config{
		Concurrency:       10,
		TaskCheckInterval: 5 * time.Millisecond,
		LogLevel:          asynq.FatalLevel,
	}
	for _, f := range adjust {
		if f != nil {
			f(&cfg)
		}
	}
	if len(cfg.Queues) == 0 {
		cfg.Queues = map[string]int{"default": 1} // as asynq has it
	}
	g.serves(cfg)
	cfg.DelayedTaskCheckInterval = 24 * time.Hour
	cfg.ShutdownTimeout = time.Second
	s := &Server{
		guard: g, queues: cfg.Queues,
		client: asynq.NewClientFromRedisClient(g.rdb), inspector: asynq.NewInspectorFromRedisClient(g.rdb),
	}
	server := asynq.NewServerFromRedisClient(g.rdb, g.ServerConfig(cfg))
	err := server.Ping() // asynq panics, later, where there is no Redis
	if err == nil {
		err = server.Start(handler)
	}
	if err != nil {
		tb.Fatalf("automutextest: Serve: %v", err)
	}
	tb.Cleanup(func() {
		tb.Helper()
		ended := make(chan struct{})
		go func() { // ends within the grace; Shutdown needs it to have begun
			defer close(ended)
			g.end(tb)
		}()
		server.Shutdown()
		<-ended
	})
	return s
}

// Enqueue enqueues a task and returns at once. The options are asynq's, but a done task is
// kept for [Task.Becomes] whatever asynq.Retention says. Call Enqueue from the test's own
// goroutine.
func (s *Server) Enqueue(tb testing.TB, task *asynq.Task, options ...asynq.Option) *Task {
	tb.Helper()
	if task == nil {
		tb.Fatal("automutextest: Enqueue: the task is nil")
	}
	defer s.guard.enqueued()
	info, err := s.client.Enqueue(task, append(options[:len(options):len(options)], asynq.Retention(time.Hour))...)
	if err != nil {
		tb.Fatalf("automutextest: Enqueue: %s: %v", task.Type(), err)
	}
	if s.queues[info.Queue] == 0 {
		tb.Fatalf("automutextest: Enqueue: %s: the server does not serve the queue %q; "+
			"have Serve do so: func(c *asynq.Config) { c.Queues = ... }", task.Type(), info.Queue)
	}
	k := &Task{server: s, task: task, queue: info.Queue, id: info.ID}
	s.tasks = append(s.tasks, k)
	return k
}

// Drain waits until all tasks that were enqueued on s have ended, done or archived. It runs
// tasks that asynq keeps for later at once, as often as needed.
func (s *Server) Drain(tb testing.TB) {
	tb.Helper()
	defer s.guard.watching()()
	deadline := time.Now().Add(s.guard.patience)
	var again error
	for _, k := range s.tasks {
		for {
			now := k.look(tb)
			if now.outcome.final() {
				break
			}
			if now.later {
				// asynq refuses what began to run just now: the next look tells.
				again = s.inspector.RunTask(k.queue, k.id)
			}
			if time.Now().After(deadline) {
				tb.Fatalf("automutextest: Drain: not within %s: %s; run again: %v", s.guard.patience, k.describe(now), again)
			}
			<-time.After(poll)
		}
	}
}

package main

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// traffic is an asynq server whose guarded handlers stay in until they are let
// go: real tasks that hold real locks, and real ones that wait for them.
type traffic struct {
	t      *testing.T
	server *redistest.Server
	queue  string
	prefix string
	client *asynq.Client
	others *lock.Locker // for what is no task

	release chan struct{} // closed by stop; handlers return then
	mu      sync.Mutex    // guards running
	running map[string]context.Context
}

// start makes traffic on s that ends with the test.
func start(t *testing.T, s *redistest.Server, rules ...automutex.Rule) *traffic {
	t.Helper()
	tr := &traffic{
		t: t, server: s, queue: redistest.Name(t), prefix: redistest.Name(t),
		release: make(chan struct{}), running: map[string]context.Context{},
	}
	rdb := s.Client(t)
	quiet := slog.New(slog.DiscardHandler)
	guard, err := automutex.New(rdb, automutex.Config{Rules: rules, Prefix: tr.prefix, Owner: "worker-1:4242", Logger: quiet, Private: true})
	redistest.Must(t, err)
	tr.client = asynq.NewClientFromRedisClient(rdb)
	tr.others = lock.New(rdb, lock.Options{Prefix: tr.prefix, Owner: "somebody", Logger: quiet})
	server := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{
		Concurrency: 10, Queues: map[string]int{tr.queue: 1}, TaskCheckInterval: redistest.CheckEvery,
		ShutdownTimeout: patience, Logger: redistest.Silent{},
	}))
	redistest.Must(t, server.Start(guard.Middleware(asynq.HandlerFunc(tr.handle))))
	t.Cleanup(func() {
		close(tr.release)
		closed := make(chan error, 1) // Close beside Shutdown, as in the guide
		go func() { closed <- guard.Close(context.Background()) }()
		server.Shutdown()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if err := tr.others.Close(); err != nil {
			t.Error(err)
		}
	})
	return tr
}

// handle stays until the end, or until its lease is lost.
func (tr *traffic) handle(ctx context.Context, _ *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	tr.mu.Lock()
	tr.running[id] = ctx
	tr.mu.Unlock()
	select {
	case <-tr.release:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// context is that of a task's handler, nil until it has begun.
func (tr *traffic) context(id string) context.Context {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.running[id]
}

// enqueue enqueues a task; its ID is the caller's.
func (tr *traffic) enqueue(id, taskType, payload string, options ...asynq.Option) {
	tr.t.Helper()
	options = append([]asynq.Option{asynq.Queue(tr.queue), asynq.TaskID(id), asynq.Timeout(time.Hour)}, options...)
	if _, err := tr.client.Enqueue(asynq.NewTask(taskType, []byte(payload)), options...); err != nil {
		tr.t.Fatal(err)
	}
}

// holds waits until a task's handler runs.
func (tr *traffic) holds(id string) {
	tr.t.Helper()
	redistest.Eventually(tr.t, patience, func() bool { return tr.context(id) != nil }, "the handler of %s runs", id)
}

// line waits until so many wait for a key.
func (tr *traffic) line(n int, scope string, parts ...string) {
	tr.t.Helper()
	m := tr.others.Mutex(scope, lock.Parts(parts...))
	redistest.Eventually(tr.t, patience, func() bool {
		waiting, err := m.Waiting(tr.t.Context())
		return err == nil && waiting == n
	}, "%d wait for %s", n, m.Key())
}

// flags are those that lead the program here.
func (tr *traffic) flags(args ...string) []string {
	return append(args, append(where(tr.server), "--prefix", tr.prefix)...)
}

// where are the connection flags to s.
func where(s *redistest.Server) []string {
	if s.Kind() == redistest.KindCluster {
		return []string{"--cluster", "--cluster_addrs", s.Addr(), "--timeout", "20s"}
	}
	return []string{"--uri", s.Addr(), "--timeout", "20s"}
}

// eachReal runs f on a single Redis and on a Cluster.
func eachReal(t *testing.T, f func(t *testing.T, s *redistest.Server)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		if s.Kind() == redistest.KindMini {
			t.SkipNow()
		}
		f(t, s)
	})
}

// wait is the rule that most tests hold tasks by.
var wait = automutex.Rule{Task: "work", On: []string{"id"}, Busy: automutex.Retry, Wait: time.Hour}

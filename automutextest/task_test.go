package automutextest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

func returns(err error) asynq.HandlerFunc {
	return func(context.Context, *asynq.Task) error { return err }
}

// What becomes of a task whose key is held, by policy.
func TestBecomes_policies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule func(*automutex.Rule)
		want Outcome
	}{
		"retry":         {busy(automutex.Retry), HandedBack},
		"retry in":      {busy(automutex.RetryIn(time.Minute)), HandedBack},
		"park":          {busy(automutex.Park), HandedBack},
		"skip":          {busy(automutex.Skip), Skipped},
		"archive":       {busy(automutex.Archive), Archived},
		"fail":          {busy(automutex.Fail), Failed},
		"allow":         {busy(automutex.Allow), Done},
		"after failure": {busy(automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error { return nil })), Skipped},
		"wait":          {func(r *automutex.Rule) { r.Wait = time.Minute }, Waiting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := New(t, turns(c.rule))
			// One worker: Park has none to wait in.
			server := Serve(t, g, g.Middleware(returns(nil)), func(c *asynq.Config) { c.Concurrency = 1 })
			release := Hold(t, g, work(one))
			task := server.Enqueue(t, work(one))
			task.Becomes(t, c.want)
			release()
			switch {
			case c.want == Waiting || name == "park": // by itself
			case c.want == HandedBack || c.want == Failed:
				task.Again(t)
			default:
				return
			}
			task.Becomes(t, Done)
		})
	}
}

func TestBecomes_more(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	failure := errors.New("the handler's own")
	var broken atomic.Bool
	server := Serve(t, g, g.Middleware(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		if task.Type() == "failing" || broken.Load() {
			return failure
		}
		return nil
	})))
	server.Enqueue(t, work(noKey)).Becomes(t, Archived)
	server.Enqueue(t, asynq.NewTask("no rule", nil), asynq.Retention(0)).Becomes(t, Done)

	failing := server.Enqueue(t, asynq.NewTask("failing", nil), asynq.MaxRetry(2))
	for range 2 {
		failing.Becomes(t, Failed)
		failing.Again(t)
	}
	failing.Becomes(t, Archived)

	// Handed back more than once, also when an attempt was spent before.
	broken.Store(true)
	task := server.Enqueue(t, work(one))
	task.Becomes(t, Failed)
	broken.Store(false)
	release := Hold(t, g, work(one))
	for range 2 {
		task.Again(t)
		task.Becomes(t, HandedBack)
	}
	// Without attempts left it waits in the worker.
	last := server.Enqueue(t, work(one), asynq.MaxRetry(0))
	last.Becomes(t, Waiting)
	release()
	last.Becomes(t, Done)

	later := server.Enqueue(t, work(two), asynq.ProcessIn(time.Hour))
	later.Again(t)
	later.Becomes(t, Done)
}

func TestBecomes_fails(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	server := Serve(t, g, g.Middleware(returns(nil)))
	Hold(t, g, work(one))
	task := server.Enqueue(t, work(one))

	began := time.Now()
	fails(t, func(t testing.TB) { task.Becomes(t, Done) },
		"to become done, but", task.ID(), "is handed back", `rule "turns"`, "{work|1}", "held by the Hold at task_test.go:")
	fails(t, func(t testing.TB) { server.Enqueue(t, work(two)).Becomes(t, Skipped) }, "to become skipped, but", "is done", "{work|2}")
	fails(t, func(t testing.TB) { server.Enqueue(t, work(noKey)).Becomes(t, Done) }, "is archived", `"id"`)
	if passed := time.Since(began); passed > patience {
		t.Errorf("what is settled was waited for, %s", passed)
	}

	fails(t, func(t testing.TB) { task.Becomes(t, "gone") }, `no outcome "gone"`, `"handed back"`)
	done := server.Enqueue(t, work(two))
	done.Becomes(t, Done)
	fails(t, func(t testing.TB) { done.Again(t) }, "does not keep the task for later", "is done")
	if err := server.inspector.DeleteTask("default", done.ID()); err != nil {
		t.Fatal(err)
	}
	fails(t, func(t testing.TB) { done.Becomes(t, Done) }, done.ID(), "does not have it")
}

// What never settles ends with the patience.
func TestBecomes_neverHangs(t *testing.T) {
	t.Parallel()
	g := New(t, turns(func(r *automutex.Rule) { r.Wait = time.Minute }))
	if g.patience != patience+time.Minute {
		t.Errorf("it waits for %s, which the rule may take", g.patience)
	}
	g.patience = 50 * time.Millisecond
	server := Serve(t, g, g.Middleware(returns(nil)))
	Hold(t, g, work(one))
	task := server.Enqueue(t, work(one))
	fails(t, func(t testing.TB) { task.Becomes(t, Done) }, "not within 50ms", "waiting", "the Hold at task_test.go:")
	fails(t, func(t testing.TB) { server.Drain(t) }, "Drain", "not within 50ms", task.ID(), "{work|1}")
	scheduled := server.Enqueue(t, work(two), asynq.ProcessIn(time.Hour))
	fails(t, func(t testing.TB) { scheduled.Becomes(t, Done) }, "not within 50ms", "is scheduled")
}

// Who runs does not wait.
func TestBecomes_running(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	g.patience = 50 * time.Millisecond
	let, began := make(chan struct{}), make(chan struct{})
	server := Serve(t, g, g.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		close(began)
		<-let
		return nil
	})))
	task := server.Enqueue(t, work(one))
	<-began
	fails(t, func(t testing.TB) { task.Becomes(t, Waiting) }, "not within 50ms", "is in a worker")
	fails(t, func(t testing.TB) { task.Again(t) }, "does not keep the task for later", "is in a worker")
	close(let)
}

// A program that forgot the middleware is told.
func TestBecomes_unguarded(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	server := Serve(t, g, returns(nil))
	Hold(t, g, work(one))
	fails(t, func(t testing.TB) { server.Enqueue(t, work(one)).Becomes(t, HandedBack) }, "is done", "is guard.Middleware around the handler?")
}

func TestEnqueue_refuses(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	server := Serve(t, g, g.Middleware(returns(nil)), nil, func(c *asynq.Config) { c.Queues = map[string]int{"mail": 1} })
	fails(t, func(t testing.TB) { server.Enqueue(t, nil) }, "the task is nil")
	fails(t, func(t testing.TB) { server.Enqueue(t, asynq.NewTask("", nil)) }, "Enqueue", "task typename cannot be empty")
	fails(t, func(t testing.TB) { server.Enqueue(t, work(one)) }, `does not serve the queue "default"`, "c.Queues")
	server.Enqueue(t, work(one), asynq.Queue("mail")).Becomes(t, Done)
}

func TestServe_noRedis(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	if err := g.Redis().Close(); err != nil {
		t.Fatal(err)
	}
	fails(t, func(t testing.TB) { Serve(t, g, returns(nil)) }, "Serve", "client is closed")
	fails(t, func(t testing.TB) { Hold(t, g, work(one)) }, "Hold", "client is closed")
	fails(t, func(t testing.TB) { ShareKey(t, g, work(one), work(one)) }, "ShareKey", "client is closed")
}

// A handler that does not end fails the test instead of hanging it.
func TestServe_handlerThatStays(t *testing.T) {
	t.Parallel()
	let, began, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	fails(t, func(t testing.TB) {
		g := New(t, turns())
		g.grace = 10 * time.Millisecond
		server := Serve(t, g, g.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			defer close(ended)
			close(began)
			<-let
			return nil
		})))
		server.Enqueue(t, work(one))
		<-began
	}, "a handler still runs")
	close(let)
	<-ended
}

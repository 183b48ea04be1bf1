package e2e

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
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
		t.Errorf("%s: IsFailure %v, RetryDelayFunc %v, ErrorHandler %v; want %d, %d, %d", what, u.failure, u.delay, u.handled, failure, delay, handled)
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
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		u := &theirs{}
		r := start(t, s, setup{
			rules: []automutex.Rule{
				{Task: "retry", Busy: automutex.Retry}, {Task: "archive", Busy: automutex.Archive}, {Task: "fail", Busy: automutex.Fail},
				{Task: "keyed", On: []string{"id"}, Busy: automutex.Retry}, {Task: "free", Scope: "free", Busy: automutex.Retry},
			},
			served: u.install,
		})
		runs := func(taskType string, err error) string {
			id := r.enqueue(taskType, nil)
			run := r.stage.next(t)
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
			r.await(runs(taskType, nil), asynq.TaskStateCompleted)
			u.told(t, taskType, 0, 0, 0, nil)
		}

		r.take("retry")
		r.take("archive")
		r.take("fail")
		if until := time.Until(r.awaitRetried(r.enqueue("retry", nil), 0).NextProcessAt); until > 5*time.Second {
			t.Errorf("it comes back in %s", until)
		}
		u.told(t, "retry", 0, 0, 0, nil)
		r.await(r.enqueue("archive", nil), asynq.TaskStateArchived)
		u.told(t, "archive", 0, 0, 1, automutex.ErrBusy)
		r.awaitRetried(r.enqueue("fail", nil), 1)
		u.told(t, "fail", 1, 1, 1, automutex.ErrBusy)
		r.await(r.enqueue("keyed", nil), asynq.TaskStateArchived)
		u.told(t, "keyed", 0, 0, 1, asynq.SkipRetry)
		r.await(r.enqueue("retry", nil, asynq.MaxRetry(0), asynq.Timeout(time.Second)), asynq.TaskStateArchived)
		u.told(t, "last attempt", 0, 0, 1, automutex.ErrBusy)
	})
}

// ServerConfig leaves everything else alone.
func TestServer_keepsTheRest(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), &redistest.Log{}, &events{}, automutex.Rule{Task: "work", Busy: automutex.Retry})
	got := guard.ServerConfig(asynq.Config{Concurrency: 7, Queues: map[string]int{"q": 1}, StrictPriority: true, ShutdownTimeout: time.Hour})
	if got.Concurrency != 7 || got.Queues["q"] != 1 || !got.StrictPriority || got.ShutdownTimeout != time.Hour || got.ErrorHandler != nil {
		t.Errorf("got %+v", got)
	}
	if !got.IsFailure(errPlain) || got.IsFailure(nil) {
		t.Error("not asynq's default IsFailure")
	}
}

// Two servers in one process, one of them without ServerConfig: there, and only
// there, a hand-back costs an attempt. It is said once.
func TestServer_withoutServerConfig(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: automutex.Retry}}})
		const warning = "without Guard.ServerConfig"
		other := redistest.Name(t)
		bare := asynq.NewServerFromRedisClient(r.rdb, asynq.Config{
			Queues: map[string]int{other: 1}, TaskCheckInterval: redistest.CheckEvery, Logger: redistest.Silent{},
		})
		redistest.Must(t, bare.Start(r.guard.Middleware(r.stage)))
		t.Cleanup(bare.Shutdown)
		lease := r.take("work")
		r.awaitRetried(r.enqueue("work", nil), 0)
		if strings.Contains(r.log.Text(-100), warning) {
			t.Error("warned of a server that has it")
		}
		r.queue = other // from here on all goes to the bare server
		free := r.enqueue("play", nil)
		r.stage.next(t).returns(nil)
		r.await(free, asynq.TaskStateCompleted)
		if strings.Contains(r.log.Text(-100), warning) {
			t.Error("warned of a task without a rule")
		}
		for range 3 {
			r.awaitRetried(r.enqueue("work", nil), 1)
		}
		// No attempts left: it waits in the worker all the same.
		id := r.enqueue("work", nil, asynq.MaxRetry(0))
		r.awaitLine(1, "work")
		r.free(lease)
		r.stage.next(t).returns(nil)
		r.await(id, asynq.TaskStateCompleted)
		if n := strings.Count(r.log.Text(0), warning); n != 1 {
			t.Errorf("warned %d times: %s", n, r.log.Text(0))
		}
	})
}

// Two guards around one handler serve their own tasks. A task for which both have a rule is archived: it would have two sets of
// locks and two policies.
func TestServer_stacked(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		seen, log := &events{}, &redistest.Log{}
		inner := newGuardAt(t, s, redistest.Name(t), log, seen, automutex.Rule{Task: "work", Name: "inner"}, automutex.Rule{Task: "other", Name: "other"})
		r := start(t, s, setup{
			rules:  []automutex.Rule{{Task: "work", Name: "outer"}, {Task: "mine", Name: "mine"}},
			served: func(c *asynq.Config) { *c = inner.ServerConfig(*c) },
			wrap:   func(g *automutex.Guard, h asynq.Handler) asynq.Handler { return g.Middleware(inner.Middleware(h)) },
		})
		for _, name := range []string{"other", "mine"} {
			id := r.enqueue(name, nil)
			run := r.stage.next(t)
			if _, ok := automutex.LeaseOf(run.ctx, name); !ok {
				t.Errorf("no lease of %s", name)
			}
			run.returns(nil)
			r.await(id, asynq.TaskStateCompleted)
		}
		if info := r.await(r.enqueue("work", nil), asynq.TaskStateArchived); !strings.Contains(info.LastErr, "give one Guard all rules of a type") {
			t.Errorf("archived with %q", info.LastErr)
		}
		r.stage.none(t)
	})
}

package automutex

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// The tests here look inside of the package. What a user can see is tested in internal/e2e, on asynq's servers.

func TestMain(m *testing.M) { redistest.Main(m) }

const patience = redistest.Patience

// newGuard is a guard without a server.
func newGuard(t *testing.T, s *redistest.Server, rules ...Rule) *Guard {
	t.Helper()
	guard, err := New(s.Client(t), Config{Rules: rules, Prefix: redistest.Name(t), Logger: slog.New(slog.DiscardHandler)})
	redistest.Must(t, err)
	t.Cleanup(func() {
		if err := guard.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return guard
}

// What a test has to look at, or to set, inside of a Guard whose tasks asynq runs. All that a user can see
// is tested in internal/e2e.

// served is an asynq server with a Guard, and a queue of its own.
type served struct {
	t         *testing.T
	queue     string
	guard     *Guard
	rdb       redis.UniversalClient // asynq's
	client    *asynq.Client
	inspector *asynq.Inspector
}

// serve starts a server with one worker until the test ends. wrap is nil for guard.Middleware.
func serve(t *testing.T, s *redistest.Server, locks lock.Client, cfg Config, wrap func(*Guard, asynq.Handler) asynq.Handler, handle asynq.HandlerFunc) *served {
	t.Helper()
	r := &served{t: t, queue: redistest.Name(t), rdb: s.Client(t)}
	if locks == nil {
		locks = r.rdb
	}
	if cfg.Prefix == "" {
		cfg.Prefix = redistest.Name(t)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Private = true
	var err error
	if r.guard, err = New(locks, cfg); err != nil {
		t.Fatal(err)
	}
	r.client, r.inspector = asynq.NewClientFromRedisClient(r.rdb), asynq.NewInspectorFromRedisClient(r.rdb)
	server := asynq.NewServerFromRedisClient(r.rdb, r.guard.ServerConfig(asynq.Config{
		Concurrency: 1, Queues: map[string]int{r.queue: 1}, TaskCheckInterval: redistest.CheckEvery,
		DelayedTaskCheckInterval: 100 * time.Millisecond, ShutdownTimeout: patience, Logger: redistest.Silent{},
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	}))
	if wrap == nil {
		wrap = (*Guard).Middleware
	}
	redistest.Must(t, server.Start(wrap(r.guard, handle)))
	t.Cleanup(func() {
		closed := make(chan error, 1)
		go func() { closed <- r.guard.Close(context.Background()) }() // beside Shutdown, as Run does
		server.Shutdown()
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
	return r
}

// enqueue gives the ID of a new task of the type "work", through c.
func (r *served) enqueue(c Enqueuer, options ...asynq.Option) string {
	r.t.Helper()
	options = append([]asynq.Option{asynq.Queue(r.queue), asynq.Retention(time.Hour), asynq.Timeout(10 * time.Minute)}, options...)
	info, err := c.EnqueueContext(r.t.Context(), asynq.NewTask("work", []byte(`{"id":1}`)), options...)
	if err != nil {
		r.t.Fatal(err)
	}
	return info.ID
}

// await waits until asynq has the task in that state.
func (r *served) await(id string, state asynq.TaskState) (info *asynq.TaskInfo) {
	r.t.Helper()
	redistest.Eventually(r.t, patience, func() bool {
		var err error
		info, err = r.inspector.GetTaskInfo(r.queue, id)
		return err == nil && info.State == state
	}, "the task %s is to be %s", id, state)
	return info
}

// Away for longer than it has time, a task waits until the margin before its deadline, and no less.
func TestBackend_awayUntilTheMargin(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var away atomic.Bool
		var hook redistest.FailHook
		hook.Before(func(redis.Cmder) error {
			if away.Load() {
				return errors.New("away")
			}
			return nil
		})
		locks := s.Client(t)
		locks.AddHook(&hook)
		var runs atomic.Int32
		r := serve(t, s, locks, Config{Rules: []Rule{{Task: "work", Busy: Retry}}}, nil, func(context.Context, *asynq.Task) error {
			runs.Add(1)
			return nil
		})
		// Redis has been away for some time: pauses are longer than the first task has.
		r.guard.outage.mu.Lock()
		r.guard.outage.since = time.Now().Add(-5 * time.Second)
		r.guard.outage.mu.Unlock()
		away.Store(true)
		began := time.Now()
		info := r.await(r.enqueue(r.client, asynq.MaxRetry(0), asynq.Timeout(2*time.Second)), asynq.TaskStateArchived)
		if took := time.Since(began); took < 900*time.Millisecond {
			t.Errorf("it gave up after %s of its 2 s, margin 1 s", took)
		}
		if !strings.Contains(info.LastErr, ":{work}") || strings.Contains(info.LastErr, context.DeadlineExceeded.Error()) {
			t.Errorf("the last error is %q", info.LastErr)
		}
		if n := runs.Load(); n != 0 {
			t.Errorf("%d runs", n)
		}
		back := r.enqueue(r.client, asynq.MaxRetry(0))
		r.await(back, asynq.TaskStateActive)
		away.Store(false)
		r.await(back, asynq.TaskStateCompleted)
	})
}

// An Observe that panics while a task waits leaves nothing of the wait behind.
func TestWait_observePanics(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := redistest.Name(t)
		locker := lock.New(s.Client(t), lock.Options{Prefix: prefix})
		defer locker.Close()
		if _, err := locker.Mutex("work", lock.Parts("1")).TryLock(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := serve(t, s, nil, Config{
			Prefix: prefix,
			Rules:  []Rule{{Task: "work", On: []string{"id"}, Wait: time.Minute, Busy: Retry}},
			Observe: func(_ context.Context, e Event) {
				if e.Kind == EventWaiting {
					panic("observer")
				}
			},
		}, nil, func(context.Context, *asynq.Task) error { return nil })
		r.await(r.enqueue(r.client, asynq.MaxRetry(0)), asynq.TaskStateArchived)
		if info, err := r.guard.engine.Inspect(t.Context(), orderedKey(prefix+":{work|1}"), 0, "", ""); err != nil || info.Waiting != 0 {
			t.Errorf("%d are in line, %v", info.Waiting, err)
		}
	})
}

// What is known of the holder reaches the task that parks behind it.
func TestPark_knowsHowLongTheKeyIsTaken(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := redistest.Name(t)
		locker := lock.New(s.Client(t), lock.Options{Prefix: prefix})
		defer locker.Close()
		held, err := locker.Mutex("work", lock.Parts("1")).TryLock(t.Context())
		redistest.Must(t, err)
		taken := time.Now()
		var mu sync.Mutex
		var met []*BusyError
		r := serve(t, s, nil, Config{
			Prefix: prefix,
			Rules:  []Rule{{Task: "work", On: []string{"id"}, Busy: Park}},
			Observe: func(_ context.Context, e Event) {
				mu.Lock()
				defer mu.Unlock()
				if e.Kind == EventParked {
					met = append(met, e.Busy)
				}
			},
		}, nil, func(context.Context, *asynq.Task) error { return nil })
		id := r.enqueue(r.client)
		r.await(id, asynq.TaskStateRetry)
		redistest.Eventually(t, patience, func() bool { return time.Since(taken) > 1500*time.Millisecond }, "some time")
		since := time.Since(taken)
		mu.Lock()
		before := len(met)
		mu.Unlock()
		redistest.Must(t, r.inspector.RunTask(r.queue, id))
		var busy *BusyError
		redistest.Eventually(t, patience, func() bool {
			mu.Lock()
			defer mu.Unlock()
			if len(met) > before {
				busy = met[before]
			}
			return busy != nil
		}, "parked again")
		if busy.takenFor < since-100*time.Millisecond {
			t.Errorf("a task that parked %s after the key was taken knows of %s", since, busy.takenFor)
		}
		redistest.Must(t, held.Unlock(t.Context()))
		r.await(id, asynq.TaskStateCompleted)
	})
}

// An Enqueue that took longer than the stamp's deadline takes its place again before it returns.
func TestInOrder_slowEnqueue(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		cfg := Config{Rules: []Rule{{Task: "work", On: []string{"id"}, InOrder: true}}, Prefix: redistest.Name(t)}
		r := serve(t, s, nil, cfg, nil, func(context.Context, *asynq.Task) error { return nil })
		c, err := NewClient(r.rdb, r.client, cfg)
		redistest.Must(t, err)
		c.stampDeadline = 0 // so that every Enqueue is slow
		ids := []string{r.enqueue(c), r.enqueue(c), r.enqueue(c)}
		head, err := c.engine.Head(t.Context(), orderedKey(cfg.Prefix+":{work|1}"))
		if err != nil || head.State == "i" {
			t.Fatalf("%+v, %v", head, err)
		}
		for _, id := range ids {
			r.await(id, asynq.TaskStateCompleted)
		}
	})
}

// Close beside Shutdown has as much time as Shutdown takes.
func TestRun_handlerOutlivesShutdown(t *testing.T) {
	t.Parallel()
	for _, ruled := range []string{"work", "another"} { // that of a handler without a rule counts, too
		running, let := make(chan struct{}), make(chan struct{})
		r := serve(t, redistest.Mini(t), nil, Config{Rules: []Rule{{Task: ruled}}}, nil, func(context.Context, *asynq.Task) error {
			close(running)
			<-let
			return nil
		})
		r.enqueue(r.client)
		<-running
		if err := r.guard.closeBeside(func() {}); !errors.Is(err, errShutdownTimeout) {
			t.Errorf("a rule for %s: got %v", ruled, err)
		}
		close(let)
	}
}

// With the Middleware, on all handlers, on some, or twice, there is no warning of an unguarded server,
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
			log := &redistest.Log{}
			given := make(chan context.Context, 1)
			let := make(chan struct{})
			r := serve(t, s, nil, Config{Rules: []Rule{{Task: "park", Busy: Park}}, Logger: log.Logger()}, wrap, func(ctx context.Context, _ *asynq.Task) error {
				given <- ctx
				<-let
				return nil
			})
			id := r.enqueue(r.client)
			m := (<-given).Value(serverKey{r.guard}).(*taskMark)
			if busy := m.server.workers.isBusy(); busy > 1 {
				t.Errorf("%s: one task counts as %d", name, busy)
			}
			m.server.checkGuarded()
			if text := log.Text(slog.LevelWarn); text != "" {
				t.Errorf("%s: logged %q", name, text)
			}
			close(let)
			r.await(id, asynq.TaskStateCompleted)
		}
	})
}

// A Guard knows the types of tasks that came, up to a bound, and the patterns of its mux that are for its rules.
func TestServedTypes(t *testing.T) {
	t.Parallel()
	var s servedTypes
	mux := asynq.NewServeMux()
	mux.Handle("cron:nightly", asynq.NotFoundHandler())
	mux.Handle("mail:", asynq.NotFoundHandler())
	s.askMux(mux, []Rule{{Task: "cron:nigtly"}, {Task: "mail:welcome"}})
	if got := s.list(); !slices.Equal(got, []string{"mail:"}) {
		t.Errorf("of the mux: %q", got)
	}
	for i := range mostServed + 9 {
		s.add(strconv.Itoa(i))
	}
	if n := len(s.list()); n != mostServed {
		t.Errorf("%d types, want %d", n, mostServed)
	}
}

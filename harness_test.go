package automutex

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/redistest"
)

// The tests here look inside of the package. What a user can see is tested in internal/e2e, on asynq's servers.

func TestMain(m *testing.M) { redistest.Main(m) }

const patience = redistest.Patience

// newGuard is a guard without a server.
func newGuard(t *testing.T, s *redistest.Server, rules ...Rule) *Guard {
	t.Helper()
	return newGuardWith(t, s, Config{Rules: rules, Logger: slog.New(slog.DiscardHandler)})
}

func newGuardWith(t *testing.T, s *redistest.Server, cfg Config) *Guard {
	t.Helper()
	cfg.Prefix = redistest.Name(t)
	guard, err := New(s.Client(t), cfg)
	redistest.Must(t, err)
	t.Cleanup(func() {
		if err := guard.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return guard
}

// An Enqueue that took longer than the stamp's deadline takes its place again before it returns.
func TestInOrder_slowEnqueue(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		cfg := Config{Rules: []Rule{{Task: "work", On: []string{"id"}, InOrder: true}}, Prefix: redistest.Name(t)}
		c, err := NewClient(rdb, asynq.NewClientFromRedisClient(rdb), cfg)
		redistest.Must(t, err)
		c.stampDeadline = 0 // so that every Enqueue is slow
		_, err = c.EnqueueContext(t.Context(), asynq.NewTask("work", []byte(`{"id":1}`)), asynq.Queue(redistest.Name(t)))
		redistest.Must(t, err)
		head, err := c.engine.Head(t.Context(), orderedKey(cfg.Prefix+":{work|1}"))
		if err != nil || head.State == "i" || head.State == "" {
			t.Fatalf("%+v, %v", head, err)
		}
	})
}

// Close beside Shutdown has as much time as Shutdown takes.
func TestRun_handlerOutlivesShutdown(t *testing.T) {
	t.Parallel()
	for _, ruled := range []string{"work", "another"} { // the handler of a task without a rule counts, too
		running, let, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		guard := newGuard(t, redistest.Mini(t), Rule{Task: ruled})
		handler := guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			close(running)
			<-let
			return nil
		}))
		go func() { ended <- handler.ProcessTask(context.Background(), asynq.NewTask("work", nil)) }()
		<-running
		if err := guard.closeBeside(func() {}); !errors.Is(err, errShutdownTimeout) {
			t.Errorf("a rule for %s: got %v", ruled, err)
		}
		close(let)
		redistest.Must(t, <-ended)
	}
}

// With the Middleware on some handlers, or twice, there is no warning of an unguarded server, and a task takes one worker.
func TestServerConfig_withMiddleware(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(*Guard, asynq.Handler) asynq.Handler{
		"some":  func(g *Guard, h asynq.Handler) asynq.Handler { g.Middleware(h); return h },
		"twice": func(g *Guard, h asynq.Handler) asynq.Handler { return g.Middleware(g.Middleware(h)) },
	} {
		log := &redistest.Log{}
		guard := newGuardWith(t, redistest.Mini(t), Config{Rules: []Rule{{Task: "park", Busy: Park}}, Logger: log.Logger()})
		ctx := guard.ServerConfig(asynq.Config{Concurrency: 1}).BaseContext()
		redistest.Must(t, wrap(guard, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			m := ctx.Value(serverKey{guard}).(*taskMark)
			if busy := m.server.workers.isBusy(); busy > 1 {
				t.Errorf("%s: one task counts as %d", name, busy)
			}
			m.server.checkGuarded()
			return nil
		})).ProcessTask(ctx, asynq.NewTask("work", nil)))
		if text := log.Text(slog.LevelWarn); text != "" {
			t.Errorf("%s: logged %q", name, text)
		}
	}
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

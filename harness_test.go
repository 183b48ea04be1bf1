package automutex

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
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

// A task without a rule whose type looks like the Task of a rule that nothing serves: that is said once for each rule. Rules of other
// workers, and types that have a rule, say nothing.
func TestMiddleware_looksLikeARule(t *testing.T) {
	t.Parallel()
	type embeds struct{ *asynq.ServeMux }
	wraps := map[string]func(*Guard, *asynq.ServeMux) asynq.Handler{
		"mux":      func(g *Guard, mux *asynq.ServeMux) asynq.Handler { return g.Middleware(mux) },
		"embedded": func(g *Guard, mux *asynq.ServeMux) asynq.Handler { return g.Middleware(embeds{mux}) },
		"Use":      func(g *Guard, mux *asynq.ServeMux) asynq.Handler { mux.Use(g.Middleware); return mux },
		"wrapped": func(g *Guard, mux *asynq.ServeMux) asynq.Handler {
			return g.Middleware(asynq.HandlerFunc(mux.ProcessTask))
		},
	}
	for wrapped, wrap := range wraps {
		for _, c := range []struct {
			tasks, served, come, want []string // served: patterns of the mux; want: Tasks of rules that are warned of
		}{
			{[]string{"cron:nigtly"}, []string{"cron:nightly"}, []string{"cron:nightly", "cron:nightly"}, []string{"cron:nigtly"}},
			{[]string{"cron:nigtly"}, []string{"cron:"}, []string{"cron:hourly", "cron:nightly"}, []string{"cron:nigtly"}},
			{[]string{"crn:"}, []string{"cron:"}, []string{"cron:nightly", "cron:hourly"}, []string{"crn:"}},
			{[]string{"Pay", "rprt"}, []string{"pay", "report"}, []string{"pay", "report"}, []string{"Pay", "rprt"}},
			{[]string{"sync:eu", "sync:us", "mail:send"}, []string{"sync:eu"}, []string{"sync:eu", "other"}, nil},
			{[]string{"sync:", "sync:us"}, []string{"sync:eu"}, []string{"sync:eu"}, nil},
			{[]string{"sync:us"}, []string{"sync:us", "sync:eu"}, []string{"sync:us", "sync:eu"}, nil},
			{[]string{"a", "report:x"}, []string{"b", "report:yearly"}, []string{"b", "report:yearly"}, nil},
		} {
			log, mux := &redistest.Log{}, asynq.NewServeMux()
			var rules []Rule
			for _, task := range c.tasks {
				rules = append(rules, Rule{Task: task})
			}
			for _, pattern := range c.served {
				mux.HandleFunc(pattern, func(context.Context, *asynq.Task) error { return nil })
			}
			handler := wrap(newGuardWith(t, redistest.Mini(t), Config{Rules: rules, Prefix: redistest.Name(t), Logger: log.Logger()}), mux)
			for _, come := range c.come {
				_ = handler.ProcessTask(t.Context(), asynq.NewTask(come, nil)) // asynq's mux refuses a type that it does not serve
			}
			var warned []string
			for _, task := range c.tasks {
				if n := strings.Count(log.Text(slog.LevelWarn), fmt.Sprintf("a rule is for %q, which", task)); n > 0 {
					warned = append(warned, strings.Repeat(task, n))
				}
			}
			if n := strings.Count(log.Text(slog.LevelWarn), "did you mean"); !slices.Equal(warned, c.want) || n != len(c.want) {
				t.Errorf("%s: rules for %q, served %q, came %q: warned of %q, %d times; want %q", wrapped, c.tasks, c.served, c.come, warned, n, c.want)
			}
		}
	}
	// What a mux serves exactly is no slip, also if the other type comes first.
	log, mux := &redistest.Log{}, asynq.NewServeMux()
	guard := newGuardWith(t, redistest.Mini(t), Config{Rules: []Rule{{Task: "sync:us"}}, Logger: log.Logger()})
	mux.Handle("sync:us", asynq.NotFoundHandler())
	_ = guard.Middleware(mux).ProcessTask(t.Context(), asynq.NewTask("sync:eu", nil))
	if text := log.Text(slog.LevelWarn); text != "" {
		t.Errorf("logged %q", text)
	}
}

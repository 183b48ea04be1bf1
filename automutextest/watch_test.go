package automutextest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// everything is one group.
func everything(*asynq.Task) string { return "everything" }

func TestWatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule  func(*automutex.Rule)
		tasks int
	}{
		"in turns by retrying": {busy(automutex.Retry), 20},
		"in turns by waiting":  {func(r *automutex.Rule) { r.Wait = time.Minute }, 50},
		"in turns by parking":  {busy(automutex.Park), 50},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := New(t, turns(c.rule))
			runs := Watch(t, g, returns(nil), everything)
			server := Serve(t, g, g.Middleware(runs))
			for range c.tasks {
				server.Enqueue(t, work(one))
			}
			server.Drain(t)
			runs.AtMostAtOnce(t, 1)
			if runs.Count() != c.tasks {
				t.Errorf("%d runs of %d tasks", runs.Count(), c.tasks)
			}
		})
	}
}

// together runs two tasks that meet, if they are let.
func together(t *testing.T, g *Guard, runs *Runs, wrap func(asynq.Handler) asynq.Handler) {
	t.Helper()
	server := Serve(t, g, wrap(runs))
	for i := range 2 {
		server.Enqueue(t, work(fmt.Sprintf(`{"id": 1, "n": %d}`, i)))
	}
	server.Drain(t)
}

// pair is a handler that two runs meet in; the second that comes ends both.
func pair() asynq.Handler {
	met := make(chan struct{}) // one sends, the other receives
	return asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		select {
		case met <- struct{}{}:
		case <-met:
		case <-ctx.Done():
		}
		return nil
	})
}

func TestWatch_fails(t *testing.T) {
	t.Parallel()
	t.Run("no middleware", func(t *testing.T) {
		t.Parallel()
		g := New(t, turns())
		runs := Watch(t, g, pair(), everything)
		together(t, g, runs, func(h asynq.Handler) asynq.Handler { return h })
		fails(t, func(t testing.TB) { runs.AtMostAtOnce(t, 1) },
			`2 runs of "everything" at once`, `rule "turns"`, "{work|1}", "without a lock", "guard.Middleware")
		runs.AtMostAtOnce(t, 2)
	})
	t.Run("quick handlers", func(t *testing.T) {
		t.Parallel()
		g := New(t, turns())
		runs := Watch(t, g, returns(nil), everything)
		server := Serve(t, g, runs)
		for range 30 {
			server.Enqueue(t, work(one))
		}
		server.Drain(t)
		fails(t, func(t testing.TB) { runs.AtMostAtOnce(t, 1) }, "at once")
	})
	t.Run("a rule with a field too many", func(t *testing.T) {
		t.Parallel()
		g := New(t, turns(func(r *automutex.Rule) { r.On = []string{"id", "n"} }))
		runs := Watch(t, g, pair(), everything)
		together(t, g, runs, g.Middleware)
		fails(t, func(t testing.TB) { runs.AtMostAtOnce(t, 1) }, "{work|1|0}", "{work|1|1}")
	})
	t.Run("nothing ran", func(t *testing.T) {
		t.Parallel()
		g := New(t, turns())
		runs := Watch(t, g, returns(nil), everything)
		fails(t, func(t testing.TB) { runs.AtMostAtOnce(t, 1) }, "never ran")
		fails(t, func(t testing.TB) { runs.AtMostAtOnce(t, 0) }, "0 is no bound")
	})
}

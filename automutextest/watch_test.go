package automutextest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
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

// The second task of a pair is enqueued while the first one runs already, so that the
// server finds it at its next poll only. The rule lets them overlap.
func TestWatch_seesAnOverlapWithATaskThatIsPolledForLater(t *testing.T) {
	t.Parallel()
	g := New(t, turns(func(r *automutex.Rule) { r.On = []string{"id", "n"} }))
	var came sync.Map // when the first run of a pair came to Watch, by pair
	runs := Watch(t, g, returns(nil), func(task *asynq.Task) string {
		pair := strings.Split(string(task.Payload()), `"`)[3]
		came.LoadOrStore(pair, time.Now())
		return pair
	})
	server := Serve(t, g, g.Middleware(runs))
	const pairs = 50
	seen, tried := 0, 0
	for ; seen < pairs && tried < 10*pairs; tried++ {
		pair := fmt.Sprintf("pair %d", tried)
		first := server.Enqueue(t, work(fmt.Sprintf(`{"id": "%s", "n": 1}`, pair)))
		redistest.Eventually(t, patience, func() bool { _, runs := came.Load(pair); return runs }, "the first of %s runs", pair)
		second := server.Enqueue(t, work(fmt.Sprintf(`{"id": "%s", "n": 2}`, pair)))
		began, _ := came.Load(pair)
		late := time.Since(began.(time.Time)) >= linger // the machine is busy: the first run may have looked before
		enqueued := time.Now()
		first.Becomes(t, Done)
		second.Becomes(t, Done)
		switch {
		case len(runs.crowds(1)[pair]) == 2:
			seen++
		case !late && time.Since(enqueued) < 5*linger: // longer: the server's poll came late
			t.Fatalf("%s: the overlap was not seen", pair)
		}
	}
	if seen < pairs {
		t.Errorf("%d overlaps seen of %d tried", seen, tried)
	}
}

// Handlers that Watch does not know keep it from telling whether more will come.
func TestWatch_goesOnBesideHandlersThatItDoesNotWatch(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	runs := Watch(t, g, returns(nil), everything)
	done := make(chan struct{})
	mux := asynq.NewServeMux()
	mux.Use(g.Middleware)
	mux.Handle("work", runs)
	mux.HandleFunc("other", func(ctx context.Context, _ *asynq.Task) error {
		select {
		case <-done:
		case <-ctx.Done():
		}
		return nil
	})
	server := Serve(t, g, mux)
	other := server.Enqueue(t, asynq.NewTask("other", nil))
	server.Enqueue(t, work(one)).Becomes(t, Done)
	close(done)
	other.Becomes(t, Done)
	runs.AtMostAtOnce(t, 1)
}

package e2e

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Functions of the user's that panic. No lease stays behind, and no goroutine of
// the Guard's own ends the program.

// An Observe that panics costs its task an attempt, at most, and leaves no lock behind. The simulation has more of these.
func TestObserve_panics(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		taken := func(until automutex.EventKind) func(r *rig) { // by another
			return func(r *rig) {
				held := r.take("work", "1")
				r.awaitEvent(until, r.enqueue("work", one))
				r.free(held)
			}
		}
		enqueue := func(r *rig) { r.enqueue("work", one) }
		cut := func(r *rig) {
			enqueue(r)
			r.stage.next(r.t).cut()
		}
		for kind, c := range map[automutex.EventKind]struct {
			policy automutex.Policy
			do     func(r *rig)
		}{
			automutex.EventAcquired: {automutex.Retry, enqueue},
			automutex.EventWaiting:  {automutex.Replace, taken(automutex.EventWaiting)},
			automutex.EventWaited:   {automutex.Park, taken(automutex.EventWaiting)},
			automutex.EventBusy:     {automutex.Allow, taken(automutex.EventBusy)},
			automutex.EventSkipped:  {automutex.Skip, taken(automutex.EventSkipped)},
			automutex.EventRetried:  {automutex.Retry, taken(automutex.EventRetried)},
			automutex.EventReleased: {automutex.Retry, func(r *rig) { enqueue(r); r.stage.next(r.t).returns(nil) }},
			automutex.EventOverdue:  {automutex.Retry, cut},
			automutex.EventKeyError: {automutex.Retry, func(r *rig) { r.enqueue("work", "{}") }},
			automutex.EventLost: {automutex.Retry, func(r *rig) {
				enqueue(r)
				run := r.stage.next(r.t)
				r.drop("work", "1")
				run.returns(nil)
			}},
		} {
			t.Run(string(kind), func(t *testing.T) {
				t.Parallel()
				rule := automutex.Rule{Task: "work", On: []string{"id"}, TTL: time.Hour, Busy: c.policy}
				second := automutex.Rule{Task: "work", Name: "second", Scope: "second", TTL: time.Hour, Busy: automutex.Retry}
				rule.Name, rule.Scope = "first", "work"
				r := start(t, s, setup{rules: []automutex.Rule{rule, second}, guarded: panicOn(kind)})
				c.do(r)
				redistest.Eventually(t, patience, func() bool { return len(r.seen.list(kind)) > 0 }, "event %s", kind)
				r.stage.end()
				redistest.Eventually(t, patience, func() bool { return !r.locked("work", "1") && !r.locked("second") }, "no lease is left")
			})
		}
	})
}

// drop takes a key out of Redis, as an eviction would.
func (r *rig) drop(scope string, parts ...string) {
	r.t.Helper()
	if err := r.rdb.Del(context.Background(), r.lockOf(scope, parts...).Key()).Err(); err != nil {
		r.t.Fatal(err)
	}
}

// panicOn has Observe panic on each event of a kind, after it has noted it.
func panicOn(kind automutex.EventKind) func(*automutex.Config) {
	return func(c *automutex.Config) {
		observe := c.Observe
		c.Observe = func(ctx context.Context, e automutex.Event) {
			observe(ctx, e)
			if e.Kind == kind {
				panic("the observer's own fault")
			}
		}
	}
}

// A Logger that panics changes nothing.
func TestLogger_panics(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{
			rules:   []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Skip}},
			guarded: func(c *automutex.Config) { c.Logger = slog.New(explosiveLog{}) },
		})
		held := r.take("work", "1")
		r.await(r.enqueue("work", one), asynq.TaskStateCompleted) // skipped, which is logged
		r.free(held)
		id := r.enqueue("work", one)
		run := r.stage.next(t)
		r.drop("work", "1")
		run.returns(nil)
		r.await(id, asynq.TaskStateCompleted) // its loss is logged
	})
}

type explosiveLog struct{}

func (explosiveLog) Enabled(context.Context, slog.Level) bool  { return true }
func (explosiveLog) Handle(context.Context, slog.Record) error { panic("the logger's own fault") }
func (l explosiveLog) WithAttrs([]slog.Attr) slog.Handler      { return l }
func (l explosiveLog) WithGroup(string) slog.Handler           { return l }

// A Key, and a function of AfterFailure, that panic cost their task an attempt as
// a handler does, and what it holds already is given back.
func TestRule_functionsPanic(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var panics atomic.Bool
		panics.Store(true)
		explode := func(parts ...string) []string {
			if panics.Load() {
				panic("the rule's own fault")
			}
			return parts
		}
		first := automutex.Rule{Task: "work", Name: "first", Scope: "first", TTL: time.Hour, Busy: automutex.Retry}
		for name, second := range map[string]automutex.Rule{
			"key":           {Key: func(context.Context, *asynq.Task) ([]string, error) { return explode("1"), nil }, Busy: automutex.Retry},
			"after failure": {Busy: automutex.AfterFailure(func(_ context.Context, _ *asynq.Task, busy *automutex.BusyError) error { explode(); return busy })},
		} {
			second.Task, second.Name, second.Scope = "work", "second", "second"
			r := start(t, s, setup{rules: []automutex.Rule{first, second}})
			held := r.take("second")
			id := r.enqueue("work", nil)
			if info := r.awaitRetried(id, 1); !strings.Contains(info.LastErr, "the rule's own fault") {
				t.Errorf("%s: the last error is %q", name, info.LastErr)
			}
			if r.locked("first") {
				t.Errorf("%s: the first lock stayed taken", name)
			}
			r.free(held)
			panics.Store(false)
			r.rerun(id)
			r.finishSpent(id, 1)
			panics.Store(true)
			r.stop()
		}
	})
}

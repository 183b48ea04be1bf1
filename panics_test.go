package automutex

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// Functions of the user's that panic. No lease stays behind, and no goroutine of
// the Guard's own ends the program.

// explosion is one way to have an event observed: the rules, and what happens to
// a task of type "work" whose payload is one.
type explosion struct {
	rules   []Rule
	workers int
	refuse  bool // Redis refuses every script
	do      func(r *rig)
}

// ranInto enqueues a task and waits until Observe was called with kind for it.
func ranInto(kind EventKind, options ...asynq.Option) func(r *rig) {
	return func(r *rig) { r.awaitEvent(kind, r.enqueue("work", one, options...)) }
}

// whileTaken is ranInto with the key held by somebody else until then.
func whileTaken(kind EventKind) func(r *rig) {
	return func(r *rig) {
		held := r.take("work", "1")
		ranInto(kind)(r)
		r.free(held)
	}
}

func explosions() map[EventKind][]explosion {
	long := Rule{Task: "work", On: []string{"id"}, TTL: time.Hour}
	with := func(change func(*Rule)) []Rule {
		rule := long
		change(&rule)
		return []Rule{rule}
	}
	policy := func(p Policy) []Rule { return with(func(r *Rule) { r.Busy = p }) }
	inLine := func(p Policy) []Rule { return with(func(r *Rule) { r.Busy, r.Wait = p, time.Hour }) }
	passesOn := func(kind EventKind) func(r *rig) {
		return func(r *rig) {
			held := r.take("work", "1")
			id := r.enqueue("work", one)
			r.awaitEvent(EventWaiting, id)
			r.awaitLine(1, "work", "1")
			r.free(held)
			r.awaitEvent(kind, id)
		}
	}
	running := func(kind EventKind, then func(*rig, *run)) func(r *rig) {
		return func(r *rig) {
			id := r.enqueue("work", one)
			then(r, r.stage.next(r.t))
			r.awaitEvent(kind, id)
		}
	}
	return map[EventKind][]explosion{
		EventAcquired: {{rules: []Rule{long}, do: ranInto(EventAcquired)}, {rules: inLine(Replace), do: ranInto(EventAcquired)},
			{rules: inLine(Park), do: passesOn(EventAcquired)}, {rules: inLine(Retry), do: passesOn(EventAcquired)}},
		EventReleased: {{rules: []Rule{long}, do: running(EventReleased, func(_ *rig, on *run) { on.returns(nil) })}, {
			rules: []Rule{long, {Task: "work", Name: "second", Scope: "second", TTL: time.Hour}, {Task: "work", Name: "third", Scope: "third", TTL: time.Hour}},
			do:    running(EventReleased, func(_ *rig, on *run) { on.returns(nil) }),
		}},
		EventWaiting: {{rules: inLine(Retry), do: whileTaken(EventWaiting)}, {rules: inLine(Park), do: whileTaken(EventWaiting)}, {rules: inLine(Replace), do: whileTaken(EventWaiting)}},
		EventWaited:  {{rules: inLine(Retry), do: passesOn(EventWaited)}, {rules: inLine(Park), do: passesOn(EventWaited)}, {rules: inLine(Replace), do: passesOn(EventWaited)}},
		EventBusy:    {{rules: policy(Retry), do: whileTaken(EventBusy)}, {rules: policy(Allow), do: whileTaken(EventBusy)}, {rules: policy(Park), workers: 1, do: whileTaken(EventBusy)}},
		EventSkipped: {{rules: policy(Skip), do: whileTaken(EventSkipped)}},
		EventRetried: {{rules: policy(Retry), do: whileTaken(EventRetried)}},
		EventParked:  {{rules: policy(Park), workers: 1, do: whileTaken(EventParked)}},
		EventReplaced: {{rules: inLine(Replace), do: func(r *rig) {
			old := r.enqueue("work", one)
			run := r.stage.next(r.t)
			r.enqueue("work", one)
			run.awaitEnd(r.t)
			run.returns(context.Cause(run.ctx))
			r.awaitEvent(EventReplaced, old)
			r.stage.next(r.t)
		}}},
		EventLost: {{rules: []Rule{long}, do: running(EventLost, func(r *rig, on *run) {
			r.drop("work", "1")
			on.returns(nil)
		})}, {rules: with(func(r *Rule) { r.MaxHold = 50 * time.Millisecond }), do: running(EventLost, func(r *rig, on *run) { on.awaitEnd(r.t) })}},
		EventOverdue:      {{rules: []Rule{long}, do: running(EventOverdue, func(_ *rig, on *run) { on.cut() })}},
		EventKeyError:     {{rules: []Rule{long}, do: func(r *rig) { r.awaitEvent(EventKeyError, r.enqueue("work", "{}")) }}},
		EventBackendError: {{rules: []Rule{long}, refuse: true, do: ranInto(EventBackendError)}, {rules: inLine(Replace), refuse: true, do: ranInto(EventBackendError)}},
	}
}

func TestObserve_panics(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for kind, ways := range explosions() {
			for i, way := range ways {
				t.Run(fmt.Sprintf("%s %d", kind, i), func(t *testing.T) {
					t.Parallel()
					for i := range way.rules { // several need a Name and a Scope each
						if len(way.rules) > 1 && way.rules[i].Scope == "" {
							way.rules[i].Scope, way.rules[i].Name = "work", "first"
						}
					}
					locks := s.Client(t)
					if way.refuse {
						hook := &redistest.FailHook{}
						hook.Before(func(cmd redis.Cmder) error {
							if strings.HasPrefix(cmd.Name(), "eval") || cmd.Name() == "set" {
								return redistest.ReplyError("ERR not now")
							}
							return nil
						})
						locks.AddHook(hook)
					}
					r := start(t, s, setup{rules: way.rules, workers: way.workers, locks: locks, guarded: panicOn(kind)})
					way.do(r)
					r.stage.end()
					redistest.Eventually(t, patience, func() bool {
						return !r.locked("work", "1") && !r.locked("second") && !r.locked("third")
					}, "no lease is left")
					r.stop()
					if got, want := len(r.seen.list(EventReleased)), len(r.seen.list(EventAcquired)); kind != EventAcquired && got != want {
						t.Errorf("%d leases are told of as acquired, %d as released", want, got)
					}
				})
			}
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
func panicOn(kind EventKind) func(*Config) {
	return func(c *Config) {
		observe := c.Observe
		c.Observe = func(ctx context.Context, e Event) {
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
			rules:   []Rule{{Task: "work", On: []string{"id"}, Busy: Skip}},
			guarded: func(c *Config) { c.Logger = slog.New(explosiveLog{}) },
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
		first := Rule{Task: "work", Name: "first", Scope: "first", TTL: time.Hour}
		for name, second := range map[string]Rule{
			"key":           {Key: func(context.Context, *asynq.Task) ([]string, error) { return explode("1"), nil }},
			"after failure": {Busy: AfterFailure(func(_ context.Context, _ *asynq.Task, busy *BusyError) error { explode(); return busy })},
		} {
			second.Task, second.Name, second.Scope = "work", "second", "second"
			r := start(t, s, setup{rules: []Rule{first, second}})
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

// finishSpent has the next run, that of the task, return nil, and checks how many
// attempts are spent.
func (r *rig) finishSpent(id string, spent int) {
	r.t.Helper()
	r.stage.next(r.t).returns(nil)
	if info := r.await(id, asynq.TaskStateCompleted); info.Retried != spent {
		r.t.Errorf("%s: %d attempts spent, want %d", id, info.Retried, spent)
	}
}

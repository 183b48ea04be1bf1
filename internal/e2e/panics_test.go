package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Functions of the user's that panic. No lease stays behind, and no goroutine of
// the Guard's own ends the program.

// explosion is one way to have an event observed: the rules, and what happens to
// a task of type "work" whose payload is one.
type explosion struct {
	rules   []automutex.Rule
	workers int
	refuse  bool // Redis refuses every script
	do      func(r *rig)
}

// ranInto enqueues a task and waits until Observe was called with kind for it.
func ranInto(kind automutex.EventKind, options ...asynq.Option) func(r *rig) {
	return func(r *rig) { r.awaitEvent(kind, r.enqueue("work", one, options...)) }
}

// whileTaken is ranInto with the key held by somebody else until then.
func whileTaken(kind automutex.EventKind) func(r *rig) {
	return func(r *rig) {
		held := r.take("work", "1")
		ranInto(kind)(r)
		r.free(held)
	}
}

func explosions() map[automutex.EventKind][]explosion {
	long := automutex.Rule{Task: "work", On: []string{"id"}, TTL: time.Hour, Busy: automutex.Retry}
	with := func(change func(*automutex.Rule)) []automutex.Rule {
		rule := long
		change(&rule)
		return []automutex.Rule{rule}
	}
	policy := func(p automutex.Policy) []automutex.Rule { return with(func(r *automutex.Rule) { r.Busy = p }) }
	inLine := func(p automutex.Policy) []automutex.Rule {
		return with(func(r *automutex.Rule) { r.Busy, r.Wait = p, time.Hour })
	}
	passesOn := func(kind automutex.EventKind) func(r *rig) {
		return func(r *rig) {
			held := r.take("work", "1")
			id := r.enqueue("work", one)
			r.awaitEvent(automutex.EventWaiting, id)
			r.awaitLine(1, "work", "1")
			r.free(held)
			r.awaitEvent(kind, id)
		}
	}
	running := func(kind automutex.EventKind, then func(*rig, *run)) func(r *rig) {
		return func(r *rig) {
			id := r.enqueue("work", one)
			then(r, r.stage.next(r.t))
			r.awaitEvent(kind, id)
		}
	}
	return map[automutex.EventKind][]explosion{
		automutex.EventAcquired: {{rules: []automutex.Rule{long}, do: ranInto(automutex.EventAcquired)}, {rules: inLine(automutex.Replace), do: ranInto(automutex.EventAcquired)},
			{rules: inLine(automutex.Park), do: passesOn(automutex.EventAcquired)}, {rules: inLine(automutex.Retry), do: passesOn(automutex.EventAcquired)}},
		automutex.EventReleased: {{rules: []automutex.Rule{long}, do: running(automutex.EventReleased, func(_ *rig, on *run) { on.returns(nil) })}, {
			rules: []automutex.Rule{long, {Task: "work", Name: "second", Scope: "second", TTL: time.Hour, Busy: automutex.Retry}, {Task: "work", Name: "third", Scope: "third", TTL: time.Hour, Busy: automutex.Retry}},
			do:    running(automutex.EventReleased, func(_ *rig, on *run) { on.returns(nil) }),
		}},
		automutex.EventWaiting: {{rules: inLine(automutex.Retry), do: whileTaken(automutex.EventWaiting)}, {rules: inLine(automutex.Park), do: whileTaken(automutex.EventWaiting)}, {rules: inLine(automutex.Replace), do: whileTaken(automutex.EventWaiting)}},
		automutex.EventWaited:  {{rules: inLine(automutex.Retry), do: passesOn(automutex.EventWaited)}, {rules: inLine(automutex.Park), do: passesOn(automutex.EventWaited)}, {rules: inLine(automutex.Replace), do: passesOn(automutex.EventWaited)}},
		automutex.EventBusy:    {{rules: policy(automutex.Retry), do: whileTaken(automutex.EventBusy)}, {rules: policy(automutex.Allow), do: whileTaken(automutex.EventBusy)}, {rules: policy(automutex.Park), workers: 1, do: whileTaken(automutex.EventBusy)}},
		automutex.EventSkipped: {{rules: policy(automutex.Skip), do: whileTaken(automutex.EventSkipped)}},
		automutex.EventRetried: {{rules: policy(automutex.Retry), do: whileTaken(automutex.EventRetried)}},
		automutex.EventParked:  {{rules: policy(automutex.Park), workers: 1, do: whileTaken(automutex.EventParked)}},
		automutex.EventReplaced: {{rules: inLine(automutex.Replace), do: func(r *rig) {
			old := r.enqueue("work", one)
			run := r.stage.next(r.t)
			r.enqueue("work", one)
			run.awaitEnd(r.t)
			run.returns(context.Cause(run.ctx))
			r.awaitEvent(automutex.EventReplaced, old)
			r.stage.next(r.t)
		}}},
		automutex.EventLost: {{rules: []automutex.Rule{long}, do: running(automutex.EventLost, func(r *rig, on *run) {
			r.drop("work", "1")
			on.returns(nil)
		})}, {rules: with(func(r *automutex.Rule) { r.MaxHold = 50 * time.Millisecond }), do: running(automutex.EventLost, func(r *rig, on *run) { on.awaitEnd(r.t) })}},
		automutex.EventOverdue:      {{rules: []automutex.Rule{long}, do: running(automutex.EventOverdue, func(_ *rig, on *run) { on.cut() })}},
		automutex.EventKeyError:     {{rules: []automutex.Rule{long}, do: func(r *rig) { r.awaitEvent(automutex.EventKeyError, r.enqueue("work", "{}")) }}},
		automutex.EventBackendError: {{rules: []automutex.Rule{long}, refuse: true, do: ranInto(automutex.EventBackendError)}, {rules: inLine(automutex.Replace), refuse: true, do: ranInto(automutex.EventBackendError)}},
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
					if got, want := len(r.seen.list(automutex.EventReleased)), len(r.seen.list(automutex.EventAcquired)); kind != automutex.EventAcquired && got != want {
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

// finishSpent has the next run, that of the task, return nil, and checks how many
// attempts are spent.
func (r *rig) finishSpent(id string, spent int) {
	r.t.Helper()
	r.stage.next(r.t).returns(nil)
	if info := r.await(id, asynq.TaskStateCompleted); info.Retried != spent {
		r.t.Errorf("%s: %d attempts spent, want %d", id, info.Retried, spent)
	}
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// The limit of a task's key is what LimitOf says, and an operator's limit wins.
func TestLimitOf(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, LimitField: &automutex.LimitField{Path: "plan.max", Default: 1, Most: 2}, Busy: automutex.Skip}}})
		larger := `{"id": 1, "plan": {"max": 7}}`
		r.enqueue("work", larger)
		r.enqueue("work", larger)
		first, second := r.stage.next(t), r.stage.next(t)
		r.awaitEvent(automutex.EventSkipped, r.enqueue("work", larger))
		r.enqueue("work", `{"id": 2}`)
		third := r.stage.next(t)
		r.awaitEvent(automutex.EventSkipped, r.enqueue("work", `{"id": 2}`))
		redistest.Must(t, r.guard.Controls().SetLimit(t.Context(), "work|1", 3, ""))
		r.enqueue("work", larger)
		fourth := r.stage.next(t)
		for _, run := range []*run{first, second, third, fourth} {
			run.returns(nil)
		}
	})
}

// What LimitOf answers with an error is treated as the error of a Key.
func TestLimitOf_errors(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		away := errors.New("the plans are away")
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, LimitOf: func(_ context.Context, t *asynq.Task) (int, error) {
			switch {
			case strings.Contains(string(t.Payload()), "away"):
				return 0, away
			case strings.Contains(string(t.Payload()), "free"):
				return 0, automutex.NoLock
			}
			return 0, nil
		}, Busy: automutex.Retry}}})
		if info := r.await(r.enqueue("work", `{"id": 1}`), asynq.TaskStateArchived); !strings.Contains(info.LastErr, "LimitOf gave 0") {
			t.Errorf("a limit of 0: %q", info.LastErr)
		}
		if info := r.awaitRetried(r.enqueue("work", `{"id": "away"}`), 0); !strings.Contains(info.LastErr, away.Error()) {
			t.Errorf("an error: %q", info.LastErr)
		}
		r.stage.none(t)
		id := r.enqueue("work", `{"id": "free"}`)
		r.stage.next(t).returns(nil)
		r.await(id, asynq.TaskStateCompleted)
		if kinds := r.seen.kindsOf(id); len(kinds) > 0 {
			t.Errorf("NoLock: events %q", kinds)
		}
	})
}

// A Key, LimitOf or Decode whose error wraps asynq.SkipRetry has its task archived, and one
// with asynq.RevokeTask has it dropped, as from a handler; also on the last attempt, which
// does not wait.
func TestKeyFailure_skipRetry(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	noPlan := fmt.Errorf("no plan: %w", asynq.SkipRetry)
	fails := func(t *asynq.Task) error {
		if t.Type() == "revoke" {
			return fmt.Errorf("no plan: %w", asynq.RevokeTask)
		}
		return noPlan
	}
	for function, rule := range map[string]automutex.Rule{
		"the rule's LimitOf": {LimitOf: func(_ context.Context, t *asynq.Task) (int, error) { return 0, fails(t) }, Busy: automutex.Retry},
		"the rule's Key":     {Key: func(_ context.Context, t *asynq.Task) ([]string, error) { return nil, fails(t) }, Busy: automutex.Retry},
		"Config.Decode":      {On: []string{"id"}, Busy: automutex.Retry},
	} {
		archived, dropped := rule, rule
		archived.Task, dropped.Task = "work", "revoke"
		r := start(t, redistest.Mini(t), setup{rules: []automutex.Rule{archived, dropped}, guarded: func(c *automutex.Config) {
			if len(rule.On) > 0 {
				c.Decode = func(t *asynq.Task) ([]byte, error) { return nil, fails(t) }
			}
		}})
		for _, attempts := range []int{0, 3} {
			id := r.enqueue("work", `{"id": 1}`, asynq.MaxRetry(attempts))
			want := `automutex: rule "work": ` + function + " failed: no plan"
			if info := r.await(id, asynq.TaskStateArchived); !strings.Contains(info.LastErr, want) || info.Retried > 0 {
				t.Errorf("%d retries left: %d attempts, %q; want %q", attempts, info.Retried, info.LastErr, want)
			}
			if event := r.awaitEvent(automutex.EventKeyError, id); !errors.Is(event.Err, noPlan) {
				t.Errorf("%s: %+v", function, event)
			}
			if kinds := r.seen.kindsOf(id); len(kinds) != 1 {
				t.Errorf("%s: events %q, want the one", function, kinds)
			}
			r.awaitDropped(r.enqueue("revoke", `{"id": 1}`, asynq.MaxRetry(attempts)))
		}
		r.stage.none(t)
		if log := r.log.Text(slog.LevelWarn); !strings.Contains(log, "it is archived") || !strings.Contains(log, "it is dropped") || strings.Contains(log, "no *KeyError") {
			t.Errorf("%s: logged %s", function, log)
		}
	}
}

// The log says once which function of which rule fails, and that it works again.
func TestKeyFailure_logNamesTheFunction(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	for function, fails := range map[string]func(c *automutex.Config, fail func() error){
		"the rule's LimitOf": func(c *automutex.Config, fail func() error) {
			c.Rules[0].LimitOf = func(context.Context, *asynq.Task) (int, error) { return 1, fail() }
		},
		"the rule's Key": func(c *automutex.Config, fail func() error) {
			c.Rules[0].Key = func(context.Context, *asynq.Task) ([]string, error) { return []string{"k"}, fail() }
		},
		"Config.Decode": func(c *automutex.Config, fail func() error) {
			c.Rules[0].On = []string{"id"}
			c.Decode = func(t *asynq.Task) ([]byte, error) { return t.Payload(), fail() }
		},
	} {
		var works atomic.Bool
		r := start(t, redistest.Mini(t), setup{rules: []automutex.Rule{{Task: "work", Name: "50%d", Busy: automutex.Retry}}, guarded: func(c *automutex.Config) {
			fails(c, func() error {
				if works.Load() {
					return nil
				}
				return errors.New("the plans are away")
			})
		}})
		id := r.enqueue("work", one)
		r.awaitRetried(id, 0)
		works.Store(true)
		r.rerun(id)
		r.finish(id)
		log := r.log.Text(slog.LevelInfo)
		for _, want := range []string{
			`automutex: rule "50%d": ` + function + " fails with an error that is no *KeyError",
			`automutex: rule "50%d": ` + function + " works again",
		} {
			if strings.Count(log, want) != 1 {
				t.Errorf("want %q once in\n%s", want, log)
			}
		}
	}
}

func TestLimitOf_mistakes(t *testing.T) {
	t.Parallel()
	of, field := func(context.Context, *asynq.Task) (int, error) { return 1, nil }, &automutex.LimitField{Path: "n", Default: 1}
	for want, rules := range map[string][]automutex.Rule{
		"LimitOf: excludes Limit":                         {{Task: "work", Limit: 2, LimitOf: of, Busy: automutex.Retry}},
		"LimitField: excludes Limit, which is 2":          {{Task: "work", Limit: 2, LimitField: field}},
		"LimitField: excludes LimitOf":                    {{Task: "work", LimitOf: of, LimitField: field}},
		`rule "work" (Rules[0]): LimitField: "" is empty`: {{Task: "work", LimitField: &automutex.LimitField{Default: 1}}},
		`LimitField: "." is the whole payload`:            {{Task: "work", LimitField: &automutex.LimitField{Path: "."}}},
		"Most is -2":                                      {{Task: "work", LimitField: &automutex.LimitField{Path: "max", Most: -2}}},
		"LimitField: is set here or in":                   {{Task: "a", Scope: "s", LimitField: field}, {Task: "b", Scope: "s", Limit: 3}},
		"InOrder: needs a Limit of 1":                     {{Task: "work", InOrder: true, LimitField: field}},
		`LimitField: "$.a"`:                               {{Task: "work", LimitField: &automutex.LimitField{Path: "$.a", Default: 1, Most: 2}, Busy: automutex.Retry}},
		"none may be below 0":                             {{Task: "work", LimitField: &automutex.LimitField{Path: "max", Default: -1, Most: 2}, Busy: automutex.Retry}},
		"which is more than Most, 2":                      {{Task: "work", LimitField: &automutex.LimitField{Path: "max", Default: 9, Most: 2}, Busy: automutex.Retry}},
		"one scope has one Limit":                         {{Task: "a", Scope: "s", LimitOf: of, Busy: automutex.Retry}, {Task: "b", Scope: "s", Busy: automutex.Retry}},
		"Fence: needs a Limit of 1":                       {{Task: "work", LimitOf: of, Fence: true, Busy: automutex.Retry}},
		"Fence: needs a Limit":                            {{Task: "work", Limit: 2, Fence: true, Busy: automutex.Retry}},
		"one scope has one Fence":                         {{Task: "a", Scope: "s", Fence: true, Busy: automutex.Retry}, {Task: "b", Scope: "s", Busy: automutex.Retry}},
	} {
		if _, err := automutex.New(redistest.Mini(t).Client(t), automutex.Config{Rules: rules}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// What takes turns in the asynq scenarios: this library's middleware with three
// rules, and each peer in a middleware as a careful user would write it, in two
// ways. The busy task goes back to asynq, as no failure and for a second; or it
// waits in its worker.
const (
	noLocks   = "no locks"
	guardedBy = "automutex, "
	returns   = ", goes back"
	waitsFor  = ", waits in the worker"
)

// goesBack is how long a busy task is away where nobody calls it: asynq counts
// in seconds, and the server of these scenarios looks for such tasks each second
// (5 s by default).
const goesBack = time.Second

// shop is one asynq server with what makes its tasks take turns.
type shop struct {
	handler asynq.Handler
	config  asynq.Config
}

// ware is the payload of a task: what it is keyed on, and its work.
type ware struct {
	Key  string
	Work time.Duration
	// Of a load in order: how many of the key were enqueued before, and how often it fails.
	Turn, Fails int `json:",omitempty"`
}

// outfit has the entry's locks around a handler.
func outfit(entry string, c conf, config asynq.Config, work asynq.Handler) *shop {
	switch {
	case entry == noLocks:
		return &shop{work, config}
	case strings.HasPrefix(entry, guardedBy):
		return guardedWith(automutex.Rule{}, entry, c, config, work)
	case strings.HasSuffix(entry, returns):
		return homemade(strings.TrimSuffix(entry, returns), c, config, work, false)
	default:
		return homemade(strings.TrimSuffix(entry, waitsFor), c, config, work, true)
	}
}

// rules are this library's ways to deal with a busy key.
var rules = map[string]automutex.Rule{
	"Retry": {Busy: automutex.Retry},
	"Park":  {},
	"Wait":  {Busy: automutex.Retry, Wait: time.Hour},
	inOrder: {InOrder: true},
}

const (
	inOrder = "InOrder"
	atFront = ", WakeAtFront"
)

// guardedWith has a rule with the policy of an entry around a handler.
func guardedWith(rule automutex.Rule, entry string, c conf, config asynq.Config, work asynq.Handler) *shop {
	guard := get(automutex.New(connect(c), configOf(rule, entry)))
	return &shop{guard.Middleware(work), guard.ServerConfig(config)}
}

// configOf has a rule with the policy of an entry.
func configOf(rule automutex.Rule, entry string) automutex.Config {
	name, front := strings.CutSuffix(strings.TrimPrefix(entry, guardedBy), atFront)
	policy, ok := rules[name]
	if !ok {
		panic(fmt.Errorf("bench: there is no rule for %q", entry))
	}
	rule.Busy, rule.Wait, rule.InOrder = policy.Busy, policy.Wait, policy.InOrder
	rule.Task, rule.On = "order", []string{"Key"}
	return automutex.Config{Rules: []automutex.Rule{rule}, WakeAtFront: front, Logger: slog.New(slog.DiscardHandler)}
}

func homemade(name string, c conf, config asynq.Config, work asynq.Handler, wait bool) *shop {
	contender := contenderNamed(name)
	l := get(contender.open(c))
	config.IsFailure = func(err error) bool { return !errors.Is(err, errBusy) }
	config.RetryDelayFunc = func(n int, err error, t *asynq.Task) time.Duration {
		if errors.Is(err, errBusy) {
			return goesBack
		}
		return asynq.DefaultRetryDelayFunc(n, err, t)
	}
	middleware := asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) (err error) {
		var w ware
		if err := json.Unmarshal(t.Payload(), &w); err != nil {
			return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
		}
		h := l.handle(t.Type() + ":" + w.Key)
		take := h.try
		if wait {
			take = h.lock
		}
		got, err := take(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, got.release(context.WithoutCancel(ctx))) }()
		return work.ProcessTask(ctx, t)
	})
	return &shop{middleware, config}
}

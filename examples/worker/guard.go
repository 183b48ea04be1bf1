package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
)

// newGuard declares who takes turns: what -config says, else tasks with equal
// -on fields, of whatever type, since all rules have one Scope.
func newGuard(rdb redis.UniversalClient, opts options, prefix string, tasks []string, rec *recorder, log *slog.Logger) (*automutex.Guard, automutex.Config, error) {
	cfg := automutex.Config{Prefix: prefix}
	if opts.rules != nil {
		cfg = opts.rules.cfg
		cfg.Prefix = cmp.Or(cfg.Prefix, prefix)
		tasks = nil
	}
	busy, err := policyOf(opts)
	if err != nil {
		return nil, cfg, err
	}
	for _, task := range tasks {
		cfg.Rules = append(cfg.Rules, automutex.Rule{
			Task:  task, // "github:" is every task type that begins so
			Scope: "repository",
			On:    opts.on,
			Limit: opts.limit,
			Rate:  opts.rate,
			TTL:   opts.ttl,
			Wait:  opts.wait,
			Busy:  busy,
		})
	}
	cfg.Logger = log
	cfg.Observe = func(_ context.Context, e automutex.Event) {
		switch e.Kind {
		case automutex.EventSkipped:
			rec.skip(e.TaskID)
		case automutex.EventReplaced:
			rec.replace(e.TaskID)
		case automutex.EventParked:
			rec.park(e.TaskID)
		case automutex.EventAcquired, automutex.EventBusy, automutex.EventRetried:
			rec.back(e.TaskID, e.Waited)
		}
	}
	guard, err := automutex.New(rdb, cfg)
	return guard, cfg, err
}

// policyOf reads -busy and -retry-in.
func policyOf(opts options) (automutex.Policy, error) {
	if opts.retryIn > 0 {
		return automutex.RetryIn(opts.retryIn), nil
	}
	for _, p := range []automutex.Policy{
		automutex.Retry, automutex.Skip, automutex.Archive, automutex.Fail,
		automutex.Allow, automutex.Park, automutex.Replace,
	} {
		if p.String() == opts.busy {
			return p, nil
		}
	}
	return automutex.Policy{}, fmt.Errorf("-busy %q: no such policy; want retry, skip, archive, fail, allow, park or replace", opts.busy)
}

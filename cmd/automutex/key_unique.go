package main

import (
	"context"
	"errors"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/claim"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/unique"
)

// once is the unique rule that applies to a task, and the key that it gives.
type once struct {
	Rule  string `json:"unique"`
	Key   string `json:"key"`
	Queue string `json:"queue"`
	Until string `json:"until"`
	// Name is what keeps duplicates out: with UntilDone and Reject or Join the ID of the task,
	// else the Redis key of its claim.
	Name string `json:"redis"`
}

// uniqueMatch gives the unique rule that a producer applies to a task; nil when there is
// none, or the task lacks a field of an Optional one. The error is that no key can be made: a producer then enqueues nothing.
func uniqueMatch(ctx context.Context, cfg unique.Config, t *asynq.Task) (*once, error) {
	guarded := automutex.Config{Prefix: cfg.Prefix, HashKeys: cfg.HashKeys}
	for _, r := range cfg.Rules {
		guarded.Rules = append(guarded.Rules, automutex.Rule{Task: r.Task, On: r.On, OnHeaders: r.OnHeaders, Optional: r.Optional, Scope: r.Scope})
	}
	places := inspect.RulesFor(guarded.Rules, t.Type())
	if len(places) == 0 {
		return nil, nil //nolint:nilnil // none is an answer
	}
	rule := cfg.Rules[places[0]] // there is one unique rule for each Task
	names, err := keys(ctx, guarded, t)
	if err != nil {
		return nil, err
	}
	switch {
	case len(names) == 0: // the rule is Optional, and the task lacks a field
		return nil, nil //nolint:nilnil // as above
	case len(names) != 1:
		return nil, errors.New("a unique rule makes one key, not several")
	}
	found := &once{
		Rule: rule.Task, Key: inspect.InBraces(names[0]), Queue: orDefault(rule.Queue, "", "default"),
		Until: printable.Timed(strings.TrimPrefix(rule.Until.String(), "until ")), Name: names[0] + ":claim",
	}
	if rule.Until == unique.UntilDone && (rule.Duplicate == unique.Reject || rule.Duplicate == unique.Join) {
		found.Name = claim.TaskID(names[0])
	}
	return found, nil
}

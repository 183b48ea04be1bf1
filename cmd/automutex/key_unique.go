package main

import (
	"context"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inspect"
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
	rules, guarded := inspect.UniqueRules(cfg.Rules)
	maker, _, err := offline(automutex.Config{Prefix: cfg.Prefix, HashKeys: cfg.HashKeys, Rules: guarded})
	if err != nil {
		return nil, err
	}
	u, err := inspect.UniqueOf(ctx, maker, rules, t)
	switch {
	case err != nil:
		return nil, &failure{exit: exitNo, err: err}
	case u == nil:
		return nil, nil //nolint:nilnil // none is an answer
	}
	return &once{Rule: u.Rule.Task, Key: inspect.InBraces(u.Key), Queue: u.Rule.Queue, Until: u.Rule.UntilShown(), Name: u.TaskID + u.Claim}, nil
}

package automutex

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/safelog"
)

// KeyMaker makes the keys of tasks as a [Guard] with the same [Config] does, but without
// Redis. It is for programs that enqueue or inspect tasks, and to check a Config. Safe
// for concurrent use. There is nothing to close.
type KeyMaker struct {
	rules  *ruleSet
	prefix string
}

// NewKeyMaker makes a KeyMaker from the fields Rules, Prefix, HashKeys and Decode of cfg.
// cfg.Logger gets the same warnings about rules as with [New]. The error joins a
// [*FieldError] for each mistake in cfg.
func NewKeyMaker(cfg Config) (*KeyMaker, error) {
	rules, notices, err := compile(cfg)
	if err != nil {
		return nil, err
	}
	log := safelog.New(cfg.Logger)
	for _, notice := range notices {
		log.Warn(notice)
	}
	return &KeyMaker{rules: rules, prefix: cfg.withDefaults().Prefix}, nil
}

// Keys returns the Redis keys of the locks that a task needs; see [Guard.Keys].
func (k *KeyMaker) Keys(ctx context.Context, t *asynq.Task) ([]string, error) {
	if t == nil {
		return nil, errors.New("automutex: Keys: the task is nil")
	}
	targets, err := k.rules.targets(ctx, t, k.prefix)
	if err != nil || len(targets) == 0 {
		return nil, err
	}
	keys := make([]string, len(targets))
	for i, target := range targets {
		keys[i] = target.key
	}
	return keys, nil
}

// joinFieldErrors joins all into one error; nil if there are none.
func joinFieldErrors(all []*FieldError) error {
	problems := make([]error, len(all))
	for i, e := range all {
		problems[i] = fmt.Errorf("automutex: %w", e)
	}
	return errors.Join(problems...)
}

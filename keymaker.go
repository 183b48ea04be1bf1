package automutex

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/safelog"
)

// KeyMaker makes the keys of tasks as a [Guard] with the same [Config] does, without
// Redis: for a program that enqueues or inspects tasks, and for checking a Config. Safe
// for concurrent use. There is nothing to close.
type KeyMaker struct {
	rules  *ruleSet
	prefix string
}

// NewKeyMaker makes a KeyMaker. Of cfg it reads Rules, Prefix, HashKeys and Decode, and
// Logger, which gets the same warnings about rules as with [New]. The error joins a
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

// Keys returns the keys of the locks that a task needs, in the order in which the task
// takes them. It returns none when no rule matches, or when the rule's Key returns
// [NoLock]. The error is or wraps a [*KeyError], or what a rule's Key or
// [Config].Decode failed with. Keys does no I/O, unless one of these does.
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

// joinFieldErrors returns nil when there are none.
func joinFieldErrors(all []*FieldError) error {
	problems := make([]error, len(all))
	for i, e := range all {
		problems[i] = fmt.Errorf("automutex: %w", e)
	}
	return errors.Join(problems...)
}

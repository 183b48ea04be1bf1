package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/spf13/cobra"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inspect"
)

// match is a rule that applies to a task, and the key that it gives.
type match struct {
	Rule string `json:"rule"`
	Key  string `json:"key"`
	Name string `json:"redis"`
}

func newKey(a *app) *cobra.Command {
	var taskType, payload string
	var headers map[string]string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "key FILE --type TYPE [--payload JSON]",
		Short: "Show the keys of a task: which rules match, and the names in Redis",
		Long: `Show the keys of a task, in the order in which they are taken: which rules of
the file match, the key of each, and its name in Redis. A unique rule that matches
follows with its queue, and with what keeps duplicates out: the ID of the task, or
the Redis key of its claim. When no rule matches, or no key can be made (the guard
archives such a task), the exit code is 1. Redis is not needed.

Where the workers hash their keys, the secret is the file's hash_keys, or the
environment variable AUTOMUTEX_HASH_KEYS where it has none.`,
		Example: `  automutex key automutex.yaml --type itunes:verify --payload '{"transaction_id": 7}'`,
		Args:    exactly(1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(taskType) == "" {
				return usage("key: --type is missing or blank: name the type of the task")
			}
			cfg, producers, err := load(args[0])
			if err != nil {
				return err
			}
			cfg.HashKeys = cmp.Or(cfg.HashKeys, os.Getenv("AUTOMUTEX_HASH_KEYS"))
			producers.HashKeys = cfg.HashKeys
			task := asynq.NewTaskWithHeaders(taskType, []byte(payload), headers)
			matches, err := matching(cmd.Context(), cfg, task)
			if err != nil {
				return err
			}
			enqueued, err := uniqueMatch(cmd.Context(), producers, task)
			switch {
			case err != nil:
				return err
			case len(matches) == 0 && enqueued == nil && len(inspect.RulesFor(cfg.Rules, taskType)) > 0:
				return no("the task lacks a field of each rule for %q, which are Optional: it runs unguarded", taskType)
			case len(matches) == 0 && enqueued == nil:
				return no("no rule matches a task of type %q: it runs unguarded", taskType)
			}
			return a.printKeys(matches, enqueued, asJSON)
		},
	}
	cmd.Flags().StringVarP(&taskType, "type", "t", "", "the type of the task")
	cmd.Flags().StringVar(&payload, "payload", "", "its payload")
	cmd.Flags().StringToStringVar(&headers, "header", nil, "its headers, name=value")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object for each rule")
	return cmd
}

// printKeys prints what applies to a task; enqueued is nil where no unique rule does.
func (a *app) printKeys(matches []match, enqueued *once, asJSON bool) error {
	if asJSON {
		for _, m := range matches {
			if err := printJSON(a.out, m); err != nil {
				return err
			}
		}
		if enqueued != nil {
			return printJSON(a.out, enqueued)
		}
		return nil
	}
	if len(matches) > 0 {
		t := newTable(a.out, "RULE", "KEY", "REDIS")
		for _, m := range matches {
			t.row(m.Rule, m.Key, m.Name)
		}
		if err := t.flush(); err != nil || enqueued == nil {
			return err
		}
	} else {
		fmt.Fprintln(a.out, "no rule guards it: its handlers may run at once")
	}
	t := newTable(a.out, "UNIQUE", "KEY", "QUEUE", "UNTIL", "REDIS")
	t.row(enqueued.Rule, enqueued.Key, enqueued.Queue, enqueued.Until, enqueued.Name)
	fmt.Fprintln(a.out)
	return t.flush()
}

// matching gives the rules that lock a task, in the order in which their
// locks are taken.
func matching(ctx context.Context, cfg automutex.Config, t *asynq.Task) ([]match, error) {
	all, err := keys(ctx, cfg, t)
	if err != nil {
		return nil, err
	}
	var matches []match
	for _, i := range inspect.RulesFor(cfg.Rules, t.Type()) {
		one := cfg
		one.Rules = cfg.Rules[i : i+1]
		its, err := keys(ctx, one, t)
		if err != nil {
			return nil, err
		}
		if len(its) > 0 { // none: the rule is Optional, and the task lacks a field
			matches = append(matches, match{Rule: inspect.RuleName(cfg.Rules, i), Key: inspect.InBraces(its[0]), Name: its[0]})
		}
	}
	slices.SortStableFunc(matches, func(a, b match) int { return slices.Index(all, a.Name) - slices.Index(all, b.Name) })
	return matches, nil
}

// keys makes the keys of a task.
func keys(ctx context.Context, cfg automutex.Config, t *asynq.Task) ([]string, error) {
	maker, _, err := offline(cfg)
	if err != nil {
		return nil, err
	}
	keys, err := maker.Keys(ctx, t)
	if err != nil {
		return nil, &failure{exit: exitNo, err: err}
	}
	return keys, nil
}

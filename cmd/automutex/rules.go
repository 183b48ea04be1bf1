package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/spf13/cobra"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/config"
	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/doctor"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/unique"
)

// load reads a file of rules. Its secret is that of the environment if it has none; the prefix of a flag comes first.
func (a *app) load(cmd *cobra.Command, file string) (automutex.Config, unique.Config, error) {
	cfg, once, err := config.Load(file)
	if err != nil {
		return cfg, once, no("%w", err)
	}
	cfg.HashKeys = cmp.Or(cfg.HashKeys, os.Getenv(hashKeysEnv))
	if !cmd.Flags().Changed("prefix") {
		a.conn.prefix = cmp.Or(cfg.Prefix, a.conn.prefix)
	}
	cfg.Prefix = a.conn.prefix
	once.HashKeys, once.Prefix = cfg.HashKeys, cfg.Prefix
	return cfg, once, nil
}

func newSchema(a *app) *cobra.Command {
	return command("schema", `Print the JSON Schema of configuration files

For editors that complete and check YAML. Save it, and name it in the first line of a file:

  automutex schema > automutex.schema.json
  # yaml-language-server: $schema=automutex.schema.json

The schema is looser than "automutex check". Redis is not needed.`, cobra.NoArgs, func(*cobra.Command, []string) error {
		_, err := a.out.Write(config.Schema())
		return err
	})
}

func newCheck(a *app) *cobra.Command {
	return command("check FILE", `Check a configuration file

Each mistake is a line on stderr, as file:line:column: text, and the exit code is then 1. What
is allowed but may surprise is a note. Redis is not needed.`, cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		cfg, once, err := a.load(cmd, args[0])
		if err != nil {
			return err
		}
		var logged notebook
		cfg.Logger = slog.New(&logged)
		if _, err := automutex.NewKeyMaker(cfg); err != nil {
			return no("%w", err)
		}
		if err := a.printRules(cfg.Rules, once.Rules); err != nil {
			return err
		}
		for _, note := range append(logged.notes, unseenChanges(cfg.Rules, once.Rules)...) {
			fmt.Fprintf(a.out, "note: %s\n", printable.Text(strings.TrimPrefix(note, "automutex: ")))
		}
		return a.say("%s: no mistakes; %s, %s\n", printable.Text(args[0]), printable.Count(len(cfg.Rules), "rule"),
			printable.Count(len(once.Rules), "unique rule"))
	})
}

// unseenChanges names the tasks that are enqueued until they start, and may be skipped instead.
func unseenChanges(rules []automutex.Rule, once []unique.Rule) (notes []string) {
	for _, o := range once {
		for _, r := range rules {
			if o.Until == unique.UntilStart && r.Busy == automutex.Skip && strings.HasPrefix(o.Task, r.Task) {
				notes = append(notes, fmt.Sprintf("unique rule %q: Until: start, and rule %q skips: no run may see the change "+
					"that a skipped task stands for; use another policy than skip, or until: done", o.Task, cmp.Or(r.Name, r.Task)))
			}
		}
	}
	return notes
}

func (a *app) printRules(rules []automutex.Rule, once []unique.Rule) error {
	err := printAll(a, inspect.Describe(rules), []string{"RULE", "TASK", "KEY", "LIMIT", "TTL", "WAIT", "BUSY"},
		func(r fleet.Rule) [][]string {
			wait := "-"
			if r.Wait != "" && r.Busy != automutex.Park.String() { // where it has no effect
				wait = r.Wait
			}
			busy := strings.Join(slices.Concat([]string{r.Busy}, r.Shares, r.Also), "; ")
			return [][]string{{r.Name, r.Task, r.KeyText(), r.Limit, r.TTL, wait, busy}}
		})
	if err != nil || len(once) == 0 {
		return err
	}
	if len(rules) > 0 {
		fmt.Fprintln(a.out)
	}
	return printAll(a, once, []string{"UNIQUE", "QUEUE", "KEY", "UNTIL", "DUPLICATE"}, func(r unique.Rule) [][]string {
		key := inspect.Describe([]automutex.Rule{guarded(r)})[0].KeyText()
		until := strings.TrimPrefix(r.Until.String(), "until ")
		return [][]string{{r.Task, cmp.Or(r.Queue, "default"), key, printable.Timed(until),
			printable.Timed(r.Duplicate.String())}}
	})
}

// guarded is a rule that makes the keys of a unique one.
func guarded(r unique.Rule) automutex.Rule {
	return automutex.Rule{Task: r.Task, On: r.On, OnHeaders: r.OnHeaders, Key: r.Key, Optional: r.Optional,
		Payload: r.Payload, Scope: r.Scope}
}

// notebook keeps messages.
type notebook struct {
	slog.Handler // nil: the two below are called
	notes        []string
}

func (n *notebook) Enabled(context.Context, slog.Level) bool { return true }

func (n *notebook) Handle(_ context.Context, r slog.Record) error {
	n.notes = append(n.notes, r.Message)
	return nil
}

func newKey(a *app) *cobra.Command {
	var taskType, payload string
	var headers map[string]string
	cmd := a.online("key FILE --type TYPE [--payload JSON]", `Show the keys of a task: which rules match, and the names in Redis

The locks are taken in this order. Of a unique rule the last column is what keeps duplicates out:
the ID of the task, or the Redis key of its claim. When no rule matches, or no key can be made
(the guard archives such a task), the exit code is 1. Redis is not needed. If the file has no
hash_keys, the secret is AUTOMUTEX_HASH_KEYS of the environment.`, cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		if strings.TrimSpace(taskType) == "" {
			return usage("key: --type is missing or blank: name the type of the task")
		}
		cfg, producers, err := a.load(cmd, args[0])
		if err != nil {
			return err
		}
		task := asynq.NewTaskWithHeaders(taskType, []byte(payload), headers)
		matches, err := matching(cmd.Context(), cfg, task)
		if err != nil {
			return err
		}
		once, err := uniqueMatch(cmd.Context(), producers, task)
		if err != nil {
			return err
		}
		if matches = append(matches, once...); len(matches) == 0 {
			return no("no rule matches a task of type %q, or it lacks the fields of those that are Optional: it runs unguarded",
				taskType)
		}
		return printAll(a, matches, []string{"RULE", "KEY", "REDIS"}, func(m match) [][]string {
			return [][]string{{cmp.Or(m.Rule, "unique "+m.Unique), m.Key, m.Name}}
		})
	})
	cmd.Example = `  automutex key automutex.yaml --type itunes:verify --payload '{"transaction_id": 7}'`
	cmd.Flags().StringVarP(&taskType, "type", "t", "", "the type of the task")
	cmd.Flags().StringVar(&payload, "payload", "", "its payload")
	cmd.Flags().StringToStringVar(&headers, "header", nil, "its headers, name=value")
	return a.withJSON(cmd)
}

// match is a rule that applies to a task, and the key that it gives: one of the workers, or a unique one.
type match struct {
	Rule   string `json:"rule,omitempty"`
	Unique string `json:"unique,omitempty"`
	Key    string `json:"key"`
	Name   string `json:"redis"` // of a unique rule what keeps duplicates out

	index int // of the rule
}

// matching gives the rules that lock a task, in the order in which their locks are taken.
func matching(ctx context.Context, cfg automutex.Config, t *asynq.Task) (matches []match, err error) {
	cfg.Logger = slog.New(slog.DiscardHandler)
	inOrder, err := keysOf(ctx, cfg, t)
	if err != nil {
		return nil, err
	}
	rules, described := cfg.Rules, inspect.Describe(cfg.Rules)
	its, _ := inspect.ByTask(rules).Find(t.Type())
	for _, i := range its {
		cfg.Rules = rules[i : i+1]
		keys, err := keysOf(ctx, cfg, t)
		if err != nil {
			return nil, err
		}
		if len(keys) > 0 { // none: the rule is Optional, and the task lacks a field
			matches = append(matches, match{Rule: described[i].Name, Key: typed(cfg.Prefix, keys[0]), Name: keys[0], index: i})
		}
	}
	slices.SortStableFunc(matches, func(a, b match) int {
		return slices.Index(inOrder, a.Name) - slices.Index(inOrder, b.Name)
	})
	return matches, nil
}

// typed is the text by which a person orders something for the lock of a key: its scope and values as they are, or the
// whole key where that would be another lock's.
func typed(prefix, key string) string {
	prefix = cmp.Or(prefix, inside.DefaultPrefix)
	if text := keys.Unescape(control.Bare(key)); inspect.TypedKey(prefix, "", text) == key {
		return text
	}
	return key
}

func keysOf(ctx context.Context, cfg automutex.Config, t *asynq.Task) ([]string, error) {
	maker, err := automutex.NewKeyMaker(cfg)
	if err != nil {
		return nil, no("%w", err)
	}
	keys, err := maker.Keys(ctx, t)
	if err != nil {
		return nil, no("%w", err)
	}
	return keys, nil
}

// uniqueMatch gives the unique rule that a producer applies to a task; none if there is none, or the task lacks a field
// of an Optional one. The error is that no key can be made: a producer then enqueues nothing.
func uniqueMatch(ctx context.Context, once unique.Config, t *asynq.Task) ([]match, error) {
	cfg := automutex.Config{Prefix: once.Prefix, HashKeys: once.HashKeys}
	for _, r := range once.Rules {
		cfg.Rules = append(cfg.Rules, guarded(r))
	}
	matches, err := matching(ctx, cfg, t)
	for i, m := range matches { // one: a producer has one rule for each Task
		rule, name := once.Rules[m.index], claims.Key(m.Name)
		if rule.Until == unique.UntilDone && (rule.Duplicate == unique.Reject || rule.Duplicate == unique.Join) {
			name = claims.TaskID(m.Name)
		}
		matches[i] = match{Unique: rule.Task, Key: m.Key, Name: name}
	}
	return matches, err
}

func newDoctor(a *app) *cobra.Command {
	var rules *automutex.Config
	cmd := a.online("doctor [FILE]", `Check Redis' settings and rights, and whether rules fit the tasks

Of Redis: its version, eviction, clock, the rights of this user, keys of another program where locks stand. Of the
workers: a prefix that none has, and rules that differ, also from the FILE. What is paused, and ordered keys that do not
go on. With the
rules of the FILE, or those that the workers say they run: rules whose task nothing serves while one that is spelt
alike is served, tasks that no key can be made from, waits longer than the Timeout of tasks, and an asynq that is not
in this database.

Each finding is a line: ok, note (may cause trouble later, or could not be checked) or bad
(causes trouble now). Something bad makes the exit code 1.`, cobra.MaximumNArgs(1), func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			cfg, _, err := a.load(cmd, args[0])
			if err != nil {
				return err
			}
			rules = &cfg
		}
		rdb, err := a.conn.open(cmd.Context())
		if err != nil {
			return err
		}
		findings, err := doctor.Examine(cmd.Context(), rdb, a.conn.prefix, rules)
		if place := a.place(cmd.Context(), rdb); place != nil && err == nil {
			findings = append(findings, doctor.Finding{Level: doctor.Bad, What: "prefix", Text: place.Error()})
		}
		printed := printAll(a, findings, nil, func(f doctor.Finding) [][]string {
			return [][]string{{f.Level, f.What, f.Text}}
		})
		if err := errors.Join(err, rdb.Close(), printed); err != nil {
			return err
		}
		bad := slices.DeleteFunc(slices.Clone(findings), func(f doctor.Finding) bool { return f.Level != doctor.Bad })
		if len(bad) > 0 {
			return no("%d of %s bad", len(bad), printable.Count(len(findings), "finding"))
		}
		return nil
	})
	return a.withJSON(cmd)
}

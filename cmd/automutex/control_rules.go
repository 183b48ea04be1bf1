package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// rulesFile is the flag that names the file with the rules.
type rulesFile string

func (f *rulesFile) flag(cmd *cobra.Command) {
	cmd.Flags().StringVar((*string)(f), "rules", "", "the FILE of the rules: take its prefix, and say when no task has the TARGET")
}

// load reads the file, if one was given, and takes over its prefix.
func (f *rulesFile) load(a *app, cmd *cobra.Command) (cfg automutex.Config, err error) {
	if *f == "" {
		return cfg, nil
	}
	cfg, _, err = load(string(*f))
	if err == nil && !cmd.Flags().Changed("prefix") {
		a.conn.prefix = cmp.Or(cfg.Prefix, a.conn.prefix)
	}
	cfg.HashKeys = cmp.Or(cfg.HashKeys, os.Getenv(hashKeysEnv))
	return cfg, err
}

// withPrefix names the prefix where it is not the default.
func (a *app) withPrefix() string {
	if a.conn.prefix == inside.DefaultPrefix {
		return ""
	}
	return " with the prefix " + a.conn.prefix
}

// ofPrefix is withPrefix after a sentence.
func (a *app) ofPrefix() string {
	if a.conn.prefix == inside.DefaultPrefix {
		return ""
	}
	return " (prefix " + a.conn.prefix + ")"
}

// warnUnknown says that no task has a target, as far as the rules tell.
func (a *app) warnUnknown(cfg automutex.Config, target string) {
	if len(cfg.Rules) == 0 {
		return
	}
	key := inspect.Key(a.conn.prefix, target)
	var its []automutex.Rule
	for _, rule := range cfg.Rules {
		if inspect.IsKeyOf(rule, a.conn.prefix, key) {
			its = append(its, rule)
		}
	}
	note := func(format string, args ...any) {
		fmt.Fprintf(a.errs, "note: %s\n", printable.OneLine(fmt.Sprintf(format, args...)))
	}
	parts := strings.Split(inspect.InBraces(key), "|")
	scope, values := parts[0], parts[1:]
	hashed := len(values) == 1 && strings.HasPrefix(values[0], "~")
	ofThese := func(rule automutex.Rule) bool { return len(rule.On)+len(rule.OnHeaders) == len(values) }
	prefixOnly := func(rule automutex.Rule) bool {
		return rule.Scope == "" && rule.Task == scope && strings.HasSuffix(scope, ":")
	}
	switch {
	case len(its) == 0:
		note("no rule has the scope of %s: it does nothing, unless a lock of a program has that name", target)
	case slices.ContainsFunc(its, prefixOnly):
		note("the rule for %s has no scope, so each task type has one of its own: this is for tasks of the type %q alone; name the whole type, or give the rule a scope", scope, scope)
	case len(values) > 0 && cfg.HashKeys != "" && !hashed:
		note("the keys of these rules are hashed, so no task has the key %s: take the key that automutex key prints", target)
	case len(values) > 0 && !hashed && !slices.ContainsFunc(its, ofThese):
		note("no task has the key %s: it has %s, and the keys of the rule for %s have %d", target, printable.Count(len(values), "value"), its[0].Task, len(its[0].On)+len(its[0].OnHeaders))
	}
}

// changing is what the commands that change a control have in common.
func (a *app) changing(cmd *cobra.Command, file *rulesFile, target string, change func(ctx context.Context, controls *lock.Controls) error) error {
	ctx := cmd.Context()
	cfg, err := file.load(a, cmd)
	if err != nil {
		return err
	}
	locker, _, done, err := a.conn.locker(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := change(ctx, locker.Controls()); err != nil {
		return err
	}
	a.warnUnknown(cfg, target)
	return nil
}

package main

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/lock"
)

// rulesFile is the flag that names the file with the rules.
type rulesFile string

func (f *rulesFile) flag(cmd *cobra.Command) {
	cmd.Flags().StringVar((*string)(f), "rules", "", "the FILE of the rules: take its prefix, and its rules in place of those that the workers say they run")
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

// unknown refuses a target that no rule and no live lock has, as far as the FILE, or else what
// the workers say they run, tells. Workers whose Config is Private say nothing, so --force goes
// on.
func (a *app) unknown(ctx context.Context, cfg automutex.Config, l locks, target string) error {
	rules, hashed := inspect.Describe(cfg.Rules), cfg.HashKeys != ""
	if len(rules) == 0 {
		f, err := fleet.Read(ctx, l.rdb, a.conn.prefix)
		if err != nil {
			return nil //nolint:nilerr // who may not read the fleet gives orders as before
		}
		rules = f.Rules(fleet.Worker)
		hashed = slices.ContainsFunc(f.Processes, func(p fleet.Process) bool { return p.Hashed })
	}
	why, meant := inspect.Unknown(rules, hashed, a.conn.prefix, target)
	if why == "" {
		return nil
	}
	live, err := a.isLive(ctx, l, target)
	if err != nil || live {
		return err
	}
	why = strings.TrimSuffix(why, ".")
	if meant != "" {
		return no("%s, nor is there such a lock now; did you mean %s? --force does it all the same", why, meant)
	}
	return no("%s; nor is there such a lock now; --force does it all the same", why)
}

// isLive reports whether there is a lock now that a target is for. Only a mistake comes here,
// so that the walk over all locks is not a cost of each order.
func (a *app) isLive(ctx context.Context, locks locks, target string) (bool, error) {
	name := inspect.InBraces(inspect.Key(a.conn.prefix, target))
	for some, err := range inspect.Walk(ctx, locks.Locker, locks.rdb) {
		if err != nil {
			return false, err
		}
		for _, l := range some {
			if inspect.InBraces(l.Key) == name || inspect.ScopeOf(l.Key) == name {
				return true, nil
			}
		}
	}
	return false, nil
}

// changing is what the commands that change a control have in common. check is set where the
// change would do nothing for a target that no task has.
func (a *app) changing(cmd *cobra.Command, file *rulesFile, target string, check bool, change func(ctx context.Context, controls *lock.Controls) error) error {
	ctx := cmd.Context()
	cfg, err := file.load(a, cmd)
	if err != nil {
		return err
	}
	return a.conn.onLocks(ctx, func(l locks) error {
		if force, _ := cmd.Flags().GetBool("force"); check && !force {
			if err := a.unknown(ctx, cfg, l, target); err != nil {
				return err
			}
		}
		return change(ctx, l.Controls())
	})
}

// forceFlag adds --force, which unknown speaks of.
func forceFlag(cmd *cobra.Command) {
	cmd.Flags().Bool("force", false, "also for a TARGET that no known rule and no lock has")
}

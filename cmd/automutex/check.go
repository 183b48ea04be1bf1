package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/config"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/unique"
)

func newCheck(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file",
		Long: `Check a configuration file. Each mistake is a line on stderr, as
file:line:column: text, and the exit code is then 1. What is allowed but may
surprise is a note. Redis is not needed.`,
		Args: exactly(1, "FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, once, err := load(args[0])
			if err != nil {
				return err
			}
			_, notes, err := offline(cfg)
			if err != nil {
				return err
			}
			if err := a.printRules(cfg.Rules); err != nil {
				return err
			}
			if len(once.Rules) > 0 {
				if err := a.printUnique(once, len(cfg.Rules) > 0); err != nil {
					return err
				}
			}
			for _, note := range append(notes, unclaimed(cfg, once)...) {
				fmt.Fprintf(a.out, "note: %s\n", printable.Text(strings.TrimPrefix(note, "automutex: ")))
			}
			_, err = fmt.Fprintf(a.out, "%s: no mistakes; %s, %s\n", printable.Text(args[0]), printable.Count(len(cfg.Rules), "rule"), printable.Count(len(once.Rules), "unique rule"))
			return err
		},
	}
}

// printRules is the table of rules. Its last column is there if a rule has something in it.
func (a *app) printRules(rules []automutex.Rule) error {
	if len(rules) == 0 {
		return nil
	}
	header, more := []string{"RULE", "TASK", "KEY", "LIMIT", "TTL", "WAIT", "BUSY"}, false
	described := inspect.Describe(rules)
	if slices.ContainsFunc(described, func(r fleet.Rule) bool { return len(r.Also()) > 0 }) {
		header, more = append(header, "ALSO"), true
	}
	t := newTable(a.out, header...)
	for i, rule := range rules {
		if rule.Busy == automutex.Park {
			rule.Wait = 0 // it has no effect
		}
		row := []string{
			described[i].Name, rule.Task, described[i].KeyText(), described[i].LimitShown(),
			orDefault(printable.Exact(rule.TTL), "0s", "30s"), orDefault(printable.Exact(rule.Wait), "0s", "-"), printable.Timed(rule.Busy.String()),
		}
		if more {
			row = append(row, orDefault(strings.Join(described[i].Also(), "; "), "", "-"))
		}
		t.row(row...)
	}
	return t.flush()
}

// load reads a file of rules; its mistakes are a line each.
func load(path string) (automutex.Config, unique.Config, error) {
	cfg, once, err := config.Load(path)
	if err != nil {
		var mistake *config.Error
		return cfg, once, &failure{exit: exitNo, err: err, lines: errors.As(err, &mistake)}
	}
	return cfg, once, nil
}

// printUnique is the table of unique rules.
func (a *app) printUnique(once unique.Config, more bool) error {
	if more {
		fmt.Fprintln(a.out)
	}
	t := newTable(a.out, "UNIQUE", "QUEUE", "KEY", "UNTIL", "DUPLICATE")
	rules, _ := inspect.UniqueRules(once.Rules)
	for _, r := range rules {
		t.row(r.Task, r.Queue, r.KeyText(), r.UntilShown(), printable.Timed(r.Duplicate))
	}
	return t.flush()
}

// unclaimed tells of unique rules whose tasks meet no lock of their key in a worker, and of those whose
// tasks a worker skips. The rules of the workers may be in another file.
func unclaimed(cfg automutex.Config, once unique.Config) (notes []string) {
	for _, u := range once.Rules {
		at := slices.IndexFunc(cfg.Rules, func(r automutex.Rule) bool {
			return r.Task == u.Task && r.Scope == u.Scope && slices.Equal(r.On, u.On) && slices.Equal(r.OnHeaders, u.OnHeaders)
		})
		switch {
		case at < 0 && (u.Until == unique.UntilStart || u.Duplicate != unique.Reject && u.Duplicate != unique.Join):
			notes = append(notes, fmt.Sprintf("unique rule %q: until start, replace and postpone need a rule of the workers with an equal task, scope and on; there is none in this file", u.Task))
		case at >= 0 && u.Until == unique.UntilStart && cfg.Rules[at].Busy == automutex.Skip:
			notes = append(notes, fmt.Sprintf("unique rule %q: a worker skips the task that other producers rely on while an older one runs, so that their change may never be seen; "+
				"use park, wait or retry instead of skip", u.Task))
		}
	}
	return notes
}

// offline makes keys without Redis. The notes are what it logs about the rules.
func offline(cfg automutex.Config) (*automutex.KeyMaker, []string, error) {
	var notes notebook
	cfg.Logger = slog.New(&notes)
	keys, err := automutex.NewKeyMaker(cfg)
	if err != nil {
		err = no("%w", err)
	}
	return keys, notes, err
}

// notebook is a slog.Handler that keeps messages.
type notebook []string

func (n *notebook) Enabled(context.Context, slog.Level) bool { return true }
func (n *notebook) WithAttrs([]slog.Attr) slog.Handler       { return n }
func (n *notebook) WithGroup(string) slog.Handler            { return n }

func (n *notebook) Handle(_ context.Context, r slog.Record) error {
	*n = append(*n, r.Message)
	return nil
}

func orDefault(value, zero, instead string) string {
	if value == zero {
		return instead
	}
	return value
}

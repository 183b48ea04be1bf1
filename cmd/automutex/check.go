package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/config"
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
			cfg, err := load(args[0])
			if err != nil {
				return err
			}
			_, notes, err := offline(cfg)
			if err != nil {
				return err
			}
			t := newTable(a.out, "RULE", "TASK", "KEY", "LIMIT", "TTL", "WAIT", "BUSY")
			for i, rule := range cfg.Rules {
				t.row(ruleName(cfg, i), rule.Task, keyOf(rule), strconv.Itoa(max(rule.Limit, 1)),
					orDefault(rule.TTL.String(), "0s", "30s"), orDefault(rule.Wait.String(), "0s", "-"), rule.Busy.String())
			}
			if len(cfg.Rules) > 0 {
				if err := t.flush(); err != nil {
					return err
				}
			}
			for _, note := range notes {
				fmt.Fprintf(a.out, "note: %s\n", printable(strings.TrimPrefix(note, "automutex: ")))
			}
			_, err = fmt.Fprintf(a.out, "%s: no mistakes; %d rules\n", printable(args[0]), len(cfg.Rules))
			return err
		},
	}
}

// load reads a file of rules; its mistakes are a line each.
func load(path string) (automutex.Config, error) {
	cfg, err := config.Load(path)
	if err != nil {
		var mistake *config.Error
		return cfg, &failure{exit: exitNo, err: err, lines: errors.As(err, &mistake)}
	}
	return cfg, nil
}

// offline makes a Guard that is asked for keys and nothing else. It never meets
// Redis. The notes are what it logs about its rules.
func offline(cfg automutex.Config) (*automutex.Guard, []string, error) {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:0"}) // does not dial
	var notes notebook
	cfg.Logger = slog.New(&notes)
	guard, err := automutex.New(rdb, cfg)
	if err != nil {
		err = no("%w", err)
	}
	return guard, notes, errors.Join(err, rdb.Close())
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

// ruleName is the name that a rule has or is given.
func ruleName(cfg automutex.Config, i int) string {
	rule := cfg.Rules[i]
	if rule.Name != "" {
		return rule.Name
	}
	unnamed := 1
	for _, before := range cfg.Rules[:i] {
		if before.Name == "" && before.Task == rule.Task {
			unnamed++
		}
	}
	if unnamed > 1 {
		return fmt.Sprintf("%s#%d", rule.Task, unnamed)
	}
	return rule.Task
}

// keyOf says what a rule's keys are made of.
func keyOf(rule automutex.Rule) string {
	parts := make([]string, 0, 1+len(rule.On)+len(rule.OnHeaders))
	parts = append(parts, orDefault(rule.Scope, "", "<type>"))
	for _, path := range rule.On {
		parts = append(parts, "<"+path+">")
	}
	for _, name := range rule.OnHeaders {
		parts = append(parts, "<header "+name+">")
	}
	return strings.Join(parts, "|")
}

func orDefault(value, zero, instead string) string {
	if value == zero {
		return instead
	}
	return value
}

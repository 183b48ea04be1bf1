package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

const targetHelp = `
TARGET is a scope ("report", for all its keys), or one key as "automutex key" and
"automutex list" print it ("report|acme"). Every process obeys within 2 seconds, also
after a restart. "automutex controls" lists what is in force. A TARGET that no rule and no
lock has is refused, as far as the workers, or the FILE, tell the rules.`

func newPause(a *app) *cobra.Command {
	var length time.Duration
	var why string
	var file rulesFile
	cmd := &cobra.Command{
		Use:   "pause TARGET [--for 5m] [--why TEXT]",
		Short: "Let no task of a scope or key start, until resumed or for a time",
		Long: `Let no task of a scope or key start, until it is resumed or for a time. Running tasks
go on. Other tasks return to asynq without spending an attempt, whatever the policy of
their rule, and run when the pause ends or up to 90 seconds later. Tasks on their last
attempt wait in their workers. A new pause replaces the present one.
` + targetHelp,
		Example: `  automutex pause report --for 5m --why "the API answers 429"
  automutex pause 'report|acme' --why "its data is repaired"`,
		Args: exactly(1, "TARGET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var until time.Time
			if cmd.Flags().Changed("for") {
				if length < 100*time.Millisecond {
					return usage("--for %s: must be positive, and at least 100ms; leave it out for a pause until resume", length)
				}
				until = time.Now().Add(length)
			}
			return a.changing(cmd, &file, args[0], true, func(ctx context.Context, controls *lock.Controls) error {
				if err := controls.Pause(ctx, args[0], until, why); err != nil {
					return err
				}
				end := "until somebody resumes it"
				if !until.IsZero() {
					end = "for " + printable.Duration(length) + ", until " + until.UTC().Format(time.RFC3339)
				}
				_, err := fmt.Fprintf(a.out, "%s is paused %s; every process%s obeys within 2 seconds\n", printable.OneLine(args[0]), end, a.withPrefix())
				return err
			})
		},
	}
	cmd.Flags().DurationVar(&length, "for", 0, "end the pause after this time (default: when it is resumed)")
	cmd.Flags().StringVar(&why, "why", "", "the reason to show with the order")
	file.flag(cmd)
	forceFlag(cmd)
	a.conn.needed(cmd)
	return cmd
}

func newResume(a *app) *cobra.Command {
	var file rulesFile
	cmd := &cobra.Command{
		Use:   "resume TARGET",
		Short: "End a pause",
		Long: `End a pause. Parked tasks are woken in their order. Other tasks run by themselves
within 90 seconds, not all at once. An entry of the target that this version cannot read
is removed. If the target has neither, the exit code is 1.
` + targetHelp,
		Example: `  automutex resume report`,
		Args:    exactly(1, "TARGET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changing(cmd, &file, args[0], false, func(ctx context.Context, controls *lock.Controls) error {
				ended, err := inner.Resume(ctx, controls, args[0])
				if err != nil {
					return err
				}
				list, err := controls.List(ctx)
				if err != nil {
					return err
				}
				target, scope := printable.OneLine(args[0]), a.pausedScope(list, args[0])+a.ofPrefix()
				switch ended {
				case inside.EndedNothing:
					return no("%s is not paused%s", target, scope)
				case inside.EndedUnreadable:
					_, err = fmt.Fprintf(a.out, "removed: the entry of %s, which was not in force%s\n", target, scope)
				case inside.EndedOrder:
					_, err = fmt.Fprintf(a.out, "%s is resumed%s\n", target, scope)
				}
				return err
			})
		},
	}
	file.flag(cmd)
	a.conn.needed(cmd)
	return cmd
}

// pausedScope says that a key stays paused with its scope.
func (a *app) pausedScope(list []lock.Control, target string) string {
	if _, _, pause := inner.ControlsFor(list, inspect.Key(a.conn.prefix, target)); pause != nil {
		return fmt.Sprintf("; its scope %s is", pause.Target)
	}
	return ""
}

func newLimit(a *app) *cobra.Command {
	var clearIt bool
	var why string
	var file rulesFile
	cmd := &cobra.Command{
		Use:   "limit TARGET N | limit TARGET --clear",
		Short: "Set how many tasks of a key may run at once, in place of the rule's Limit",
		Long: `Set how many tasks of one key may run at once, in place of the rule's Limit. A lower
number takes effect as tasks end. The limit of one key wins over that of its scope.
With --clear, if the target has no such limit, the exit code is 1.
` + targetHelp,
		Example: `  automutex limit 'report|acme' 10 --why "a larger plan"
  automutex limit 'report|acme' --clear`,
		Args: func(cmd *cobra.Command, args []string) error {
			if clearIt {
				return exactly(1, "TARGET")(cmd, args)
			}
			return exactly(2, "TARGET or N")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changing(cmd, &file, args[0], !clearIt, func(ctx context.Context, controls *lock.Controls) error {
				if clearIt {
					ended, err := inner.ClearLimit(ctx, controls, args[0])
					if err != nil {
						return err
					}
					if ended == inside.EndedNothing {
						return no("%s has no limit of an operator%s", printable.OneLine(args[0]), a.ofPrefix())
					}
					_, err = fmt.Fprintf(a.out, "%s has the limit of its program%s\n", printable.OneLine(args[0]), a.ofPrefix())
					return err
				}
				n, err := strconv.Atoi(args[1])
				if err != nil {
					return usage("limit: N is %q: want a whole number, at least 1", printable.OneLine(args[1]))
				}
				if err := controls.SetLimit(ctx, args[0], n, why); err != nil {
					return err
				}
				_, err = fmt.Fprintf(a.out, "%s is limited to %d; every process%s obeys within 2 seconds\n", printable.OneLine(args[0]), n, a.withPrefix())
				return err
			})
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if _, flag, ok := strings.Cut(err.Error(), " in -"); ok && flag != "" && flag[0] >= '0' && flag[0] <= '9' {
			return usage("limit: N is -%s: want a whole number, at least 1; to let no task start, use pause", printable.OneLine(flag))
		}
		return err
	})
	cmd.Flags().BoolVar(&clearIt, "clear", false, "end the limit")
	cmd.Flags().StringVar(&why, "why", "", "the reason to show with the order")
	file.flag(cmd)
	forceFlag(cmd)
	a.conn.needed(cmd)
	return cmd
}

func newControls(a *app) *cobra.Command {
	var asJSON bool
	var file rulesFile
	cmd := &cobra.Command{
		Use:   "controls",
		Short: "List the pauses and limits that are in force",
		Long: `List the pauses and limits that are in force, each with who ordered it, when and why.
A target that is paused and limited has a line for each. An entry that this version
cannot read is listed as unreadable, and is not in force.`,
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if _, err := file.load(a, cmd); err != nil {
				return err
			}
			return a.conn.onLocks(ctx, func(l locks) error {
				list, err := l.Controls().List(ctx)
				if err != nil {
					return err
				}
				unreadable, err := inner.Unreadable(ctx, l.Controls())
				if err != nil {
					return err
				}
				now, err := inspect.ServerTime(ctx, l.rdb)
				if err != nil {
					return err
				}
				for _, target := range slices.Sorted(maps.Keys(unreadable)) {
					fmt.Fprintf(a.errs, "note: the entry of %s is not in force: %s; resume removes it\n", printable.OneLine(target), unreadable[target])
				}
				return a.printControls(list, now, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line for each")
	file.flag(cmd)
	a.conn.needed(cmd)
	return cmd
}

func (a *app) printControls(list []lock.Control, now time.Time, asJSON bool) error {
	if len(list) == 0 && !asJSON {
		fmt.Fprintf(a.errs, "no controls under the prefix %q are in force\n", a.conn.prefix)
		return nil
	}
	return printAll(a.out, inspect.FromControls(list), asJSON, []string{"TARGET", "CONTROL", "BY", "SINCE", "WHY"}, func(c inspect.Control) []string {
		return []string{c.Target, what(c, now), c.By, printable.Duration(now.Sub(c.Since)) + " ago", cmp.Or(c.Why, "-")}
	})
}

// what says what a control orders.
func what(c inspect.Control, now time.Time) string {
	switch {
	case !c.Paused:
		return fmt.Sprintf("limit %d", c.Limit)
	case c.PausedUntil == nil:
		return "paused until somebody resumes it"
	}
	return "paused for " + printable.Duration(c.PausedUntil.Sub(now))
}

// ordered tells a control in one line.
func ordered(c inspect.Control, now time.Time) string {
	text := fmt.Sprintf("%s; ordered by %s %s ago", what(c, now), c.By, printable.Duration(now.Sub(c.Since)))
	if c.Why != "" {
		text += ": " + c.Why
	}
	return printable.OneLine(text)
}

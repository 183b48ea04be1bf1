package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

const orderHelp = `

TARGET is a scope ("report", for all its keys), the beginning of scopes ("report:"), or
one key ("report|acme"). What a key escapes, as a space, is typed as it is; a whole key,
as "automutex list" prints it, means itself. Every process obeys within 2 seconds, also
after a restart. "automutex controls" lists what is in force. A TARGET that no rule and no
lock has is refused, as far as the workers, or the FILE, tell the rules.`

const rulesHelp = "the FILE of the rules: take its prefix, and its rules in place of those that the workers say they run"

// order is what the flags say of an order: it is given, or ends.
type order struct {
	why         string
	force, ends bool
}

// newOrder makes a command that gives an order, or ends one. shown is the target for a person.
func (a *app) newOrder(o *order, use, help string, args cobra.PositionalArgs, do func(ctx context.Context, controls *lock.Controls, target, shown string) error) *cobra.Command {
	cmd := a.onLocks(use, help+orderHelp, args, func(ctx context.Context, l locks, args []string) error {
		target, shown := args[0], printable.OneLine(args[0])
		key, err := a.target(ctx, l, o, target)
		switch {
		case errors.Is(err, lock.ErrBackend):
			return err
		case err != nil:
			return no("%w", err)
		case key != "" && key != target && inspect.Stored(key) != target && !o.ends:
			shown += " (" + key + ")"
		}
		return do(ctx, l.Controls(), target, shown)
	})
	cmd.Flags().String("rules", "", rulesHelp)
	if !o.ends {
		cmd.Flags().StringVar(&o.why, "why", "", "the reason to show with the order")
		cmd.Flags().BoolVar(&o.force, "force", false, "also for a TARGET that no known rule and no lock has")
	}
	return cmd
}

// target is the whole key of the target that was typed. Workers whose Config is Private do not say what they run.
func (a *app) target(ctx context.Context, l locks, o *order, typed string) (string, error) {
	rules, hashed := inspect.Describe(a.rules.Rules), a.rules.HashKeys != ""
	if len(rules) == 0 {
		if f, err := fleet.Read(ctx, l.rdb, a.conn.prefix); err == nil { // who may not read them gives orders all the same
			rules = fleet.Rules(f)
			hashed = slices.ContainsFunc(f, func(p fleet.Process) bool { return p.Hashed })
		}
	}
	a.conn.known = rules
	return inspect.Target(ctx, l.Locker, l.rdb, rules, hashed, a.conn.prefix, typed, o.force || o.ends)
}

// prefixed names the prefix if it is not the default.
func (a *app) prefixed(format string) string {
	if a.conn.prefix == inside.DefaultPrefix {
		return ""
	}
	return fmt.Sprintf(format, a.conn.prefix)
}

// given says that an order was given.
func (a *app) given(text string) error {
	return a.say("%s; every process%s obeys within 2 seconds\n", text, a.prefixed(" with the prefix %s"))
}

func newPause(a *app) *cobra.Command {
	var o order
	var length time.Duration
	cmd := a.newOrder(&o, "pause TARGET [--for 5m] [--why TEXT]", `Let no task of a scope or key start, until resumed or for a time

Running tasks go on. Other tasks return to asynq without spending an attempt, whatever the
policy of their rule, and run when the pause ends or up to 90 seconds later. Tasks on
their last attempt wait in their workers. A new pause replaces the present one.`, func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("for") && length < 100*time.Millisecond {
			return usage("--for %s: must be positive, and at least 100ms; leave it out for a pause until resume", length)
		}
		return needs(1, 1, "TARGET")(cmd, args)
	}, func(ctx context.Context, controls *lock.Controls, target, shown string) error {
		until, end := time.Time{}, "until somebody resumes it"
		if length > 0 {
			until = time.Now().Add(length)
			end = "for " + printable.Duration(length) + ", until " + until.UTC().Format(time.RFC3339)
		}
		if err := controls.Pause(ctx, target, until, o.why); err != nil {
			return err
		}
		return a.given(shown + " is paused " + end)
	})
	cmd.Flags().DurationVar(&length, "for", 0, "end the pause after this time (default: when it is resumed)")
	return cmd
}

func newResume(a *app) *cobra.Command {
	return a.newOrder(&order{ends: true}, "resume TARGET", `End a pause

Parked tasks are woken in their order, others run within 90 seconds. An entry that cannot be
read is removed. If the target has neither, the exit code is 1.`, needs(1, 1, "TARGET"), func(ctx context.Context, controls *lock.Controls, target, shown string) error {
		ended, err := inner.Resume(ctx, controls, target)
		if err != nil {
			return err
		}
		list, err := controls.List(ctx)
		if err != nil {
			return err
		}
		after := a.prefixed(" (prefix %s)")
		if _, _, pause := inner.ControlsFor(list, inspect.TypedKey(a.conn.prefix, target)); pause != nil {
			after = "; its scope " + printable.OneLine(pause.Target) + " is" + after
		}
		switch ended {
		case inside.EndedNothing:
			return no("%s is not paused%s", shown, after)
		case inside.EndedUnreadable:
			return a.say("removed: the entry of %s, which was not in force%s\n", shown, after)
		}
		return a.say("%s is resumed%s\n", shown, after)
	})
}

func newLimit(a *app) *cobra.Command {
	var o order
	var n int
	cmd := a.newOrder(&o, "limit TARGET N | limit TARGET --clear", `Set how many tasks of a key may run at once, in place of the rule's Limit

A lower number takes effect as tasks end. The limit of one key wins over that of its
scope. With --clear, if the target has no such limit, the exit code is 1.`, func(cmd *cobra.Command, args []string) (err error) {
		if o.ends {
			return needs(1, 1, "TARGET")(cmd, args)
		} else if err := needs(2, 2, "TARGET or N")(cmd, args); err != nil {
			return err
		} else if n, err = strconv.Atoi(args[1]); err != nil {
			return usage("limit: N is %q: want a whole number, at least 1; to let no task start, use pause", printable.OneLine(args[1]))
		}
		return nil
	}, func(ctx context.Context, controls *lock.Controls, target, shown string) error {
		if !o.ends {
			if err := controls.SetLimit(ctx, target, n, o.why); err != nil {
				return err
			}
			return a.given(fmt.Sprintf("%s is limited to %d", shown, n))
		}
		ended, err := inner.ClearLimit(ctx, controls, target)
		switch {
		case err != nil:
			return err
		case ended == inside.EndedNothing:
			return no("%s has no limit of an operator%s", shown, a.prefixed(" (prefix %s)"))
		}
		return a.say("%s has the limit of its program%s\n", shown, a.prefixed(" (prefix %s)"))
	})
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if _, flag, ok := strings.Cut(err.Error(), " in -"); ok && flag != "" && flag[0] >= '0' && flag[0] <= '9' {
			return usage("limit: N is -%s: want a whole number, at least 1; to let no task start, use pause", printable.OneLine(flag))
		}
		return cmd.Root().FlagErrorFunc()(cmd, err)
	})
	cmd.Flags().BoolVar(&o.ends, "clear", false, "end the limit")
	return cmd
}

func newControls(a *app) *cobra.Command {
	var asJSON bool
	cmd := a.onLocks("controls", `List the pauses and limits that are in force

An entry that this version cannot read is noted, and is not in force.`, needs(0, 0, ""), func(ctx context.Context, l locks, _ []string) error {
		now, err := inspect.ServerTime(ctx, l.rdb)
		if err != nil {
			return err
		}
		list, err := l.Controls().List(ctx)
		if err != nil {
			return err
		}
		unreadable, err := inner.Unreadable(ctx, l.Controls())
		if err != nil {
			return err
		}
		for _, target := range slices.Sorted(maps.Keys(unreadable)) {
			fmt.Fprintf(a.errs, "note: the entry of %s is not in force: %s; resume removes it\n", printable.OneLine(target), unreadable[target])
		}
		if len(list) == 0 && !asJSON {
			fmt.Fprintf(a.errs, "no controls under the prefix %q are in force\n", a.conn.prefix)
			return nil
		}
		return printAll(a.out, inspect.FromControls(list), asJSON, []string{"TARGET", "CONTROL", "BY", "SINCE", "WHY"}, func(c inspect.Control) [][]string {
			return [][]string{{c.Target, what(c, now), c.By, printable.Duration(now.Sub(c.Since)) + " ago", cmp.Or(c.Why, "-")}}
		})
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line for each")
	cmd.Flags().String("rules", "", rulesHelp)
	return cmd
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

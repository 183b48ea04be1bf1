package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

// filterFlags adds the flags of a filter.
func filterFlags(cmd *cobra.Command, f *inspect.Filter) {
	cmd.Flags().StringVar(&f.Match, "match", "", "only keys that match this pattern (*, ?, [a-z]), or have it in them when it has none of these")
	cmd.Flags().StringVar(&f.Holder, "holder", "", "only locks held by an owner whose label has this in it")
	cmd.Flags().StringVar(&f.Task, "task", "", "only locks held by a task, queue/id, that has this in it")
	cmd.Flags().BoolVar(&f.Waiting, "waiting", false, "only locks that somebody waits for")
	cmd.Flags().DurationVar(&f.Longer, "longer", 0, "only locks taken longer ago than this, and those with several holders, whose ages are not known")
}

func checkFilter(f inspect.Filter) error {
	if err := f.Check(); err != nil {
		return usage("--match %q: %w", printable.OneLine(f.Match), err)
	}
	if f.Longer < 0 {
		return usage("--longer %s: must not be negative", f.Longer)
	}
	return nil
}

var lockHeader = []string{"KEY", "HOLDER", "TASK", "SINCE", "UNTIL", "LINE"}

func newList(a *app) *cobra.Command {
	var f inspect.Filter
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the locks that are held or waited for",
		Long: `List the locks that are held or waited for, in no order: a row for each holder, and
one for a key that a rate, a hold or a cooldown closes.
SINCE is how long ago a lock with one holder was taken, UNTIL when its lease ends
unless it is renewed, LINE how many wait for it, how many of them are parked or are
enqueued in order, which failed or archived task blocks an ordered key, and what an
operator has ordered: a pause or a limit, by whom and why.

The keys are walked with SCAN, a thousand at a time, and shown as they are found:
any number of locks neither blocks Redis nor fills memory. What comes and goes
meanwhile may or may not be shown.

With --json there is an object a line for each lock, with the token of each
holder, which break takes.`,
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFilter(f); err != nil {
				return err
			}
			return a.conn.onLocks(cmd.Context(), func(l locks) error { return a.list(cmd.Context(), l, f, asJSON) })
		},
	}
	filterFlags(cmd, &f)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line for each lock")
	a.conn.needed(cmd)
	return cmd
}

// list prints the locks as they are found.
func (a *app) list(ctx context.Context, l locks, f inspect.Filter, asJSON bool) error {
	now, err := inspect.ServerTime(ctx, l.rdb)
	if err != nil {
		return err
	}
	local, found := time.Now(), 0
	for some, err := range inspect.Walk(ctx, l.Locker, l.rdb) {
		if err != nil {
			return err
		}
		some = slices.DeleteFunc(some, func(s inspect.Lock) bool { return !f.Passes(s, now.Add(time.Since(local))) })
		header := lockHeader
		if found > 0 {
			header = nil
		}
		if found += len(some); len(some) == 0 {
			continue
		}
		if err := a.printLocks(some, now.Add(time.Since(local)), header, asJSON); err != nil {
			return err
		}
	}
	if found == 0 && !asJSON {
		passing := ""
		if f != (inspect.Filter{}) {
			passing = " and pass the filters"
		}
		fmt.Fprintf(a.errs, "no locks under the prefix %q are held or waited for%s\n", a.conn.prefix, passing)
	}
	return nil
}

func (a *app) printLocks(some []inspect.Lock, now time.Time, header []string, asJSON bool) error {
	if asJSON {
		for _, s := range some {
			if err := printJSON(a.out, s); err != nil {
				return err
			}
		}
		return nil
	}
	t := newTable(a.out, header...)
	for _, s := range some {
		for _, row := range rows(s, now, ordersInFull) {
			t.row(row...)
		}
	}
	return t.flush()
}

// rows returns a lock in columns, a row for each holder. orders tells what operators have
// ordered.
func rows(s inspect.Lock, now time.Time, orders func(inspect.Lock) string) [][]string {
	line := strconv.Itoa(s.Line)
	if s.Parked > 0 {
		line += fmt.Sprintf(" (%d parked)", s.Parked)
	}
	if s.Queued > 0 {
		line += " (in order)"
	}
	if s.Next != nil && s.Next.Blocked {
		line += ", blocked by " + s.Next.Task
	}
	line += orders(s)
	if len(s.Holders) == 0 && s.Gate == nil {
		return [][]string{{s.Key, "-", "-", "-", "-", line}}
	}
	all := make([][]string, 0, len(s.Holders)+1)
	for _, h := range s.Holders {
		taken := "-"
		if s.Since != nil && s.Held == 1 {
			taken = printable.Duration(now.Sub(*s.Since)) + " ago"
		}
		all = append(all, []string{s.Key, h.Owner, inspect.TaskName(h.Queue, h.Task, h.Note), taken, "in " + printable.Duration(h.Until.Sub(now)), line})
	}
	if s.Gate != nil {
		all = append(all, []string{s.Key, "(" + s.Gate.String() + ")", "-", "-", "in " + printable.Duration(s.Gate.Opens.Sub(now)), line})
	}
	return all
}

// ordersInFull tells each order of an operator: what it is, whose, and why.
func ordersInFull(s inspect.Lock) string {
	var text strings.Builder
	for _, c := range s.Controls {
		if c.Paused {
			text.WriteString(", paused")
		} else {
			fmt.Fprintf(&text, ", limit %d", c.Limit)
		}
		text.WriteString(" by " + c.By)
		if c.Why != "" {
			text.WriteString(" (" + strings.Join(strings.Fields(c.Why), " ") + ")")
		}
	}
	return text.String()
}

// ordersInShort tells whether the lock is paused, for columns that others follow.
func ordersInShort(s inspect.Lock) string {
	if s.Paused {
		return ", paused"
	}
	return ""
}

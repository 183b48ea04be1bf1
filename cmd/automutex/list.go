package main

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// filter is which locks are shown.
type filter struct {
	match   string
	holder  string
	task    string
	waiting bool
	longer  time.Duration
}

func (f *filter) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.match, "match", "", "only keys that match this pattern (*, ?, [a-z]), or have it in them when it has none of these")
	cmd.Flags().StringVar(&f.holder, "holder", "", "only locks held by an owner whose label has this in it")
	cmd.Flags().StringVar(&f.task, "task", "", "only locks held by a task, queue/id, that has this in it")
	cmd.Flags().BoolVar(&f.waiting, "waiting", false, "only locks that somebody waits for")
	cmd.Flags().DurationVar(&f.longer, "longer", 0, "only locks taken longer ago than this")
}

func (f *filter) check() error {
	if _, err := path.Match(f.match, ""); err != nil {
		return usage("--match %q: not a pattern: a [ is not closed, or a \\ ends it", oneLine(f.match))
	}
	if f.longer < 0 {
		return usage("--longer %s: must not be negative", f.longer)
	}
	return nil
}

// passes tells whether a lock is shown. now is Redis' time.
func (f *filter) passes(s seen, now time.Time) bool {
	if f.match != "" {
		// A key has "/" in it like any other character, which path.Match sets apart.
		plain := strings.NewReplacer("/", "\x01")
		matched, _ := path.Match(plain.Replace(f.match), plain.Replace(s.Key)) // checked
		if !matched && (strings.ContainsAny(f.match, `*?[\`) || !strings.Contains(s.Key, f.match)) {
			return false
		}
	}
	if f.holder != "" && !slices.ContainsFunc(s.Holders, func(h holder) bool { return strings.Contains(h.Owner, f.holder) }) {
		return false
	}
	if f.task != "" && !slices.ContainsFunc(s.Holders, func(h holder) bool {
		return strings.Contains(taskCell(h.Queue, h.Task, h.Note), f.task)
	}) {
		return false
	}
	if f.waiting && s.Line == 0 {
		return false
	}
	return f.longer == 0 || s.Since != nil && now.Sub(*s.Since) > f.longer
}

var lockHeader = []string{"KEY", "HOLDER", "TASK", "SINCE", "UNTIL", "LINE"}

func newList(a *app) *cobra.Command {
	var f filter
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the locks that are held or waited for",
		Long: `List the locks that are held or waited for, in no order: a row for each holder.
SINCE is how long ago a lock with one holder was taken, UNTIL when its lease ends
unless it is renewed, LINE how many wait for it, and how many of them are parked.

The keys are walked with SCAN, a thousand at a time, and shown as they are found:
any number of locks neither blocks Redis nor fills memory. What comes and goes
meanwhile may or may not be shown.

With --json there is an object a line for each lock, with the token of each
holder, which break takes.`,
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			ctx := cmd.Context()
			locker, rdb, done, err := a.conn.locker(ctx)
			if err != nil {
				return err
			}
			defer done()
			now, err := serverTime(ctx, rdb)
			if err != nil {
				return err
			}
			local, found := time.Now(), 0
			for some, err := range batches(ctx, locker, rdb) {
				if err != nil {
					return err
				}
				some = slices.DeleteFunc(some, func(s seen) bool { return !f.passes(s, now.Add(time.Since(local))) })
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
				if f != (filter{}) {
					passing = " and pass the filters"
				}
				fmt.Fprintf(a.errs, "no locks under the prefix %q are held or waited for%s\n", a.conn.prefix, passing)
			}
			return nil
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line for each lock")
	a.conn.needed(cmd)
	return cmd
}

func (a *app) printLocks(some []seen, now time.Time, header []string, asJSON bool) error {
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
		for _, row := range s.rows(now) {
			t.row(row...)
		}
	}
	return t.flush()
}

// rows are a lock in columns, a row for each holder.
func (s seen) rows(now time.Time) [][]string {
	line := strconv.Itoa(s.Line)
	if s.Parked > 0 {
		line += fmt.Sprintf(" (%d parked)", s.Parked)
	}
	if len(s.Holders) == 0 {
		return [][]string{{s.Key, "-", "-", "-", "-", line}}
	}
	rows := make([][]string, 0, len(s.Holders))
	for _, h := range s.Holders {
		owner, taken := h.Owner, "-"
		if h.Cooldown {
			owner = "(cooling down)"
		} else if s.Since != nil && s.Held == 1 {
			taken = short(now.Sub(*s.Since)) + " ago"
		}
		rows = append(rows, []string{s.Key, owner, taskCell(h.Queue, h.Task, h.Note), taken, "in " + short(h.Until.Sub(now)), line})
	}
	return rows
}

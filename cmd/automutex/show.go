package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/spf13/cobra"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

func newShow(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show KEY",
		Short: "Show one lock: its holders, its line, and their tasks",
		Long: `Show one lock: its holders with their tokens, the first hundred in its line, what
asynq says of their tasks, and which failed or archived task an ordered key is behind; and for how long a rate, a hold or a cooldown keeps
tasks from starting. KEY is as list prints it, or what stands between its braces. When
nobody holds or waits for the lock, nothing keeps tasks from starting, and no control is
for it, the exit code is 1.`,
		Example: `  automutex show 'automutex:{itunes:verify|7}'
  automutex show 'itunes:verify|7'`,
		Args: exactly(1, "KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			return a.conn.onLocks(ctx, func(l locks) error {
				s, now, err := inspectOne(ctx, l, inspect.Key(a.conn.prefix, args[0]))
				switch {
				case err != nil:
					return err
				case s.Held+s.Line+len(s.Controls) == 0 && s.Gate == nil:
					return no("nobody holds or waits for %s", s.Key)
				case asJSON:
					return printJSON(a.out, s)
				}
				return a.printLock(s, now, l.inspector())
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	a.conn.needed(cmd)
	return cmd
}

// inspectOne reads one lock. now is Redis' time.
func inspectOne(ctx context.Context, l locks, key string) (s inspect.Lock, now time.Time, err error) {
	if err := inner.LockErr(inner.ByKey(l.Locker, key)); err != nil {
		return inspect.Lock{}, now, usage("KEY: %w", err)
	}
	return inspect.One(ctx, l.Locker, l.rdb, key)
}

func (a *app) printLock(s inspect.Lock, now time.Time, inspector *asynq.Inspector) error {
	fmt.Fprintf(a.out, "%s\nheld by %d, waited for by %d", s.Key, s.Held, s.Line-s.Parked-s.Queued)
	if s.Parked > 0 {
		fmt.Fprintf(a.out, ", %d parked", s.Parked)
	}
	if s.Queued > 0 {
		fmt.Fprintf(a.out, ", %d in order", s.Queued)
	}
	if s.Since != nil {
		fmt.Fprintf(a.out, ", last taken %s ago", printable.Duration(now.Sub(*s.Since)))
	}
	if s.Gate != nil {
		fmt.Fprintf(a.out, "\nnobody starts for %s: %s", printable.Duration(s.Gate.Opens.Sub(now)), s.Gate)
	}
	if s.Next != nil {
		if why := blocked.Why(blocked.In(inspector).Look(s.Next.Head())); why != "" {
			fmt.Fprintf(a.out, "\nbehind %s, which %s", s.Next.Task, why)
		}
	}
	fmt.Fprintln(a.out)
	for _, c := range s.Controls {
		fmt.Fprintf(a.out, "%s: %s\n", c.Target, ordered(c, now))
	}
	fmt.Fprintln(a.out)
	if len(s.Holders) > 0 {
		t := newTable(a.out, "TOKEN", "HOLDER", "TASK", "STATE", "UNTIL")
		for _, h := range s.Holders {
			state := inspect.TaskState(inspector, h.Queue, h.Task)
			t.row(h.Token, h.Owner, inspect.TaskName(h.Queue, h.Task, h.Note), state, "in "+printable.Duration(h.Until.Sub(now)))
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if len(s.Waiters) == 0 {
		return nil
	}
	fmt.Fprintln(a.out)
	t := newTable(a.out, "PLACE", "WAITER", "TASK", "STATE", "WAITS")
	for i, w := range s.Waiters {
		owner := w.Owner
		if owner == "" {
			owner = "(" + w.State + ")" // in no worker
		}
		t.row(strconv.Itoa(i+1), owner, inspect.TaskName(w.Queue, w.Task, w.Note), inspect.TaskState(inspector, w.Queue, w.Task), printable.Duration(now.Sub(w.Since)))
	}
	if err := t.flush(); err != nil {
		return err
	}
	if more := s.Line - len(s.Waiters); more > 0 {
		fmt.Fprintf(a.out, "and %d more\n", more)
	}
	return nil
}

package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/lock"
)

func newBlocked(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "blocked",
		Short: "List the ordered keys whose next task does not run",
		Long: `List the ordered keys whose next task does not run: it is archived and holds its
key, has failed and is retried later, is gone, or waits in a queue that is paused or
that no server serves. Keys that are held come first.
BEHIND is how many tasks of the key wait behind that task.

To go on, run the task again with asynq's tools, or skip it: automutex skip KEY TASK.

With --json there is an object a line for each key.`,
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.conn.onLocks(cmd.Context(), func(l locks) error {
				now, err := inspect.ServerTime(cmd.Context(), l.rdb)
				if err != nil {
					return err
				}
				keys, err := blocked.List(cmd.Context(), l.Locker, l.inspector())
				if err != nil {
					return err
				}
				return a.printBlocked(keys, now, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line for each key")
	a.conn.needed(cmd)
	return cmd
}

// blockedKey is a blocked key as --json prints it.
type blockedKey struct {
	Key    string    `json:"key"`
	Task   string    `json:"task"`
	Since  time.Time `json:"since"`
	Why    string    `json:"why"`
	Behind int       `json:"behind"`
}

func (a *app) printBlocked(keys []blocked.Key, now time.Time, asJSON bool) error {
	if len(keys) == 0 && !asJSON {
		fmt.Fprintf(a.errs, "no ordered key under the prefix %q is blocked\n", a.conn.prefix)
		return nil
	}
	shown := make([]blockedKey, len(keys))
	for i, key := range keys {
		shown[i] = blockedKey(key)
	}
	return printAll(a.out, shown, asJSON, []string{"KEY", "TASK", "SINCE", "BEHIND", "WHY"}, func(key blockedKey) []string {
		return []string{key.Key, key.Task, now.Sub(key.Since).Round(time.Second).String(), strconv.Itoa(key.Behind), key.Why}
	})
}

func newSkip(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "skip KEY TASK",
		Short: "Give up the next task of an ordered key, and go on with the one behind it",
		Long: `Give up the next task of an ordered key, and go on with the one behind it. KEY and
TASK are those that blocked lists. The task itself is not changed: if asynq runs it
later, it takes its old place again. A task that runs now, or that is not the next one of the
key, is not skipped; the exit code is then 1.`,
		Example: `  automutex skip 'automutex:{orders|7}' default/8a1c6f2e`,
		Args:    exactly(2, "KEY and TASK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.conn.onLocks(cmd.Context(), func(l locks) error {
				key := inspect.Key(a.conn.prefix, args[0])
				switch err := blocked.Skip(cmd.Context(), l.Locker, l.inspector(), key, args[1], 0); {
				case errors.Is(err, lock.ErrBackend):
					return err
				case err != nil:
					return no("%w", err)
				}
				_, err := fmt.Fprintf(a.out, "skipped: %s of %s\n", args[1], key)
				return err
			})
		},
	}
	a.conn.needed(cmd)
	return cmd
}

package main

import (
	"context"
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
	cmd := a.onLocks("blocked", `List the ordered keys whose next task does not run

BEHIND is how many tasks of the key wait behind that task. To go on, run the task again with
asynq's tools, or skip it: automutex skip KEY TASK.`, needs(0, 0, ""), func(ctx context.Context, l locks, _ []string) error {
		now, err := inspect.ServerTime(ctx, l.rdb)
		if err != nil {
			return err
		}
		keys, err := blocked.List(ctx, l.Locker, l.inspector)
		if err != nil {
			return err
		}
		if len(keys) == 0 && !asJSON {
			fmt.Fprintf(a.errs, "no ordered key under the prefix %q is blocked\n", a.conn.prefix)
			return nil
		}
		return printAll(a.out, keys, asJSON, []string{"KEY", "TASK", "SINCE", "BEHIND", "WHY"}, func(key blocked.Key) [][]string {
			return [][]string{{key.Key, key.Task, now.Sub(key.Since).Round(time.Second).String(), strconv.Itoa(key.Behind), key.Why}}
		})
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line for each key")
	return cmd
}

func newSkip(a *app) *cobra.Command {
	return a.onLocks("skip KEY TASK", `Give up the next task of an ordered key, and go on with the one behind it

KEY and TASK are those that blocked lists. The task itself is not changed: if asynq runs it
later, it takes its old place again. If it runs now, or is not the next one, the exit code is 1.`, needs(2, 2, "KEY and TASK"), func(ctx context.Context, l locks, args []string) error {
		key := inspect.TypedKey(a.conn.prefix, args[0])
		switch err := blocked.Skip(ctx, l.Locker, l.inspector, key, args[1], 0); {
		case errors.Is(err, lock.ErrBackend):
			return err
		case err != nil:
			return no("%w", err)
		}
		return a.say("skipped: %s of %s\n", args[1], key)
	})
}

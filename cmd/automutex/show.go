package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/automutex/automutex/lock"
)

// mostShown is how many of a line are shown.
const mostShown = 100

func newShow(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show KEY",
		Short: "Show one lock: its holders, its line, and their tasks",
		Long: `Show one lock: its holders with their tokens, the first hundred in its line, and
what asynq says of their tasks. KEY is as list prints it, or what stands between
its braces. When nobody holds or waits for the lock, the exit code is 1.`,
		Example: `  automutex show 'automutex:{itunes:verify|7}'
  automutex show 'itunes:verify|7'`,
		Args: exactly(1, "KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			locker, rdb, done, err := a.conn.locker(ctx)
			if err != nil {
				return err
			}
			defer done()
			s, now, err := inspect(ctx, locker, rdb, a.conn.key(args[0]))
			switch {
			case err != nil:
				return err
			case s.Held+s.Line == 0:
				return no("nobody holds or waits for %s", s.Key)
			case asJSON:
				return printJSON(a.out, s)
			}
			return a.printLock(s, now, asynq.NewInspectorFromRedisClient(rdb))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	a.conn.needed(cmd)
	return cmd
}

// inspect looks at one lock. now is Redis' time.
func inspect(ctx context.Context, locker *lock.Locker, rdb redis.UniversalClient, key string) (s seen, now time.Time, err error) {
	m := locker.ByKey(key)
	if err := m.Err(); err != nil {
		return seen{}, now, usage("KEY: %w", err)
	}
	if now, err = serverTime(ctx, rdb); err != nil {
		return seen{}, now, err
	}
	info, err := m.Inspect(ctx)
	if err != nil {
		return seen{}, now, err
	}
	s = look(info, now)
	line, err := m.Line(ctx, mostShown)
	if err != nil {
		return seen{}, now, err
	}
	for _, w := range line {
		queue, id, other := task(w.Note)
		state := "waiting"
		switch {
		case w.Called:
			state = "called"
		case w.Parked:
			state = "parked"
		}
		s.Waiters = append(s.Waiters, waiter{Owner: w.Owner, Queue: queue, Task: id, Note: other, Since: w.Since.UTC(), State: state})
	}
	return s, now, nil
}

func (a *app) printLock(s seen, now time.Time, inspector *asynq.Inspector) error {
	fmt.Fprintf(a.out, "%s\nheld by %d, waited for by %d", s.Key, s.Held, s.Line-s.Parked)
	if s.Parked > 0 {
		fmt.Fprintf(a.out, ", %d parked", s.Parked)
	}
	if s.Since != nil {
		fmt.Fprintf(a.out, ", last taken %s ago", short(now.Sub(*s.Since)))
	}
	fmt.Fprint(a.out, "\n\n")
	if len(s.Holders) > 0 {
		t := newTable(a.out, "TOKEN", "HOLDER", "TASK", "STATE", "UNTIL")
		for _, h := range s.Holders {
			owner, state := h.Owner, taskState(inspector, h.Queue, h.Task)
			if h.Cooldown {
				owner = "(cooling down)"
			}
			t.row(h.Token, owner, taskCell(h.Queue, h.Task, h.Note), state, "in "+short(h.Until.Sub(now)))
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
		t.row(strconv.Itoa(i+1), owner, taskCell(w.Queue, w.Task, w.Note), taskState(inspector, w.Queue, w.Task), short(now.Sub(w.Since)))
	}
	if err := t.flush(); err != nil {
		return err
	}
	if more := s.Line - len(s.Waiters); more > 0 {
		fmt.Fprintf(a.out, "and %d more\n", more)
	}
	return nil
}

// taskState is what asynq knows of a task: its type and state. A task that is
// gone is worth knowing about: its lease ends at its deadline.
func taskState(inspector *asynq.Inspector, queue, id string) string {
	if id == "" {
		return "-"
	}
	info, err := inspector.GetTaskInfo(queue, id)
	switch {
	case errors.Is(err, asynq.ErrQueueNotFound), errors.Is(err, asynq.ErrTaskNotFound):
		return "not in asynq"
	case err != nil:
		return "unknown: " + oneLine(err.Error())
	}
	return fmt.Sprintf("%s, %s", info.Type, info.State)
}

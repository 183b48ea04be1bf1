package main

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/spf13/cobra"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

func newBreak(a *app) *cobra.Command {
	var token string
	var yes bool
	cmd := &cobra.Command{
		Use:   "break KEY [--holder TOKEN]",
		Short: "Take a lock from its holders, after asking",
		Long: `Take a lock from its holders: from all that are shown, or from the one with the
token given (list --json and show tell tokens). A gate that a hold or a cooldown has closed opens, too. The first in
line gets the lock at once. Each holder is told: the context of its handler ends
with cause lock.ErrLost, at its next renewal at the latest. Until then it may
still be at work: break a lock whose holder is known to hang.

It asks first; without an answer nothing is done. Only the holders that it has
shown are broken, not who came meanwhile. When none of them was left, the exit
code is 1.`,
		Example: `  automutex break 'automutex:{itunes:verify|7}'
  automutex break 'itunes:verify|7' --holder iBq-amHluSdcW1Xu.3000.cbrfweqg --yes`,
		Args: exactly(1, "KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if cmd.Flags().Changed("holder") && token == "" {
				return usage("break: --holder is empty: list --json and show tell tokens")
			}
			locker, rdb, done, err := a.conn.locker(ctx)
			if err != nil {
				return err
			}
			defer done()
			s, now, err := inspectOne(ctx, locker, rdb, inspect.Key(a.conn.prefix, args[0]))
			if err != nil {
				return err
			}
			s.Waiters = nil // not asked about
			if token != "" {
				s.Holders = slices.DeleteFunc(s.Holders, func(h inspect.Holder) bool { return h.Token != token })
			}
			switch {
			case len(s.Holders) == 0 && token != "":
				return no("nobody with the token %q holds %s", token, s.Key)
			case len(s.Holders) == 0:
				return no("nobody holds %s", s.Key)
			}
			if err := a.printLock(s, now, asynq.NewInspectorFromRedisClient(rdb)); err != nil {
				return err
			}
			if !yes {
				if err := a.ask(ctx, fmt.Sprintf("\nTake the lock from %s? [y/N] ", printable.Count(len(s.Holders), "holder"))); err != nil {
					return err
				}
			}
			return a.breakHolders(ctx, locker, s)
		},
	}
	cmd.Flags().StringVar(&token, "holder", "", "only the holder with this token")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	a.conn.needed(cmd)
	return cmd
}

// breakHolders breaks the lock for each of the holders that were shown.
func (a *app) breakHolders(ctx context.Context, locker *lock.Locker, s inspect.Lock) error {
	broken := 0
	for _, h := range s.Holders {
		ok, err := inner.ByKey(locker, s.Key).Break(ctx, h.Token)
		if err != nil {
			return fmt.Errorf("%d of %d broken: %w", broken, len(s.Holders), err)
		}
		if ok {
			broken++
		}
	}
	if broken == 0 {
		return no("none of them holds %s any more; nothing was done", s.Key)
	}
	_, err := fmt.Fprintf(a.out, "\nbroken: %d of %d\n", broken, len(s.Holders))
	return err
}

// ask waits for a yes. Anything else, the end of the input too, is a no.
func (a *app) ask(ctx context.Context, question string) error {
	fmt.Fprint(a.errs, question)
	// A read of a terminal cannot be cancelled: at an interrupt it is left
	// behind, and ends with the program. The buffer lets it.
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.in).ReadString('\n') // cut short: no answer
		answer <- line
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.errs)
		return no("interrupted; nothing was done")
	case line := <-answer:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return nil
		}
		if !strings.HasSuffix(line, "\n") {
			fmt.Fprintln(a.errs)
		}
		return no("not confirmed; nothing was done (--yes does not ask)")
	}
}

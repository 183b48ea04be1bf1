package main

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strings"

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
		Short: "Take a lock from its holders, or open its gate, after asking",
		Long: `Take a lock from its holders: from all that are shown, or from the one with the
token given (list --json and show tell tokens). Without --holder it also opens a
closed gate of the key and ends its cooldown, whether or not somebody holds the lock. A rate that is used
up stays so. The first in line gets the lock at once.

Each holder is told: the context of its handler ends with cause lock.ErrLost, at its
next renewal at the latest. Until then it may still be at work: break a lock whose
holder is known to hang.

It asks first; without an answer nothing is done. Only the holders that it has
shown are broken, not who came meanwhile. When none of them was left, and no hold or
cooldown, the exit code is 1.`,
		Example: `  automutex break 'automutex:{itunes:verify|7}'
  automutex break 'itunes:verify|7' --holder iBq-amHluSdcW1Xu.3000.cbrfweqg --yes`,
		Args: exactly(1, "KEY"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runBreak(cmd, args[0], token, yes) },
	}
	cmd.Flags().StringVar(&token, "holder", "", "only the holder with this token")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	a.conn.needed(cmd)
	return cmd
}

// runBreak shows what a break is for, asks unless yes, and breaks.
func (a *app) runBreak(cmd *cobra.Command, key, token string, yes bool) error {
	ctx := cmd.Context()
	if cmd.Flags().Changed("holder") && token == "" {
		return usage("break: --holder is empty: list --json and show tell tokens")
	}
	return a.conn.onLocks(ctx, func(l locks) error { return a.breakAsked(ctx, l, key, token, yes) })
}

func (a *app) breakAsked(ctx context.Context, l locks, key, token string, yes bool) error {
	s, now, err := inspectOne(ctx, l, inspect.Key(a.conn.prefix, key))
	if err != nil {
		return err
	}
	s.Waiters = nil // not asked about
	opens := token == "" && s.Gate != nil && inspect.Breakable(s.Gate.Closed)
	if token != "" {
		s.Holders = slices.DeleteFunc(s.Holders, func(h inspect.Holder) bool { return h.Token != token })
	}
	switch {
	case len(s.Holders) == 0 && token != "":
		return no("nobody with the token %q holds %s", token, s.Key)
	case len(s.Holders) == 0 && s.Gate != nil && !opens:
		return no("nobody holds %s; its rate is used up, which break leaves as it is: the next starts in %s", s.Key, printable.Duration(s.Gate.Opens.Sub(now)))
	case len(s.Holders) == 0 && !opens:
		return no("nobody holds %s", s.Key)
	}
	if err := a.printLock(s, now, l.inspector()); err != nil {
		return err
	}
	if !yes {
		if err := a.ask(ctx, "\n"+breakQuestion(s, opens)+" [y/N] "); err != nil {
			return err
		}
	}
	return a.breakLock(ctx, l.Locker, s, opens)
}

// breakQuestion says what a break will do.
func breakQuestion(s inspect.Lock, opens bool) string {
	take := "Take the lock from " + printable.Count(len(s.Holders), "holder")
	switch {
	case !opens:
		return take + "?"
	case len(s.Holders) == 0:
		return "End the " + s.Gate.Noun() + "?"
	}
	return take + ", and end the " + s.Gate.Noun() + "?"
}

// breakLock breaks the lock for each of the holders that were shown, and then ends its
// hold or cooldown if it is to.
func (a *app) breakLock(ctx context.Context, locker *lock.Locker, s inspect.Lock, opens bool) error {
	m, broken, opened := inner.ByKey(locker, s.Key), 0, false
	for _, h := range s.Holders {
		ok, err := m.Break(ctx, h.Token)
		if err != nil {
			return fmt.Errorf("%d of %d broken: %w", broken, len(s.Holders), err)
		}
		if ok {
			broken++
		}
	}
	if opens {
		var err error
		if opened, err = inner.OpenGate(ctx, m); err != nil {
			return fmt.Errorf("%d of %d broken, and the %s not ended: %w", broken, len(s.Holders), s.Gate.Noun(), err)
		}
	}
	switch {
	case broken == 0 && !opened && len(s.Holders) == 0:
		return no("the %s of %s is over; nothing was done", s.Gate.Noun(), s.Key)
	case broken == 0 && !opened:
		return no("none of them holds %s any more; nothing was done", s.Key)
	}
	fmt.Fprintln(a.out)
	if len(s.Holders) > 0 {
		fmt.Fprintf(a.out, "broken: %d of %d\n", broken, len(s.Holders))
	}
	switch {
	case opened:
		fmt.Fprintf(a.out, "ended: the %s\n", s.Gate.Noun())
	case s.Gate != nil && inspect.Breakable(s.Gate.Closed) && !opens:
		fmt.Fprintf(a.out, "the %s goes on; break without --holder ends it\n", s.Gate.Noun())
	case s.Gate != nil && !opens:
		fmt.Fprintln(a.out, "its rate stays used up")
	}
	return nil
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

package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newSweep(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Remove what dead processes left behind",
		Long: `Remove what dead processes left behind: holders past their deadlines, and waiters
that ceased to ask. Nothing depends on it: each lock does the same when it is
asked for, and keys that nobody asks for expire.`,
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.conn.onLocks(cmd.Context(), func(l locks) error {
				removed, err := inner.Sweep(cmd.Context(), l.Locker)
				if err != nil {
					return fmt.Errorf("after %d removed: %w", removed, err)
				}
				_, err = fmt.Fprintf(a.out, "removed: %d\n", removed)
				return err
			})
		},
	}
	a.conn.needed(cmd)
	return cmd
}

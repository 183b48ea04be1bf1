package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/automutex/automutex/internal/doctor"
	"github.com/automutex/automutex/internal/printable"
)

func newDoctor(a *app) *cobra.Command {
	var options doctor.Options
	var asJSON bool
	cmd := a.online("doctor [FILE]", `Check Redis' settings and rights, and whether rules fit the tasks

Of Redis: its version, eviction, clock, the rights of this user, keys of another program where locks stand. Of the
workers: a prefix that none has, and rules that differ. What is paused, and ordered keys that do not go on. With the
rules of the FILE, or those that the workers say they run: rules whose task nothing serves while one that is spelt
alike is served, tasks that no key can be made from, waits longer than the Timeout of tasks, and an asynq that is not
in this database.

Each finding is a line: ok, note (may cause trouble later, or could not be checked) or bad
(causes trouble now). Something bad makes the exit code 1.`, needs(0, 1, "FILE"), func(cmd *cobra.Command, args []string) error {
		if options.Tasks < 1 {
			return usage("--tasks %d: at least 1", options.Tasks)
		}
		if len(args) > 0 {
			cfg, err := a.loadFor(cmd, args[0])
			if err != nil {
				return err
			}
			options.Config = &cfg
		}
		rdb, err := a.conn.open(cmd.Context())
		if err != nil {
			return err
		}
		options.Prefix = a.conn.prefix
		findings, err := doctor.Examine(cmd.Context(), rdb, options)
		printed := printAll(a.out, findings, asJSON, nil, func(f doctor.Finding) [][]string { return [][]string{{f.Level, f.What, f.Text}} })
		if err := errors.Join(err, rdb.Close(), printed); err != nil {
			return err
		}
		if n := doctor.CountBad(findings); n > 0 {
			return no("%d of %s bad", n, printable.Count(len(findings), "finding"))
		}
		return nil
	})
	cmd.Flags().IntVar(&options.Tasks, "tasks", 1000, "look at so many tasks of each queue and state at most")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line for each finding")
	return cmd
}

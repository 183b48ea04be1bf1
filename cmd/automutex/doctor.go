package main

import (
	"cmp"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/doctor"
	"github.com/automutex/automutex/internal/printable"
)

func newDoctor(a *app) *cobra.Command {
	var tasks int
	var checkEvery time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [FILE]",
		Short: "Check Redis' settings and rights, and whether rules fit the tasks",
		Long: `Check what keeps locks from working. Of Redis: its version, eviction, persistence, replicas,
the rights of this user (each command, key and channel is tried, on names of its
own) and Pub/Sub. With the FILE of the rules also: rules that match no task in any
queue, tasks that no key can be made from, tasks without attempts under a rule that
retries, waits longer than the Timeout of tasks, leases longer than asynq's, and
parked tasks that an idle server would fetch too slowly.

Each finding is a line: ok, note (may cause trouble later, or could not be checked)
or bad (causes trouble now). Something bad makes the exit code 1.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exactly(1, "FILE")(cmd, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if tasks < 1 {
				return usage("--tasks %d: at least 1", tasks)
			}
			if checkEvery <= 0 {
				return usage("--task_check_interval %s: must be positive", checkEvery)
			}
			ctx := cmd.Context()
			var cfg automutex.Config
			if len(args) > 0 {
				var err error
				if cfg, _, err = load(args[0]); err != nil {
					return err
				}
				if !cmd.Flags().Changed("prefix") {
					a.conn.prefix = cmp.Or(cfg.Prefix, a.conn.prefix)
				}
			}
			rdb, err := a.conn.open(ctx)
			if err != nil {
				return err
			}
			options := doctor.Options{
				Prefix: a.conn.prefix, Timeout: a.conn.timeout, Tasks: tasks,
				TaskCheckInterval: checkEvery, Assumed: !cmd.Flags().Changed("task_check_interval"),
			}
			if len(args) > 0 {
				options.Config = &cfg
			}
			findings, err := doctor.Examine(ctx, rdb, options)
			return errors.Join(err, rdb.Close(), a.verdict(findings, err, asJSON))
		},
	}
	cmd.Flags().IntVar(&tasks, "tasks", 1000, "look at so many tasks of each queue and state at most")
	cmd.Flags().DurationVar(&checkEvery, "task_check_interval", time.Second, "TaskCheckInterval of your servers (Redis does not know it)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line for each finding")
	a.conn.needed(cmd)
	return cmd
}

// verdict prints the findings. Without an error of the examination itself, bad ones are
// the error.
func (a *app) verdict(findings []doctor.Finding, failed error, asJSON bool) error {
	if err := printFindings(a.out, findings, asJSON); err != nil || failed != nil {
		return err
	}
	if n := doctor.CountBad(findings); n > 0 {
		return no("%d of %s bad", n, printable.Count(len(findings), "finding"))
	}
	return nil
}

func printFindings(out io.Writer, findings []doctor.Finding, asJSON bool) error {
	return printAll(out, findings, asJSON, nil, func(f doctor.Finding) []string { return []string{f.Level, f.What, f.Text} })
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/automutex/automutex"
)

// How much a finding matters.
const (
	fine = "ok"   // as it should be
	note = "note" // may bite some day, or could not be looked at
	bad  = "bad"  // bites
)

// finding is one thing that doctor looked at.
type finding struct {
	Level string `json:"level"`
	What  string `json:"what"`
	Text  string `json:"text"`
}

// doctor gathers findings.
type doctor struct {
	rdb      redis.UniversalClient
	prefix   string
	timeout  time.Duration
	assumed  bool // TaskCheckInterval is asynq's default: the command line does not say
	findings []finding
}

func (d *doctor) foundf(level, what, format string, args ...any) {
	d.findings = append(d.findings, finding{level, what, fmt.Sprintf(format, args...)})
}

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
			d := &doctor{rdb: rdb, prefix: a.conn.prefix, timeout: a.conn.timeout, assumed: !cmd.Flags().Changed("task_check_interval")}
			err = d.examine(ctx, cfg, len(args) > 0, tasks, checkEvery)
			return errors.Join(err, rdb.Close(), d.print(a.out, asJSON), d.verdict(err))
		},
	}
	cmd.Flags().IntVar(&tasks, "tasks", 1000, "look at so many tasks of each queue and state at most")
	cmd.Flags().DurationVar(&checkEvery, "task_check_interval", time.Second, "TaskCheckInterval of your servers (Redis does not know it)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object a line for each finding")
	a.conn.needed(cmd)
	return cmd
}

// examine goes through everything. An error ends it early: Redis is gone.
func (d *doctor) examine(ctx context.Context, cfg automutex.Config, rules bool, tasks int, checkEvery time.Duration) error {
	if err := d.servers(ctx); err != nil {
		return err
	}
	if err := d.rights(ctx); err != nil {
		return err
	}
	if err := d.pubsub(ctx); err != nil {
		return err
	}
	if !rules {
		d.foundf(note, "rules", "not looked at: give the FILE of the rules")
		return nil
	}
	return d.rules(ctx, cfg, tasks, checkEvery)
}

func (d *doctor) print(out io.Writer, asJSON bool) error {
	if asJSON {
		for _, f := range d.findings {
			if err := printJSON(out, f); err != nil {
				return err
			}
		}
		return nil
	}
	t := newTable(out)
	for _, f := range d.findings {
		t.row(f.Level, f.What, f.Text)
	}
	return t.flush()
}

// verdict is the exit code as an error.
func (d *doctor) verdict(err error) error {
	n := 0
	for _, f := range d.findings {
		if f.Level == bad {
			n++
		}
	}
	if n == 0 || err != nil { // which is told already
		return nil //nolint:nilerr // see above
	}
	return no("%d of %s bad", n, counted(len(d.findings), "finding"))
}

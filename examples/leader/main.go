// Command leader runs two replicas of a program with an asynq Scheduler, and kills
// the one that leads. Each tick is enqueued once at most; the other replica takes over when
// the lease of the killed one has ended.
//
// What automutex needs is in replica.go. The rest is the demo: the parent process
// serves an embedded Redis, starts the replicas, kills one and counts ticks.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// replicaEnv makes this program a replica; its value is the address of Redis.
const replicaEnv = "AUTOMUTEX_EXAMPLE_REPLICA"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if addr := os.Getenv(replicaEnv); addr != "" {
		os.Exit(replica(ctx, addr))
	}
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main with everything it touches handed in. It answers 0, 1 when a tick
// was enqueued twice or the demo broke off, and 2 when the flags are wrong.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("leader", flag.ContinueOnError)
	flags.SetOutput(stderr)
	before := flags.Int("before", 3, "ticks, of a second each, before the leader is killed")
	after := flags.Int("after", 3, "ticks of the other replica to wait for")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if flags.NArg() > 0 || *before < 1 || *after < 1 {
		fmt.Fprintln(stderr, "leader: -before and -after take at least 1, and there are no arguments beside the flags; see -h")
		return 2
	}
	d := &demo{stdout: stdout, ticks: make(chan tick)}
	if err := d.run(ctx, *before, *after); err != nil {
		fmt.Fprintln(stderr, "leader:", err)
		return 1
	}
	return 0
}

// tick is one task that a replica enqueued.
type tick struct {
	replica string
	second  int64
	err     error // the replica printed something else
}

type demo struct {
	stdout io.Writer
	ticks  chan tick // from the goroutines that read the replicas' output
	seen   []tick
}

// run starts two replicas, kills the leader after some ticks, and waits for ticks
// of the other one.
func (d *demo) run(ctx context.Context, before, after int) error {
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true) // as in Redis: a key expires as time goes by
	if err := server.Start(); err != nil {
		return fmt.Errorf("starting the embedded Redis: %w", err)
	}
	defer server.Close()
	ctx, cancel := context.WithCancel(ctx)
	replicas := map[string]*exec.Cmd{}
	defer func() {
		cancel() // kills the replicas; those who read them end with that
		for _, cmd := range replicas {
			_ = cmd.Wait() // killed, as it should be
		}
	}()
	for _, name := range []string{"A", "B"} {
		cmd, err := d.start(ctx, name, server.Addr())
		if err != nil {
			return err
		}
		replicas[name] = cmd
	}

	if err := d.collect(ctx, before); err != nil {
		return err
	}
	leader := d.seen[len(d.seen)-1].replica
	killed := time.Now()
	if err := replicas[leader].Process.Kill(); err != nil {
		return fmt.Errorf("killing replica %s: %w", leader, err)
	}
	fmt.Fprintf(d.stdout, "replica %s, which leads, is killed; its lease lasts %s at most\n", leader, leaseLength)
	if err := d.collect(ctx, after); err != nil {
		return err
	}
	return d.report(leader, killed)
}

// start starts a replica and the goroutine that reads its ticks, which ends with
// the replica or with ctx.
func (d *demo) start(ctx context.Context, name, addr string) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), replicaEnv+"="+addr)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("starting replica %s: %w", name, err)
	}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			second, err := strconv.ParseInt(lines.Text(), 10, 64)
			select {
			case d.ticks <- tick{name, second, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return cmd, nil
}

// collect waits for n ticks.
func (d *demo) collect(ctx context.Context, n int) error {
	for range n {
		select {
		case t := <-d.ticks:
			if t.err != nil {
				return fmt.Errorf("replica %s: %w", t.replica, t.err)
			}
			d.seen = append(d.seen, t)
			fmt.Fprintf(d.stdout, "%s  replica %s enqueues the tick\n", time.Unix(t.second, 0).Format(time.TimeOnly), t.replica)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// report checks that no second has two ticks, and prints the gap.
func (d *demo) report(leader string, killed time.Time) error {
	enqueued := map[int64]bool{}
	var gap time.Duration
	for _, t := range d.seen {
		if enqueued[t.second] {
			return fmt.Errorf("the tick of %s was enqueued twice", time.Unix(t.second, 0).Format(time.TimeOnly))
		}
		enqueued[t.second] = true
		if t.replica != leader && gap == 0 {
			gap = time.Unix(t.second, 0).Sub(killed)
		}
	}
	fmt.Fprintf(d.stdout, "result: ticks=%d twice=0 gap=%s\n", len(d.seen), gap.Round(100*time.Millisecond))
	return nil
}

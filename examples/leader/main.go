// Command leader runs two replicas of a program with an asynq Scheduler, and kills the one that leads. Each tick is
// enqueued once at most; the other replica takes over when the lease of the killed one has ended.
//
// What automutex needs is in replica. The rest is the demo: the parent process serves an embedded Redis, starts the
// replicas, kills one and counts ticks.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/lock"
)

// leaseLength bounds the gap after a leader was killed. A lease is renewed while its holder lives, so it may be short.
const leaseLength = 3 * time.Second

// replica is what each replica of a program does: it runs the Scheduler while it leads. It prints the time of each tick
// that it enqueued.
func replica(addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	locker := lock.New(rdb, lock.Options{TTL: leaseLength})
	defer locker.Close()
	return automutex.LeadScheduler(context.Background(), locker, "digest-scheduler", func() (*asynq.Scheduler, error) {
		scheduler := asynq.NewSchedulerFromRedisClient(rdb, &asynq.SchedulerOpts{
			LogLevel: asynq.ErrorLevel,
			PostEnqueueFunc: func(_ *asynq.TaskInfo, err error) {
				if err == nil {
					fmt.Println(time.Now().Add(time.Second / 8).Truncate(time.Second).Format(time.TimeOnly)) // a tick may be told late
				}
			},
		})
		// Seconds, for a demo that is over soon; asynq's times of the clock begin at a minute. A program says
		// "*/10 * * * *": a period such as "@every 10m" begins anew with each term, and may never end.
		_, err := scheduler.Register("@every 1s", asynq.NewTask("digest", nil))
		return scheduler, err
	})
}

// replicaEnv makes this program a replica; its value is the address of Redis.
const replicaEnv = "AUTOMUTEX_EXAMPLE_REPLICA"

func main() {
	run := func() error { return run(os.Stdout, 3) }
	if addr := os.Getenv(replicaEnv); addr != "" {
		run = func() error { return replica(addr) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
}

// run starts two replicas, kills the leader after some ticks, and waits for as many of the other one.
func run(out io.Writer, ticks int) error {
	server, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	server.ClockTTL(true) // as in Redis: a key expires as time goes by
	program, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // kills the replicas; those who read them end with that
	type tick struct {
		of         *exec.Cmd
		name, when string
	}
	said := make(chan tick)
	for _, name := range []string{"A", "B"} {
		cmd := exec.CommandContext(ctx, program)
		cmd.Env, cmd.Stderr = append(os.Environ(), replicaEnv+"="+server.Addr()), os.Stderr
		pipe, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return fmt.Errorf("starting replica %s: %w", name, err)
		}
		go func() {
			for lines := bufio.NewScanner(pipe); lines.Scan(); {
				said <- tick{cmd, name, lines.Text()}
			}
			_ = cmd.Wait() // killed
		}()
	}
	seen := map[string]bool{}
	for i := 1; i <= 2*ticks; i++ {
		var t tick
		select {
		case t = <-said:
		case <-time.After(time.Minute):
			return errors.New("no tick within a minute")
		}
		fmt.Fprintf(out, "%s  replica %s enqueues the tick\n", t.when, t.name)
		if seen[t.when] {
			return fmt.Errorf("the tick of %s was enqueued twice", t.when)
		}
		if seen[t.when] = true; i == ticks {
			fmt.Fprintf(out, "replica %s, which leads, is killed; its lease lasts %s at most\n", t.name, leaseLength)
			if err := t.of.Process.Kill(); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(out, "result: ticks=%d twice=0\n", len(seen))
	return nil
}

// Command worker shows tasks taking turns. It enqueues webhook deliveries of a few repositories,
// works them off with an asynq server whose guard lets one task per repository run at a time, and
// draws who ran when. With -unguarded the same happens without the guard, with -in-order also in the
// order of enqueueing, through failures.
//
// All that asynq and automutex need is in this file, from top to bottom. Package
// examples/internal/demo reads the flags, makes the tasks, notes what the handlers did, and draws.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9/logging"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/examples/internal/demo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logging.Disable()            // go-redis' own; the errors reach us anyway
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main with everything it touches handed in. It returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	d, err := demo.Open(ctx, args, stdin, stdout, stderr)
	if err != nil {
		return demo.Refuse(stderr, err)
	}
	defer d.Close()
	ctx, end := context.WithCancel(ctx) // a page that fails ends the run, too
	defer end()

	// Without the guard these two are all that the server gets.
	work, config := asynq.Handler(handler(d)), serverConfig(d)

	rules := guardConfig(d)
	var guard *automutex.Guard
	producer := asynq.NewClientFromRedisClient(d.Redis)
	client := automutex.Enqueuer(producer)
	if !d.Unguarded {
		if guard, err = automutex.New(d.Redis, rules); err != nil {
			return demo.Refuse(stderr, err)
		}
		// What an asynq user adds: mux.Use(guard.Middleware), which for a single handler is a
		// call, and guard.ServerConfig around the server's configuration.
		work, config = guard.Middleware(work), guard.ServerConfig(config)
		if d.InOrder { // producers give each task its place in the order of its key
			if client, err = automutex.NewClient(d.Redis, producer, rules); err != nil {
				return demo.Refuse(stderr, err)
			}
		}
		if err := d.ServePage(ctx, end, rules); err != nil {
			return demo.Refuse(stderr, err)
		}
	}
	if err := d.Begin(rules); err != nil {
		return demo.Refuse(stderr, err)
	}
	err = workOff(ctx, d, asynq.NewServerFromRedisClient(d.Redis, config), work, guard, client)
	return d.Report(ctx, err)
}

// handler works on one task. It knows nothing of locks.
func handler(d *demo.Demo) asynq.HandlerFunc {
	return func(ctx context.Context, t *asynq.Task) error {
		end := d.Note(ctx, t)
		err := d.Work(ctx)
		end(err)
		return err
	}
}

// guardConfig says who takes turns: what -config says, else tasks with equal -on fields, of
// whatever type, since all rules have one Scope.
func guardConfig(d *demo.Demo) automutex.Config {
	cfg, fromFile := d.ConfigFile()
	if !fromFile {
		for _, task := range d.TaskPatterns() {
			cfg.Rules = append(cfg.Rules, automutex.Rule{
				Task:  task, // "github:" is every task type that begins so
				Scope: "repository",
				On:    d.On,
				Limit: d.Limit, Rate: d.Rate, TTL: d.TTL,
				Busy: d.Busy, Wait: d.Wait, InOrder: d.InOrder,
			})
		}
	}
	cfg.Prefix = cmp.Or(cfg.Prefix, d.Name)
	if d.HasPage() {
		cfg.History = cmp.Or(cfg.History, 100) // the page of a key draws them
	}
	cfg.Logger, cfg.Observe = d.Log, d.Observe
	return cfg
}

// serverConfig is an ordinary asynq configuration, with shorter intervals than asynq's own so
// that the demo doesn't take long.
func serverConfig(d *demo.Demo) asynq.Config {
	return asynq.Config{
		Concurrency:              d.Workers,
		Queues:                   map[string]int{d.Name: 1},
		TaskCheckInterval:        20 * time.Millisecond,
		DelayedTaskCheckInterval: 200 * time.Millisecond,
		ShutdownTimeout:          3 * time.Second,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration {
			return time.Second // for attempts that failed: -busy fail
		},
		LogLevel: asynq.ErrorLevel, // at WarnLevel there is a line per archived task
	}
}

// workOff enqueues the tasks, and returns when all are worked off or ctx has ended, with the
// server and the guard stopped.
func workOff(ctx context.Context, d *demo.Demo, srv *asynq.Server, work asynq.Handler, guard *automutex.Guard, client automutex.Enqueuer) error {
	if err := srv.Start(work); err != nil {
		return fmt.Errorf("starting the asynq server: %w", err)
	}
	defer stop(ctx, srv, guard)
	err := d.EachTask(ctx, func(task *asynq.Task, id string) error {
		_, err := client.EnqueueContext(context.Background(), task, asynq.Queue(d.Name), asynq.TaskID(id), asynq.MaxRetry(3))
		return err
	})
	return errors.Join(err, d.Drain(ctx))
}

// stop ends the server and the guard side by side: the guard sends away the tasks that wait in
// line, which the server would wait for.
func stop(ctx context.Context, srv *asynq.Server, guard *automutex.Guard) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var closing sync.WaitGroup // one goroutine, which ends with the guard's Close
	if guard != nil {
		closing.Go(func() { guard.Close(ctx) })
	}
	srv.Shutdown()
	closing.Wait()
}

// Command worker shows tasks taking turns. It enqueues webhook deliveries of a few repositories, works them off with an
// asynq server whose guard lets one task per repository run at a time, and draws who ran when. With -input the tasks
// are yours, with -unguarded they run without the guard, with -in-order also in the order of enqueueing, through
// failures. With -noisy a tenant has a backlog, and another one a task now and then: first without the guard, then with
// it.
//
// All that asynq and automutex need is in this file. Package examples/internal/demo has the rest.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9/logging"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/examples/internal/demo"
	"github.com/automutex/automutex/web"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logging.Disable()            // go-redis' own; the errors reach us anyway
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	d, err := demo.Open(ctx, args, stdout, stderr)
	if err != nil {
		return demo.Refuse(stderr, err)
	}
	defer d.Close()
	exit := once(ctx, d, stderr)
	for d.Again(exit) {
		exit = once(ctx, d, stderr)
	}
	return exit
}

// once has a server work off the tasks, and returns the exit status.
func once(ctx context.Context, d *demo.Demo, stderr io.Writer) int {
	// Without the guard these two are all that the server gets.
	work, config := asynq.Handler(handler(d)), serverConfig(d)

	rules := guardConfig(d)
	if err := d.Begin(rules); err != nil {
		return demo.Refuse(stderr, err)
	}
	var guard *automutex.Guard
	producer := asynq.NewClientFromRedisClient(d.Redis)
	client := automutex.Enqueuer(producer)
	if !d.Unguarded {
		var err error
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
	}
	if err := servePage(d, rules); err != nil {
		return demo.Refuse(stderr, err)
	}
	exit := d.Report(workOff(ctx, d, asynq.NewServerFromRedisClient(d.Redis, config), work, guard, client))
	if d.Page != nil {
		<-ctx.Done()
	}
	return exit
}

// handler works on one task. It knows nothing of locks.
func handler(d *demo.Demo) asynq.HandlerFunc {
	return func(ctx context.Context, _ *asynq.Task) error { return d.Work(ctx) }
}

// guardConfig says who takes turns: tasks with equal -on fields, of whatever type that begins so.
func guardConfig(d *demo.Demo) automutex.Config {
	cfg := automutex.Config{
		Rules: []automutex.Rule{{
			Task: d.Type, Scope: "repository", On: d.On,
			Limit: d.Limit, Busy: d.Busy, Wait: d.Wait, InOrder: d.InOrder,
		}},
		Prefix: d.Name, Logger: d.Log, Observe: d.Observe,
	}
	if d.Page != nil {
		cfg.History = 100 // runs of each key, which its page draws
	}
	return cfg
}

// servePage serves the page for operators, with -web. A program with a login gives each of its users their Access.
func servePage(d *demo.Demo, rules automutex.Config) error {
	if d.Page == nil {
		return nil
	}
	access := func(r *http.Request) web.Access {
		if demo.IsLocal(r.Host) {
			return web.AccessOperate
		}
		return web.AccessNone
	}
	page, err := web.New(d.Redis, web.Options{Prefix: rules.Prefix, Rules: rules.Rules, Logger: d.Log, Access: access})
	if err != nil {
		return err
	}
	go func() { // ends with d.Close
		_ = (&http.Server{Handler: page, ReadHeaderTimeout: 10 * time.Second}).Serve(d.Page)
		if closer, ok := page.(io.Closer); ok { // web.New says that it is one
			_ = closer.Close()
		}
	}()
	return nil
}

// serverConfig is an ordinary asynq configuration, with shorter intervals than asynq's own.
func serverConfig(d *demo.Demo) asynq.Config {
	return asynq.Config{
		Concurrency:              d.Workers,
		Queues:                   map[string]int{d.Name: 1},
		TaskCheckInterval:        20 * time.Millisecond,
		DelayedTaskCheckInterval: 200 * time.Millisecond,
		ShutdownTimeout:          3 * time.Second,
		// of attempts that failed
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second },
		// at WarnLevel there is a line per archived task
		LogLevel: asynq.ErrorLevel,
	}
}

// workOff enqueues the tasks, and returns when all are worked off or ctx has ended, with the
// server and the guard stopped.
func workOff(ctx context.Context, d *demo.Demo, srv *asynq.Server, work asynq.Handler, guard *automutex.Guard,
	client automutex.Enqueuer) error {
	if err := srv.Start(work); err != nil {
		return fmt.Errorf("starting the asynq server: %w", err)
	}
	defer stop(srv, guard)
	err := d.EachTask(ctx, func(task *asynq.Task, id string) error {
		_, err := client.EnqueueContext(context.Background(), task, asynq.Queue(d.Name), asynq.TaskID(id), asynq.MaxRetry(3))
		return err
	})
	return errors.Join(err, d.Drain(ctx))
}

// stop ends both side by side: the guard sends away the tasks in line, which the server would wait for.
func stop(srv *asynq.Server, guard *automutex.Guard) {
	var closing sync.WaitGroup // one goroutine, which ends with the guard's Close
	if guard != nil {
		closing.Go(func() { _ = guard.Close(context.Background()) })
	}
	srv.Shutdown()
	closing.Wait()
}

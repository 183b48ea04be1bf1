// Command worker shows tasks taking turns. It enqueues webhook deliveries of a
// few repositories, works them off with an asynq server whose guard lets one
// task per repository run at a time, and draws who ran when. With -unguarded
// the same happens without the guard.
//
// What automutex needs is in guard.go, and in the three places of this file
// where the guard is named. The rest is the demo: events.go and input.go make
// the tasks, server.go runs them, record.go notes what the handlers did,
// account.go finds out what became of each task, timeline.go, parked.go,
// chart.go and page.go show it.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9/logging"

	"github.com/automutex/automutex"
)

// What the program answers to the shell.
const (
	exitOK       = 0
	exitFindings = 1 // tasks lost, runs overlapping in spite of the guard, or the run broke off
	exitUsage    = 2 // a flag, the input or Redis is not fit for a run
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logging.Disable()            // go-redis' own; the errors reach us anyway
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main with everything it touches handed in.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	screen := newScreen(stdout, stderr)
	stderr = &sharedWriter{w: stderr}
	refuse := func(err error) int {
		// Each mistake of a -config is a line.
		fmt.Fprintf(stderr, "worker: %s\n", strings.ReplaceAll(err.Error(), "\n", "\nworker: "))
		return exitUsage
	}

	opts, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		return refuse(err)
	}
	if opts.html != "" {
		if err := probe(opts.html); err != nil {
			return refuse(err)
		}
	}
	store, err := openRedis(ctx, opts.redis)
	if err != nil {
		return refuse(err)
	}
	defer store.close()
	events, err := loadEvents(ctx, opts, stdin, stderr)
	if err != nil {
		return refuse(err)
	}

	ctx, end := context.WithCancel(ctx) // a page that fails ends the run, too
	defer end()
	// Queue and locks have names of their own, so that a Redis in use for
	// something else, or for a second demo, is not disturbed.
	name := "automutex-demo-" + strings.ToLower(rand.Text()[:8])
	log := newLog(stderr)
	rec := newRecorder()
	d := &demo{
		opts: opts, store: store, queue: name, rec: rec,
		inspector: asynq.NewInspectorFromRedisClient(store.client),
	}

	// The two lines that an asynq user adds: mux.Use(guard.Middleware), which
	// for a single handler is a call, and guard.ServerConfig around the
	// server's configuration.
	config := serverConfig(opts, name, log)
	work := asynq.Handler(handler(opts, rec))
	if !opts.unguarded {
		if work, config, err = d.addGuard(ctx, end, work, config, patterns(events), log); err != nil {
			return refuse(err)
		}
		defer d.page.close()
	}
	d.server = asynq.NewServerFromRedisClient(store.client, config)
	return d.run(ctx, work, events, screen, stderr)
}

// demo is one run, from the first enqueue to the result.
type demo struct {
	opts      options
	store     *store
	queue     string
	rec       *recorder
	inspector *asynq.Inspector
	server    *asynq.Server
	guard     *automutex.Guard // nil when unguarded
	page      *operators       // nil without -web
}

// addGuard puts the guard around handler and server, and serves the page of -web, which
// d.page.close ends. A page that fails calls end.
func (d *demo) addGuard(ctx context.Context, end func(), work asynq.Handler, config asynq.Config, tasks []string, log *slog.Logger) (asynq.Handler, asynq.Config, error) {
	guard, cfg, err := newGuard(d.store.client, d.opts, d.queue, tasks, d.rec, log)
	if err != nil {
		return nil, config, err
	}
	d.guard = guard
	if d.opts.web != "" {
		if d.page, err = servePage(ctx, end, d.opts.web, d.store.client, cfg, log); err != nil {
			return nil, config, err
		}
	}
	return guard.Middleware(work), guard.ServerConfig(config), nil
}

func (d *demo) run(ctx context.Context, work asynq.Handler, events []event, screen screen, stderr io.Writer) int {
	summary := d.summary(len(events))
	fmt.Fprintf(screen.out, "%s\n\n", summary)
	if d.page != nil {
		fmt.Fprintf(screen.out, "the page for operators is at %s until the demo ends (Ctrl-C)\n\n", d.page.url)
	}

	err := d.workOff(ctx, work, events, screen, stderr)
	left, lerr := inventory(d.inspector, d.queue)
	err = errors.Join(err, lerr, d.page.failure())
	runs, parked := d.rec.snapshot()
	t := newTimeline(runs, parked, d.opts.limit, d.opts.nobody())
	if d.opts.rules != nil {
		d.opts.rules.judge(&t, events)
	}
	result := d.rec.account(left)
	result.overlaps = t.overlaps()

	what := d.opts.what()
	if len(t.rows) > 0 {
		fmt.Fprintln(screen.out, chart(t, what, screen.width))
	}
	printArchived(screen.out, left.archived)
	if d.opts.html != "" {
		err = errors.Join(err, writePage(d.opts.html, t, summary, what, result.String()))
	}
	switch {
	case result.queued > 0 && d.store.embedded:
		fmt.Fprintf(screen.out, "queued=%d (gone with %s)\n", result.queued, d.store.name)
	case result.queued > 0:
		fmt.Fprintf(screen.out, "queued=%d in asynq queue %s of %s; to remove it: asynq queue rm --force %[2]s\n",
			result.queued, d.queue, d.store.name)
	default:
		err = errors.Join(err, removeQueue(ctx, d.store.client, d.inspector, d.queue, d.rec.start))
	}
	if err != nil {
		fmt.Fprintf(stderr, "worker: %v\n", err)
	}
	fmt.Fprintln(screen.out, result)
	if err != nil || result.lost > 0 || result.overlaps > 0 && d.guard != nil {
		return exitFindings
	}
	return exitOK
}

// workOff enqueues the events, and returns when all are worked off or ctx has
// ended, with the server and the guard stopped.
func (d *demo) workOff(ctx context.Context, work asynq.Handler, events []event, screen screen, stderr io.Writer) error {
	if err := d.server.Start(work); err != nil {
		return fmt.Errorf("starting the asynq server: %w", err)
	}
	defer d.stop(ctx)
	if len(events) == 0 {
		return nil
	}
	update, remove := newProgress(stderr, screen.animated, len(events))
	defer remove()
	client := asynq.NewClientFromRedisClient(d.store.client)
	err := enqueue(ctx, client, d.queue, events, d.opts.on, d.rec)
	if len(d.rec.order) == 0 {
		return err
	}
	return errors.Join(err, drain(ctx, d.inspector, d.queue, func(left int) { update(len(d.rec.order) - left) }))
}

// stop ends the server and the guard side by side: the guard sends away the
// tasks that wait in line, which the server would wait for.
func (d *demo) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var closing sync.WaitGroup // one goroutine, which ends with the guard's Close
	if d.guard != nil {
		closing.Go(func() { d.guard.Close(ctx) })
	}
	d.server.Shutdown()
	closing.Wait()
}

func (d *demo) summary(events int) string {
	guarded := "unguarded"
	if d.guard != nil && d.opts.rules != nil {
		guarded = fmt.Sprintf("%d rules of %s", len(d.opts.rules.cfg.Rules), d.opts.rules.path)
	} else if d.guard != nil {
		wait := fmt.Sprintf("wait %s, ", d.opts.wait)
		if d.opts.busy == automutex.Park.String() {
			wait = "" // it lasts as long as it takes
		}
		guarded = fmt.Sprintf("one turn per %s: limit %d, %sthen %s",
			strings.Join(d.opts.on, " + "), d.opts.limit, wait, d.opts.busy)
	}
	return fmt.Sprintf("%d tasks, %d workers, %s of work each, on %s; %s",
		events, d.opts.workers, d.opts.work, d.store.name, guarded)
}

// probe makes sure that file can be written before a whole run is spent.
func probe(file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("-html: %w", err)
	}
	return f.Close()
}

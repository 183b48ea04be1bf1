// Package demo is the part of examples/worker that has nothing to do with locks: it reads the
// flags, connects to Redis, makes the tasks, notes what the handlers did, and draws it.
package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
)

// What the program answers to the shell.
const (
	ExitOK       = 0
	ExitFindings = 1 // tasks lost, runs overlapping in spite of the guard, or the run broke off
	ExitUsage    = 2 // a flag, the input or Redis is not fit for a run
)

// Demo is one run, from the flags to the result.
type Demo struct {
	Flags
	Redis redis.UniversalClient
	// Name is that of the queue, and begins the names of the locks. It is random, so that a
	// Redis in use for something else, or for a second demo, is not disturbed.
	Name string
	Log  *slog.Logger

	store     *store
	events    []event
	rec       *recorder
	inspector *asynq.Inspector
	screen    screen
	stderr    io.Writer
	page      *operators // nil without -web
}

// Open reads the flags, connects to Redis, and makes or reads the tasks. Close the Demo after use.
// What is wrong goes to Refuse.
func Open(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (*Demo, error) {
	d := &Demo{screen: newScreen(stdout, stderr), stderr: &sharedWriter{w: stderr}}
	var err error
	if d.Flags, err = parseFlags(args, d.stderr); err != nil {
		return nil, err
	}
	if d.html != "" {
		if err := probe(d.html); err != nil {
			return nil, err
		}
	}
	if d.store, err = openRedis(ctx, d.redis); err != nil {
		return nil, err
	}
	if d.events, err = loadEvents(ctx, d.Flags, stdin, d.stderr); err != nil {
		d.store.close()
		return nil, err
	}
	d.Redis, d.inspector = d.store.client, asynq.NewInspectorFromRedisClient(d.store.client)
	d.Name = "automutex-demo-" + strings.ToLower(rand.Text()[:8])
	d.Log, d.rec = newLog(d.stderr), newRecorder()
	return d, nil
}

// Refuse says why there is no run, and returns the exit status. Each mistake of a -config is a line.
func Refuse(stderr io.Writer, err error) int {
	if errors.Is(err, flag.ErrHelp) {
		return ExitOK
	}
	fmt.Fprintf(stderr, "worker: %s\n", strings.ReplaceAll(err.Error(), "\n", "\nworker: "))
	return ExitUsage
}

// Close ends the page, and the client of Redis.
func (d *Demo) Close() {
	d.page.close()
	d.store.close()
}

// ConfigFile is what -config says; false: there is none, and the rule comes from the other flags.
func (d *Demo) ConfigFile() (automutex.Config, bool) {
	if d.rules == nil {
		return automutex.Config{}, false
	}
	return d.rules.cfg, true
}

// TaskPatterns are patterns for Rule.Task that cover every task.
func (d *Demo) TaskPatterns() []string { return patterns(d.events) }

// HasPage reports whether there is a page of -web.
func (d *Demo) HasPage() bool { return d.web != "" }

// ServePage serves the page of -web, which Close ends. A page that fails calls end.
func (d *Demo) ServePage(ctx context.Context, end func(), cfg automutex.Config) (err error) {
	if d.HasPage() {
		d.page, err = servePage(ctx, end, d.web, d.Redis, cfg, d.Log)
	}
	return err
}

// AsynqLog lets asynq log where the guard does.
func (d *Demo) AsynqLog() asynq.Logger { return asynqLog{d.Log} }

// Begin prints what is about to run.
func (d *Demo) Begin() {
	fmt.Fprintf(d.screen.out, "%s\n\n", d.summary())
	if d.page != nil {
		fmt.Fprintf(d.screen.out, "the page for operators is at %s until the demo ends (Ctrl-C)\n\n", d.page.url)
	}
}

// EachTask has enqueue hand the tasks to asynq until ctx ends, which is no error.
func (d *Demo) EachTask(ctx context.Context, enqueue func(task *asynq.Task, id string) error) error {
	for i, e := range d.events {
		select {
		case <-ctx.Done():
			return nil // interrupted: accounted for
		default:
		}
		id := fmt.Sprintf("event-%06d", i+1)
		entity, _ := entityOf(e.Payload, d.On)
		d.rec.enqueue(entity, id)
		// Not under ctx: an enqueue cut off half-way may have happened or not.
		if err := enqueue(asynq.NewTask(e.Type, e.Payload), id); err != nil {
			d.rec.forget(id)
			return fmt.Errorf("enqueueing event %d of %d: %w", i+1, len(d.events), err)
		}
	}
	return nil
}

// Drain waits until nothing in the queue is left to run, or ctx ends.
func (d *Demo) Drain(ctx context.Context) error {
	enqueued := len(d.rec.order)
	if enqueued == 0 {
		return nil
	}
	update, remove := newProgress(d.stderr, d.screen.animated, len(d.events))
	defer remove()
	return drain(ctx, d.inspector, d.Name, func(left int) { update(enqueued - left) })
}

// Report draws who ran when, prints what became of each task, and removes the queue. It takes
// the error that the run ended with, and returns the exit status. The server has stopped.
func (d *Demo) Report(ctx context.Context, err error) int {
	left, lerr := inventory(d.inspector, d.Name)
	err = errors.Join(err, lerr, d.page.failure())
	runs, parked := d.rec.snapshot()
	t := newTimeline(runs, parked, d.Limit, d.nobody())
	if d.rules != nil {
		d.rules.judge(&t, d.events)
	}
	result := d.rec.account(left)
	result.overlaps = t.overlaps()

	what := d.what()
	if len(t.rows) > 0 {
		fmt.Fprintln(d.screen.out, chart(t, what, d.screen.width))
	}
	printArchived(d.screen.out, left.archived)
	if d.html != "" {
		err = errors.Join(err, writePage(d.html, t, d.summary(), what, result.String()))
	}
	switch {
	case result.queued > 0 && d.store.embedded:
		fmt.Fprintf(d.screen.out, "queued=%d (gone with %s)\n", result.queued, d.store.name)
	case result.queued > 0:
		fmt.Fprintf(d.screen.out, "queued=%d in asynq queue %s of %s; to remove it: asynq queue rm --force %[2]s\n",
			result.queued, d.Name, d.store.name)
	default:
		err = errors.Join(err, removeQueue(ctx, d.Redis, d.inspector, d.Name, d.rec.start))
	}
	if err != nil {
		fmt.Fprintf(d.stderr, "worker: %v\n", err)
	}
	broken := 0
	if d.InOrder {
		var failed int
		broken, failed = d.rec.disorder()
		fmt.Fprintf(d.screen.out, "in order: %d attempts failed and kept their places; %d tasks began after one of their key that was enqueued later\n", failed, broken)
	}
	fmt.Fprintln(d.screen.out, result)
	if err != nil || broken > 0 || result.lost > 0 || result.overlaps > 0 && !d.Unguarded {
		return ExitFindings
	}
	return ExitOK
}

// summary is the head line.
func (d *Demo) summary() string {
	guarded := "unguarded"
	if !d.Unguarded && d.rules != nil {
		guarded = fmt.Sprintf("%d rules of %s", len(d.rules.cfg.Rules), d.rules.path)
	} else if !d.Unguarded {
		wait := fmt.Sprintf("wait %s, ", d.Wait)
		if d.busy == automutex.Park.String() {
			wait = "" // it lasts as long as it takes
		}
		guarded = fmt.Sprintf("one turn per %s: limit %d, %sthen %s",
			strings.Join(d.On, " + "), d.Limit, wait, d.busy)
		if d.InOrder {
			guarded += ", in order"
		}
	}
	return fmt.Sprintf("%d tasks, %d workers, %s of work each, on %s; %s",
		len(d.events), d.Workers, d.work, d.store.name, guarded)
}

// probe makes sure that file can be written before a whole run is spent.
func probe(file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("-html: %w", err)
	}
	return f.Close()
}

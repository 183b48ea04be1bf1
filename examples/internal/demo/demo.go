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
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"golang.org/x/term"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/examples/internal/anyredis"
)

// What the program answers to the shell.
const (
	ExitOK       = 0
	ExitFindings = 1 // tasks lost, runs overlapping in spite of the guard, or the run broke off
	ExitUsage    = 2 // a flag, the input or Redis is not fit for a run
)

// redisGone is how long Redis may be out of reach before the demo gives up.
const redisGone = 30 * time.Second

// Demo is one run, from the flags to the result.
type Demo struct {
	Flags
	Redis redis.UniversalClient
	// Name is that of the queue, and begins the names of the locks. It is random, so that a
	// Redis in use for something else, or for a second demo, is not disturbed.
	Name string
	Log  *slog.Logger

	store     *anyredis.Store
	events    []event
	rec       *recorder
	inspector *asynq.Inspector
	keys      []ruleKeys
	out       io.Writer // stdout; colours it can't show are left out
	stderr    io.Writer
	width     int        // of stdout
	animated  bool       // stderr is a terminal
	page      *operators // nil without -web
}

// Open reads the flags, connects to Redis, and makes or reads the tasks. Close the Demo after use.
// What is wrong goes to Refuse.
func Open(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (*Demo, error) {
	d := &Demo{out: colorprofile.NewWriter(stdout, os.Environ()), stderr: stderr, width: plainWidth, animated: columns(stderr) > 0, rec: newRecorder()}
	if width := columns(stdout); width > 0 {
		d.width = min(max(width, 60), 200)
	}
	var err error
	if d.Flags, err = parseFlags(args, stderr); err != nil {
		return nil, err
	}
	if d.events, err = loadEvents(d.Flags, stdin, stderr); err != nil {
		return nil, err
	}
	if d.store, err = anyredis.Open(ctx, d.redis); err != nil {
		return nil, err
	}
	d.Redis, d.inspector = d.store.Client, asynq.NewInspectorFromRedisClient(d.store.Client)
	d.Name = "automutex-demo-" + strings.ToLower(rand.Text()[:8])
	d.Log = slog.New(quiet{slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})})
	return d, nil
}

// columns is how wide a terminal is; 0 for what is none.
func columns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// quiet leaves out the line that the guard logs for each task without a key:
// the demo tells at the end which tasks were archived, and why.
type quiet struct{ slog.Handler }

// Handle implements slog.Handler.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	unkeyed := false
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			_, unkeyed = errors.AsType[*automutex.KeyError](err)
		}
		return !unkeyed
	})
	if unkeyed {
		return nil
	}
	return q.Handler.Handle(ctx, r)
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
	d.store.Close()
}

// ConfigFile is what -config says; false: there is none, and the rule comes from the other flags.
func (d *Demo) ConfigFile() (automutex.Config, bool) { return d.rules, d.config != "" }

// TaskPatterns are patterns for Rule.Task that cover every task.
func (d *Demo) TaskPatterns() []string { return patterns(d.events) }

// HasPage reports whether there is a page of -web.
func (d *Demo) HasPage() bool { return d.web != "" }

// Begin prints what is about to run. A row of the chart is a key of the rules.
func (d *Demo) Begin(rules automutex.Config) (err error) {
	if d.keys, err = keysOf(rules); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "%s\n\n", d.summary())
	if d.page != nil {
		fmt.Fprintf(d.out, "the page for operators is at %s until the demo ends (Ctrl-C)\n\n", d.page.url)
	}
	return nil
}

// EachTask has enqueue hand the tasks to asynq until ctx ends, which is no error.
func (d *Demo) EachTask(ctx context.Context, enqueue func(task *asynq.Task, id string) error) error {
	for i, e := range d.events {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // interrupted: accounted for
		}
		id, t := fmt.Sprintf("event-%06d", i+1), asynq.NewTask(e.Type, e.Payload)
		row, _ := d.rowOf(ctx, t)
		d.rec.enqueue(row, id)
		// Not under ctx: an enqueue cut off half-way may have happened or not.
		if err := enqueue(t, id); err != nil {
			d.rec.forget()
			return fmt.Errorf("enqueueing event %d of %d: %w", i+1, len(d.events), err)
		}
	}
	return nil
}

// Note is the first thing that a handler does: it notes that the task runs. end is the last
// thing, and takes what the handler returns.
func (d *Demo) Note(ctx context.Context, _ *asynq.Task) (end func(error)) {
	id, _ := asynq.GetTaskID(ctx)
	return d.rec.begin(id)
}

// errOnce is why a task of -in-order fails once: one in ten does, in its first attempt.
var errOnce = errors.New("the receiver answers 503")

// Work takes as long as -work says, give or take half, unless ctx ends before. With -in-order it may fail.
func (d *Demo) Work(ctx context.Context) error {
	id, _ := asynq.GetTaskID(ctx)
	if retried, _ := asynq.GetRetryCount(ctx); d.InOrder && retried == 0 && strings.HasSuffix(id, "5") {
		return errOnce
	}
	select {
	case <-time.After(d.work/2 + mathrand.N(d.work+1)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Observe notes what no handler sees: tasks that were skipped, replaced or parked.
func (d *Demo) Observe(_ context.Context, e automutex.Event) {
	switch e.Kind {
	case automutex.EventSkipped:
		d.rec.end(e.TaskID, skipped)
	case automutex.EventReplaced:
		d.rec.end(e.TaskID, replaced)
	case automutex.EventParked:
		d.rec.park(e.TaskID)
	case automutex.EventAcquired, automutex.EventBusy, automutex.EventRetried:
		d.rec.back(e.TaskID, e.Waited)
	}
}

// Drain waits until nothing in the queue is left to run, or ctx ends.
func (d *Demo) Drain(ctx context.Context) error {
	total := len(d.rec.tasks)
	if total == 0 {
		return nil
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for answered := time.Now(); ; {
		info, err := d.inspector.GetQueueInfo(d.Name)
		switch {
		case err == nil:
			answered = time.Now()
			left := info.Pending + info.Active + info.Scheduled + info.Retry + info.Aggregating
			if d.animated {
				fmt.Fprintf(d.stderr, "\r%s%d of %d tasks", ansi.EraseLineRight, total-left, total)
			}
			if left == 0 {
				return nil
			}
		case d.missing():
			return nil // Redis has lost the queue; what was in it will count as lost
		case time.Since(answered) > redisGone:
			return fmt.Errorf("asking for the state of queue %s: %w; gave up after %s", d.Name, err, redisGone)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// missing is true when Redis answers and does not know the queue.
func (d *Demo) missing() bool {
	queues, err := d.inspector.Queues()
	return err == nil && !slices.Contains(queues, d.Name)
}

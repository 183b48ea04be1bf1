// Command unique shows the rules of package unique side by side. A document
// changes many times within a few seconds; each change asks every rule for a
// task. The chart has, for each rule, a line of what was asked and a line of what
// ran; the table tells which version of the document the last run saw.
//
// What automutex needs is in rules.go. The rest is an ordinary asynq program.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/examples/internal/anyredis"
	"github.com/automutex/automutex/unique"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main with everything it touches handed in. It answers 0, 1 when what
// was shown is not what the rules promise, and 2 when it could not be shown.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("unique", flag.ContinueOnError)
	flags.SetOutput(stderr)
	address := flags.String("redis", "", "`URL` of a Redis, such as redis://localhost:6379; without it one is started in this process")
	changes := flags.Int("changes", 30, "how often the document changes")
	every := flags.Duration("every", 100*time.Millisecond, "how long after the one before")
	work := flags.Duration("work", 350*time.Millisecond, "what a handler takes")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if flags.NArg() > 0 || *changes < 1 || *every < time.Millisecond || *work < 0 {
		fmt.Fprintln(stderr, "unique: -changes takes at least 1, -every at least 1ms, -work at least 0s, and there are no arguments beside the flags; see -h")
		return 2
	}
	store, err := anyredis.Open(context.Background(), *address)
	if err != nil {
		fmt.Fprintf(stderr, "unique: %v\n", err)
		return 2
	}
	defer store.Close()
	d := &demo{rdb: store.Client, name: "automutex-unique-" + strings.ToLower(rand.Text()[:8]), changes: *changes, every: *every, work: *work}
	if err := d.run(); err != nil {
		fmt.Fprintf(stderr, "unique: %v\n", err)
		return 2
	}
	return d.report(stdout)
}

// demo is one run.
type demo struct {
	rdb     redis.UniversalClient
	name    string // of queue and keys: its own, so that a Redis in use is not disturbed
	changes int
	every   time.Duration
	work    time.Duration

	mu    sync.Mutex // guards what follows
	began time.Time
	now   int // the document's version
	asked map[string][]ask
	ran   map[string][]stay
}

// ask is one call of Enqueue, stay one run of a handler.
type (
	ask struct {
		at       time.Duration
		accepted bool
	}
	stay struct {
		from, to time.Duration
		version  int
	}
)

// run enqueues and works off.
func (d *demo) run() error {
	d.asked, d.ran = map[string][]ask{}, map[string][]stay{}
	client, inspector := asynq.NewClientFromRedisClient(d.rdb), asynq.NewInspectorFromRedisClient(d.rdb)
	tasks, err := unique.New(client, inspector, d.rdb, unique.Config{Prefix: d.name, Rules: uniqueRules(d.name)})
	if err != nil {
		return err
	}
	guard, err := automutex.New(d.rdb, automutex.Config{Prefix: d.name, Rules: guardRules()})
	if err != nil {
		return err
	}
	server := asynq.NewServerFromRedisClient(d.rdb, guard.ServerConfig(asynq.Config{
		Concurrency: 20, Queues: map[string]int{d.name: 1}, LogLevel: asynq.FatalLevel,
		TaskCheckInterval: 5 * time.Millisecond, DelayedTaskCheckInterval: 50 * time.Millisecond,
	}))
	d.began = time.Now()
	if err := server.Start(guard.Middleware(asynq.HandlerFunc(d.handle))); err != nil {
		return err
	}
	defer func() {
		go guard.Close(context.Background())
		server.Shutdown()
	}()

	ticker := time.NewTicker(d.every)
	defer ticker.Stop()
	for version := 1; version <= d.changes; version++ {
		d.change(version)
		for _, w := range wishes {
			task := asynq.NewTask(w.task, fmt.Appendf(nil, `{"document":7,"version":%d}`, version), asynq.Queue(d.name))
			_, err := tasks.Enqueue(task)
			if err != nil && !errors.Is(err, asynq.ErrDuplicateTask) {
				return err
			}
			d.note(w.task, err == nil)
		}
		<-ticker.C
	}
	return d.drain(inspector)
}

// drain waits until nothing is left to run, and removes the queue.
func (d *demo) drain(inspector *asynq.Inspector) error {
	deadline := time.Now().Add(time.Minute + time.Duration(d.changes)*d.work)
	for {
		q, err := inspector.GetQueueInfo(d.name)
		if err != nil {
			return err
		}
		if q.Pending+q.Active+q.Scheduled+q.Retry == 0 {
			return inspector.DeleteQueue(d.name, true)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d tasks are left in queue %s", q.Size, d.name)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// change sets the document's version. Callers then ask for tasks: a handler that begins after that sees the version.
func (d *demo) change(version int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = version
}

func (d *demo) note(task string, accepted bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked[task] = append(d.asked[task], ask{time.Since(d.began), accepted})
}

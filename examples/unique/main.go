// Command unique shows the rules of package unique side by side. A document changes many times within a few seconds;
// each change asks every rule for a task. The chart has, for each rule, a line of what was asked and a line of what
// ran; the table tells which version of the document the last run saw.
//
// What automutex needs is in rules.go. The rest is an ordinary asynq program.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/examples/internal/anyredis"
	"github.com/automutex/automutex/unique"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run returns 0, 1 if what was shown is not what the rules promise, and 2 if it could not be shown.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("unique", flag.ContinueOnError)
	flags.SetOutput(stderr)
	address := flags.String("redis", "", anyredis.Usage)
	d := &demo{asked: map[string][]ask{}, ran: map[string][]stay{}}
	flags.IntVar(&d.changes, "changes", 30, "how often the document changes")
	flags.DurationVar(&d.every, "every", 100*time.Millisecond, "how long after the one before")
	flags.DurationVar(&d.work, "work", 350*time.Millisecond, "what a handler takes")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil && (flags.NArg() > 0 || d.changes < 1 || d.every < time.Millisecond || d.work < 0) {
		err = errors.New("these flags do not fit; see -h")
	}
	if err == nil {
		err = d.run(*address)
	}
	if err != nil {
		fmt.Fprintf(stderr, "unique: %v\n", err)
		return 2
	}
	return d.report(stdout)
}

type demo struct {
	changes     int
	every, work time.Duration

	mu    sync.Mutex // guards what follows
	began time.Time
	now   int // the document's version
	asked map[string][]ask
	ran   map[string][]stay // in the order in which they began
}

// ask is one call of Enqueue, stay one run of a handler; to is 0 while it lasts.
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

func (d *demo) run(address string) error {
	store, err := anyredis.Open(context.Background(), address)
	if err != nil {
		return err
	}
	defer store.Close()
	name := "automutex-unique-" + strings.ToLower(rand.Text()[:8]) // so that a Redis in use is not disturbed
	inspector := asynq.NewInspectorFromRedisClient(store.Client)
	producer, worker := rules(name)
	tasks, err := unique.New(asynq.NewClientFromRedisClient(store.Client), inspector, store.Client,
		unique.Config{Prefix: name, Rules: producer})
	if err != nil {
		return err
	}
	guard, err := automutex.New(store.Client, automutex.Config{Prefix: name, Rules: worker})
	if err != nil {
		return err
	}
	server := asynq.NewServerFromRedisClient(store.Client, guard.ServerConfig(asynq.Config{
		Concurrency: 20, Queues: map[string]int{name: 1}, LogLevel: asynq.FatalLevel,
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
		d.mu.Lock()
		d.now = version // a handler that begins after the calls below sees it
		d.mu.Unlock()
		for _, w := range wishes(0) {
			_, err := tasks.Enqueue(asynq.NewTask(w.task, fmt.Appendf(nil, `{"document":7,"version":%d}`, version),
				asynq.Queue(name)))
			if err != nil && !errors.Is(err, asynq.ErrDuplicateTask) {
				return err
			}
			d.mu.Lock()
			d.asked[w.task] = append(d.asked[w.task], ask{time.Since(d.began), err == nil})
			d.mu.Unlock()
		}
		<-ticker.C
	}
	deadline := time.Now().Add(time.Minute + time.Duration(d.changes)*d.work)
	for ; time.Now().Before(deadline); <-time.After(5 * time.Millisecond) {
		if q, err := inspector.GetQueueInfo(name); err != nil || q.Pending+q.Active+q.Scheduled+q.Retry == 0 {
			return errors.Join(err, inspector.DeleteQueue(name, true))
		}
	}
	return fmt.Errorf("tasks are left in queue %s", name)
}

// handle is the work: it looks at the document, and takes its time. "until start" reads the document when it begins, as
// such handlers do; for the others the payload is what counts.
func (d *demo) handle(_ context.Context, t *asynq.Task) error {
	var payload struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(t.Payload(), &payload); err != nil {
		return err
	}
	d.mu.Lock()
	if t.Type() == "until start" {
		payload.Version = d.now
	}
	i := len(d.ran[t.Type()])
	d.ran[t.Type()] = append(d.ran[t.Type()], stay{from: time.Since(d.began), version: payload.Version})
	d.mu.Unlock()
	<-time.After(d.work)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ran[t.Type()][i].to = time.Since(d.began)
	return nil
}

func (d *demo) report(out io.Writer) (exit int) {
	const columns = 60
	d.mu.Lock()
	defer d.mu.Unlock()
	var end, changing time.Duration
	for task, runs := range d.ran {
		end, changing = max(end, runs[len(runs)-1].to), max(changing, d.asked[task][d.changes-1].at)
	}
	column := func(at time.Duration) int { return min(int(columns*at/(end+1)), columns-1) }
	fmt.Fprintf(out, "a document changes %d times, every %s; each change asks for a task of %s\n\n", d.changes, d.every,
		d.work)
	fmt.Fprintf(out, "%-12s        0 %s %5s\n", "", strings.Repeat("─", columns-8), end.Round(10*time.Millisecond))
	table, line := &strings.Builder{}, "%-13v%-7v%-10v%-6v%-20v%s\n"
	fmt.Fprintf(table, line, "rule", "asked", "accepted", "runs", "last run saw", "means")
	for _, w := range wishes(changing) {
		asked, runs := []rune(strings.Repeat(" ", columns)), []rune(strings.Repeat(" ", columns))
		accepted, last, overlap := 0, 0, false
		for _, a := range d.asked[w.task] {
			if a.accepted {
				accepted++
				asked[column(a.at)] = '+'
			} else if asked[column(a.at)] == ' ' {
				asked[column(a.at)] = '·'
			}
		}
		for i, run := range d.ran[w.task] {
			for at := column(run.from); at <= column(run.to-1); at++ {
				runs[at] = '█'
			}
			runs[column(run.from)] = '▌'
			last = run.version
			overlap = overlap || i > 0 && run.from < d.ran[w.task][i-1].to
		}
		n := len(d.ran[w.task])
		fmt.Fprintf(out, "%-12s asked  %s\n%-12s runs   %s\n", w.task, string(asked), "", string(runs))
		fmt.Fprintf(table, line, w.task, d.changes, accepted, n, fmt.Sprintf("version %d of %d", last, d.changes), w.text)
		if w.newest && last != d.changes || w.most > 0 && n > w.most || w.rule != nil && overlap {
			exit = 1
			fmt.Fprintf(out, "             this is not what the rule promises\n")
		}
	}
	fmt.Fprintf(out, "\n+ accepted   · a duplicate   ▌ a run begins\n\n%s", table)
	return exit
}

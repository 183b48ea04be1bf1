// Package demo is the part of examples/worker that has nothing to do with locks: it reads the flags, makes or reads the
// tasks, keeps what the handlers did, and draws it. Overlaps and disorder are those of the handlers, whatever the guard
// says.
package demo

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	mathrand "math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/examples/internal/anyredis"
)

// Demo is one run, from the flags to the result.
type Demo struct {
	Unguarded, InOrder bool
	Noisy              bool   // two runs, the first one unguarded; see Again
	Type               string // that of each task begins so
	On                 []string
	Busy               automutex.Policy
	Limit, Workers     int
	Wait               time.Duration

	Redis redis.UniversalClient
	Name  string // of the queue and the locks: random, so that a Redis in use is not disturbed
	Log   *slog.Logger
	Page  net.Listener // of -web, else nil

	count       int
	work        time.Duration
	todo        []*asynq.Task
	store       *anyredis.Store
	inspector   *asynq.Inspector
	out, errOut io.Writer
	start, told time.Time

	mu    sync.Mutex // guards tasks and what is in them
	tasks []*task    // of todo
	first []*task    // with Noisy: those of the first run
}

// task is what is known of one task; times count from the start of the demo.
type task struct {
	id, row string // a row of the picture is a key
	queued  time.Duration
	ended   string // done, skipped or replaced; empty: not yet, or asynq knows
	runs    []span
	parked  int // times
}

// span is the time of a run; to is 0 while it lasts.
type span struct{ from, to time.Duration }

var policies = []automutex.Policy{automutex.Retry, automutex.Skip, automutex.Archive, automutex.Fail, automutex.Allow,
	automutex.Park, automutex.Replace}

// Open reads the flags and connects to Redis. Close the Demo after use.
func Open(ctx context.Context, args []string, stdout, stderr io.Writer) (*Demo, error) {
	d := &Demo{Type: "github:", out: stdout, errOut: stderr}
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	flags.SetOutput(stderr)
	address := flags.String("redis", "", anyredis.Usage)
	page := flags.String("web", "", "serve the page at this `address`, such as 127.0.0.1:8081, until Ctrl-C; without "+
		"-tasks with 2000 tasks of 150ms")
	input := flags.String("input", "", "run the tasks of a `file`: {\"type\": ..., \"payload\": ...} a line, or payloads")
	flags.BoolVar(&d.Unguarded, "unguarded", false, "run without the guard")
	flags.BoolVar(&d.InOrder, "in-order", false, "run tasks of a key in order; one in ten fails once")
	flags.BoolVar(&d.Noisy, "noisy", false, "show B wait behind A's backlog, without a rule and with")
	on := flags.String("on", "repository.full_name", "payload `fields` of the key; empty: one lock for all")
	busy := flags.String("busy", "park", fmt.Sprintf("the `policy` of a task whose key is busy: %v", policies))
	flags.IntVar(&d.Limit, "limit", 1, "how many of a key run at once")
	flags.DurationVar(&d.Wait, "wait", 2*time.Second, "time in line before the policy applies; park knows none")
	flags.IntVar(&d.Workers, "workers", 10, "how many run at once")
	flags.IntVar(&d.count, "tasks", 300, "how many tasks")
	flags.DurationVar(&d.work, "work", 20*time.Millisecond, "time of a handler, on average")
	err := flags.Parse(args)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(policies, func(p automutex.Policy) bool { return p.String() == *busy })
	switch {
	case *page != "" && !IsLocal(*page):
		return nil, errors.New("-web: the page has no login: serve it at 127.0.0.1:PORT")
	case flags.NArg() > 0 || at < 0 || d.Workers < 1 || d.count < 1 || d.work < 0 || d.InOrder && d.Unguarded,
		d.Noisy && (d.InOrder || d.Unguarded || *page+*input != ""):
		return nil, errors.New("these flags do not fit; see -h")
	}
	d.Busy = policies[at]
	d.defaults(*page != "")
	if *on != "" {
		d.On = strings.Split(*on, ",")
	}
	if *input == "" {
		d.makeUp()
	} else if err = d.read(*input); err != nil {
		return nil, err
	}
	if *page != "" {
		if d.Page, err = (&net.ListenConfig{}).Listen(ctx, "tcp", *page); err != nil {
			return nil, err
		}
	}
	if d.store, err = anyredis.Open(ctx, *address); err != nil {
		return nil, err
	}
	d.Redis, d.inspector = d.store.Client, asynq.NewInspectorFromRedisClient(d.store.Client)
	d.Name = "automutex-demo-" + strings.ToLower(rand.Text()[:8])
	d.Log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return d, nil
}

func (d *Demo) read(path string) error {
	text, err := os.ReadFile(path)
	if err == nil && len(text) == 0 {
		err = io.EOF
	}
	if err != nil {
		return fmt.Errorf("-input: %w", err)
	}
	d.Type = "input:"
	for line := range bytes.Lines(text) {
		var fields map[string]json.RawMessage
		kind, err := "payload", json.Unmarshal(line, &fields)
		if payload := fields["payload"]; len(fields) == 2 && payload != nil && fields["type"] != nil {
			line, err = payload, json.Unmarshal(fields["type"], &kind)
		}
		if err != nil {
			return fmt.Errorf("-input: %s:%d: want a payload, or its type and it: %w", path, len(d.todo)+1, err)
		}
		d.todo = append(d.todo, asynq.NewTask(d.Type+kind, line))
	}
	return nil
}

// Begin says what is about to run under these rules.
func (d *Demo) Begin(rules automutex.Config) error {
	keys, err := automutex.NewKeyMaker(rules)
	if err != nil {
		return err
	}
	d.tasks, d.start = nil, time.Now()
	for i, one := range d.todo {
		its, err := keys.Keys(context.Background(), one)
		if err != nil {
			return fmt.Errorf("task %d: %w; see -on", i+1, err)
		}
		t := &task{id: fmt.Sprintf("event-%06d", i+1)}
		_, t.row, _ = strings.Cut(strings.Trim(its[0], "{}"), "|")
		d.tasks = append(d.tasks, t)
	}
	fmt.Fprintf(d.out, "%d tasks, %d workers, %s of work each, on %s; a key is %s: limit %d, wait %s, then %s; "+
		"unguarded: %t\n", len(d.todo), d.Workers, d.work, d.store.Name, strings.Join(d.On, ","), d.Limit, d.Wait, d.Busy,
		d.Unguarded)
	if d.Page != nil {
		fmt.Fprintf(d.out, "the page for operators is at http://%s/ until Ctrl-C\n", d.Page.Addr())
	}
	return nil
}

// defaults are what some flags say of others.
func (d *Demo) defaults(page bool) {
	if d.Noisy {
		d.Unguarded, d.Limit = true, max(d.Limit, min(3, d.Workers))
	}
	if d.InOrder || d.Noisy || d.Busy == automutex.Park {
		d.Busy, d.Wait = automutex.Park, 0 // a parked task waits for as long as it takes
	}
	switch {
	case d.count != 300:
	case d.Noisy:
		d.count, d.work = 320, 60*time.Millisecond
	case page:
		d.count, d.work = 2000, 150*time.Millisecond
	}
}

// Refuse says why nothing runs, and returns the exit status.
func Refuse(stderr io.Writer, err error) int {
	if fmt.Fprintf(stderr, "worker: %v\n", err); errors.Is(err, flag.ErrHelp) {
		return 0
	}
	return 2
}

// Again begins the second run of Noisy, with the guard, if the first has ended well.
func (d *Demo) Again(exit int) bool {
	if !d.Noisy || d.first != nil || exit != 0 {
		return false
	}
	d.Unguarded, d.first = false, d.tasks
	return true
}

// Close closes the client of Redis and the page.
func (d *Demo) Close() {
	d.store.Close()
	if d.Page != nil {
		_ = d.Page.Close()
	}
}

// IsLocal reports whether an address is one that only this machine reaches. A name of another site may lead here, too.
func IsLocal(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

const ofB = 20 // tasks of -noisy

// makeUp makes webhooks. The first repository is the busiest: the second has half as many as it, the third a third, and
// so on. With Noisy all are A's, but for the last, which are B's.
func (d *Demo) makeUp() {
	random := mathrand.New(mathrand.NewPCG(1, 0)) // the same tasks each time
	kinds := []string{"push", "push", "pull_request", "issues"}
	repositories := []string{"octo/hello", "octo/website", "gopher/burrow", "gopher/docs", "acme/anvil",
		"acme/rocket-skates", "solo/dotfiles", "solo/notes"}
	for i := range d.count {
		n, left := 0, random.Float64()*2.7178 // 1 + 1/2 + ... + 1/8
		for ; left > 1/float64(n+1) && n < len(repositories)-1; n++ {
			left -= 1 / float64(n+1)
		}
		name := repositories[n]
		if d.Noisy {
			if name = "A"; i >= d.count-ofB {
				name = "B"
			}
		}
		d.todo = append(d.todo, asynq.NewTask(d.Type+kinds[random.IntN(len(kinds))],
			fmt.Appendf(nil, `{"repository": {"full_name": %q}, "sender": {"login": "octocat"}}`, name)))
	}
}

// EachTask has enqueue hand the tasks to asynq until ctx ends; with Noisy those of B one after the other.
func (d *Demo) EachTask(ctx context.Context, enqueue func(task *asynq.Task, id string) error) (err error) {
	for i, t := range d.tasks {
		if err != nil || ctx.Err() != nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.tasks = d.tasks[:i]
			break
		}
		if d.Noisy && i >= d.count-ofB {
			<-time.After(5 * d.work)
			_, _ = d.left()
		}
		d.update(t.id, func(t *task, now time.Duration) { t.queued = now })
		err = enqueue(d.todo[i], t.id)
	}
	return err
}

// update changes what is known of a task now.
func (d *Demo) update(id string, change func(t *task, now time.Duration)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.tasks {
		if t.id == id {
			change(t, time.Since(d.start))
		}
	}
}

// Work takes as long as -work says, give or take half, unless ctx ends before. With -in-order it may fail.
func (d *Demo) Work(ctx context.Context) (err error) {
	id, _ := asynq.GetTaskID(ctx)
	run := 0
	d.update(id, func(t *task, now time.Duration) { run, t.runs = len(t.runs), append(t.runs, span{from: now}) })
	select {
	case <-time.After(d.work/2 + mathrand.N(d.work+1)):
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	d.update(id, func(t *task, now time.Duration) {
		if d.InOrder && run == 0 && strings.HasSuffix(id, "5") {
			err = errors.New("the receiver answers 503")
		}
		if t.runs[run].to = now; err == nil {
			t.ended = "done"
		}
	})
	return err
}

// Observe takes in what no handler sees: tasks that were skipped, replaced or parked.
func (d *Demo) Observe(_ context.Context, e automutex.Event) {
	d.update(e.TaskID, func(t *task, _ time.Duration) {
		switch e.Kind {
		case automutex.EventSkipped, automutex.EventReplaced:
			t.ended = cmp.Or(t.ended, string(e.Kind))
		case automutex.EventParked:
			t.parked++
		}
	})
}

// Drain waits until nothing in the queue is left to run, or ctx ends.
func (d *Demo) Drain(ctx context.Context) error {
	for ctx.Err() == nil {
		if n, err := d.left(); n == 0 {
			return err
		}
		<-time.After(20 * time.Millisecond)
	}
	return nil
}

// left is how many tasks are in asynq, which it tells each second.
func (d *Demo) left() (int, error) {
	q, err := d.inspector.GetQueueInfo(d.Name)
	if err != nil {
		return 0, err
	}
	wait := q.Pending + q.Scheduled + q.Retry
	if now := time.Now(); now.Sub(d.told) > time.Second {
		d.told = now
		fmt.Fprintf(d.out, "%6s: %d tasks run, %d wait\n", round(now.Sub(d.start)), q.Active, wait)
	}
	return wait + q.Active, nil
}

// Report draws who ran when, counts what became of each task, and removes the queue. It takes the error that the run
// ended with, and returns the exit status. The server has stopped.
func (d *Demo) Report(err error) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := map[string]int{} // by what became of the tasks: each is counted once
	for _, t := range d.tasks {
		became := t.ended
		if became == "" {
			info, lookErr := d.inspector.GetTaskInfo(d.Name, t.id)
			switch {
			case errors.Is(lookErr, asynq.ErrTaskNotFound), errors.Is(lookErr, asynq.ErrQueueNotFound):
				became = "lost"
			case lookErr == nil && info.State == asynq.TaskStateArchived:
				became = "archived"
			default:
				became, err = "queued", errors.Join(err, lookErr)
			}
		}
		counts[became]++
	}
	overlaps, disorder := d.draw()
	// asynq keeps its statistics
	base, day := "asynq:{"+d.Name+"}:", ":"+d.start.UTC().Format(time.DateOnly)
	_ = d.inspector.DeleteQueue(d.Name, true) // it may be lost
	_ = d.Redis.Del(context.Background(), base+"processed", base+"processed"+day, base+"failed", base+"failed"+day)
	if err != nil {
		fmt.Fprintf(d.errOut, "worker: %v\n", err)
	}
	if d.first != nil {
		d.beside()
	}
	bad := err != nil || counts["lost"] > 0 || overlaps > 0 && !d.Unguarded
	if d.InOrder {
		bad = bad || disorder > 0
		fmt.Fprintf(d.out, "in order: %d tasks began after one of their key that was enqueued later\n", disorder)
	}
	more := func(became string) string {
		if n := counts[became]; n > 0 {
			return fmt.Sprintf(" %s=%d", became, n)
		}
		return ""
	}
	// queued: not begun when Ctrl-C came, and deleted
	fmt.Fprintf(d.out, "result: tasks=%d done=%d skipped=%d%s%s archived=%d lost=%d overlaps=%d\n", len(d.tasks),
		counts["done"], counts["skipped"], more("replaced"), more("queued"), counts["archived"], counts["lost"], overlaps)
	if bad {
		return 1
	}
	return 0
}

func (d *Demo) beside() {
	const rows, wide = 12, 14
	var cells [rows][2][2]float64 // of each run A's backlog, and how long B's tasks of then waited (s)
	end, longest := time.Since(d.start), .001
	for run, tasks := range [][]*task{d.first, d.tasks} {
		for _, t := range tasks {
			began := end
			if len(t.runs) > 0 {
				began = t.runs[0].from
			}
			for i := range cells {
				from, to, c := end*time.Duration(i)/rows, end*time.Duration(i+1)/rows, &cells[i][run]
				if t.row == "A" && t.queued < to && from < began {
					c[0]++
				} else if t.row == "B" && from <= t.queued && t.queued < to {
					c[1] = max(c[1], (began - t.queued).Seconds())
					longest = max(longest, c[1])
				}
			}
		}
	}
	bar := func(part, whole float64) string {
		n := int(math.Ceil(part / whole * wide))
		return strings.Repeat("█", n) + strings.Repeat("·", wide-n)
	}
	fmt.Fprintf(d.out, "%6s %-40s   Limit: %d, Busy: Park\n%6s", "", "  without the rule", d.Limit, "")
	fmt.Fprintln(d.out, strings.Repeat(fmt.Sprintf("   %-14s      %-14s       ", "A's backlog", "B waits"), 2))
	for i, row := range cells {
		fmt.Fprintf(d.out, "%5.1fs", (end * time.Duration(i) / rows).Seconds())
		for _, c := range row {
			fmt.Fprintf(d.out, "   %s %-4.0f %s %5.2fs", bar(c[0], float64(len(d.tasks))), c[0], bar(c[1], longest), c[1])
		}
		fmt.Fprintln(d.out)
	}
	fmt.Fprintln(d.out)
}

const columns = 36 // of time

// draw prints a line for each key, the busiest first. It returns how many runs began while -limit others of the key
// were under way, and how many after one of the key that was enqueued later.
func (d *Demo) draw() (overlaps, disorder int) {
	end, rows := time.Since(d.start), map[string][]*task{}
	for _, t := range d.tasks {
		rows[t.row] = append(rows[t.row], t)
	}
	axis := strings.Repeat("─", columns-3-len(round(end).String()))
	fmt.Fprintf(d.out, "\n%-20.20s  0 %s %s  runs  overlaps  parked  p50 wait  p95 wait\n", strings.Join(d.On, ", "), axis,
		round(end))
	busier := func(a, b string) int { return cmp.Or(len(rows[b])-len(rows[a]), cmp.Compare(a, b)) }
	for _, label := range slices.SortedFunc(maps.Keys(rows), busier) {
		runs, waits := []span{}, []time.Duration{}
		parked, over, later := 0, 0, end // later: the first begin of those that were enqueued later
		for _, t := range slices.Backward(rows[label]) {
			first := later
			for _, run := range t.runs {
				if run.from > later {
					disorder++
				}
				first = min(first, run.from)
				runs, waits = append(runs, span{run.from, cmp.Or(run.to, end)}), append(waits, run.from-t.queued)
			}
			parked, later = parked+t.parked, first
		}
		if len(runs) == 0 {
			continue
		}
		for _, run := range runs {
			if most(runs, span{run.from, run.from + 1}) > d.Limit {
				over++
			}
		}
		overlaps += over
		slices.Sort(waits)
		p := func(percent int) time.Duration { return round(waits[(len(waits)*percent-1)/100]) }
		fmt.Fprintf(d.out, "%-20.20s  %s  %4d  %8d  %6d  %8s  %8s\n", label, picture(runs, end), len(runs), over, parked,
			p(50), p(95))
	}
	fmt.Fprint(d.out, "\n█ one at a time (░▒▓ part of the time)   2 two at once, ...\nwait: from enqueue to start\n\n")
	return overlaps, disorder
}

// most is how many of the runs were under way at once within a time, at most.
func most(runs []span, in span) (n int) {
	for _, run := range runs {
		at, now := max(run.from, in.from), 0
		for _, other := range runs {
			if other.from <= at && at < other.to && at < in.to && run.to > in.from {
				now++
			}
		}
		n = max(n, now)
	}
	return n
}

// picture has a sign for each piece of the time until end.
func picture(runs []span, end time.Duration) string {
	signs := make([]rune, columns)
	for i := range signs {
		in, busy := span{end * time.Duration(i) / columns, end * time.Duration(i+1) / columns}, time.Duration(0)
		for _, run := range runs {
			busy += max(0, min(run.to, in.to)-max(run.from, in.from))
		}
		switch n := most(runs, in); n {
		case 0:
			signs[i] = '·'
		case 1:
			signs[i] = []rune("░▒▓█")[min(3, 4*busy/(in.to-in.from))]
		default:
			signs[i] = []rune("23456789+")[min(n, 10)-2]
		}
	}
	return string(signs)
}

func round(d time.Duration) time.Duration {
	return d.Round(max(time.Millisecond, d.Truncate(time.Second)/100))
}

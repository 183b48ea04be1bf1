// Package demo is the part of examples/worker that has nothing to do with locks: it reads the flags, makes the tasks,
// notes what the handlers did, and draws it. Overlaps and disorder are those of the handlers, whatever the guard says.
package demo

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"strconv"
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
	Noisy              bool // two runs, the first one unguarded; see Again
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
	keys        *automutex.KeyMaker // a row of the picture is a key
	store       *anyredis.Store
	inspector   *asynq.Inspector
	out, errOut io.Writer
	start       time.Time

	mu    sync.Mutex // guards tasks, byID and what is in them
	tasks []*task    // as enqueued
	first []*task    // with Noisy: those of the first run
	byID  map[string]*task
}

// task is what is known of one task; times count from the start of the demo.
type task struct {
	id, row string
	queued  time.Duration
	ended   string // done, skipped or replaced; empty: not yet, or asynq knows
	runs    []span
	parked  int // times
}

// span is the time of a run; to is 0 while it lasts.
type span struct{ from, to time.Duration }

var policies = []automutex.Policy{automutex.Retry, automutex.Skip, automutex.Archive, automutex.Fail, automutex.Allow,
	automutex.Park, automutex.Replace}

// Open reads the flags, connects to Redis, and says what is about to run. Close the Demo after use.
func Open(ctx context.Context, args []string, stdout, stderr io.Writer) (*Demo, error) {
	d := &Demo{out: stdout, errOut: stderr, start: time.Now(), byID: map[string]*task{}}
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	flags.SetOutput(stderr)
	address := flags.String("redis", "", anyredis.Usage)
	page := flags.String("web", "", "serve the page at this `address`, such as 127.0.0.1:8081; without -tasks with 2000 "+
		"tasks of 150ms")
	flags.BoolVar(&d.Unguarded, "unguarded", false, "run without the guard")
	flags.BoolVar(&d.InOrder, "in-order", false, "run the tasks of one key in order; one in ten fails once")
	flags.BoolVar(&d.Noisy, "noisy", false, "show how long B waits behind the backlog of A, without a rule and with")
	on := flags.String("on", "repository.full_name", "payload `fields` (comma-separated) that make the key, such as "+
		"sender.login; empty: one lock for everything")
	busy := flags.String("busy", "retry", fmt.Sprintf("the `policy` for a task that did not get its lock: %v", policies))
	flags.IntVar(&d.Limit, "limit", 1, "how many tasks of one key may run at once")
	flags.DurationVar(&d.Wait, "wait", 2*time.Second,
		"the longest time in line before the policy applies; park knows none")
	flags.IntVar(&d.Workers, "workers", 10, "tasks that the server runs at once")
	flags.IntVar(&d.count, "tasks", 300, "how many tasks")
	flags.DurationVar(&d.work, "work", 20*time.Millisecond, "how long a handler works, give or take half")
	err := flags.Parse(args)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(policies, func(p automutex.Policy) bool { return p.String() == *busy })
	switch {
	case *page != "" && !IsLocal(*page):
		return nil, errors.New("-web: the page has no login: serve it at 127.0.0.1:PORT")
	case flags.NArg() > 0 || at < 0 || d.Workers < 1 || d.count < 1 || d.work < 0 || d.InOrder && d.Unguarded,
		d.Noisy && (d.InOrder || d.Unguarded || *page != "" || d.Limit > 1 && d.Limit >= d.Workers):
		return nil, errors.New("these flags do not fit together; see -h")
	}
	d.Busy = policies[at]
	d.defaults(*page != "")
	if *on != "" {
		d.On = strings.Split(*on, ",")
	}
	if d.keys, err = automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{{Task: "github:", Scope: "repository",
		On: d.On}}}); err != nil {
		return nil, err
	}
	if d.store, err = anyredis.Open(ctx, *address); err != nil {
		return nil, err
	}
	d.Redis, d.inspector = d.store.Client, asynq.NewInspectorFromRedisClient(d.store.Client)
	d.Name = "automutex-demo-" + strings.ToLower(rand.Text()[:8])
	d.Log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	fmt.Fprintf(stdout, "%d tasks, %d workers, %s of work each, on %s; a key is %s: limit %d, wait %s, then %s; "+
		"unguarded: %t\n\n",
		d.count, d.Workers, d.work, d.store.Name, *on, d.Limit, d.Wait, d.Busy, d.Unguarded)
	if *page != "" {
		if d.Page, err = (&net.ListenConfig{}).Listen(ctx, "tcp", *page); err != nil {
			return nil, err
		}
		fmt.Fprintf(stdout, "the page for operators is at http://%s/ until the demo ends (Ctrl-C)\n\n", d.Page.Addr())
	}
	return d, nil
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

// Refuse says why there is no run, and returns the exit status.
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
	d.Unguarded, d.first, d.tasks, d.byID, d.start = false, d.tasks, nil, map[string]*task{}, time.Now()
	return true
}

// Close closes the client of Redis.
func (d *Demo) Close() { d.store.Close() }

// IsLocal reports whether an address is one that only this machine reaches. A name of another site may lead here, too.
func IsLocal(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

const ofB = 20 // tasks of -noisy

// EachTask has enqueue hand the tasks, made-up webhooks, to asynq until ctx ends. The first repository is the busiest:
// the second has half as many as it, the third a third, and so on. With Noisy all are A's, but for the last, which are
// B's and come one after the other.
func (d *Demo) EachTask(ctx context.Context, enqueue func(task *asynq.Task, id string) error) (err error) {
	random := mathrand.New(mathrand.NewPCG(1, 0)) // the same tasks each time
	kinds := []string{"push", "push", "pull_request", "issues"}
	repositories := []string{"octo/hello", "octo/website", "gopher/burrow", "gopher/docs", "acme/anvil",
		"acme/rocket-skates", "solo/dotfiles", "solo/notes"}
	for i := 0; i < d.count && err == nil && ctx.Err() == nil; i++ {
		n, left := 0, random.Float64()*2.7178 // 1 + 1/2 + ... + 1/8
		for ; left > 1/float64(n+1) && n < len(repositories)-1; n++ {
			left -= 1 / float64(n+1)
		}
		name := repositories[n]
		if d.Noisy {
			if name = "A"; i >= d.count-ofB {
				name = "B"
				<-time.After(5 * d.work)
			}
		}
		webhook := asynq.NewTask("github:"+kinds[random.IntN(len(kinds))],
			fmt.Appendf(nil, `{"repository": {"full_name": %q}, "sender": {"login": "octocat"}}`, name))
		t := &task{id: fmt.Sprintf("event-%06d", i+1), row: "(no key)", queued: time.Since(d.start)}
		if keys, err := d.keys.Keys(ctx, webhook); err == nil {
			_, t.row, _ = strings.Cut(strings.Trim(keys[0], "{}"), "|")
		}
		d.mu.Lock()
		d.tasks, d.byID[t.id] = append(d.tasks, t), t
		d.mu.Unlock()
		err = enqueue(webhook, t.id)
	}
	return err
}

// note changes what is known of a task now.
func (d *Demo) note(id string, change func(t *task, now time.Duration)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.byID[id]; t != nil {
		change(t, time.Since(d.start))
	}
}

// Work takes as long as -work says, give or take half, unless ctx ends before. With -in-order it may fail.
func (d *Demo) Work(ctx context.Context) (err error) {
	id, _ := asynq.GetTaskID(ctx)
	run := 0
	d.note(id, func(t *task, now time.Duration) { run, t.runs = len(t.runs), append(t.runs, span{from: now}) })
	select {
	case <-time.After(d.work/2 + mathrand.N(d.work+1)):
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	d.note(id, func(t *task, now time.Duration) {
		if d.InOrder && run == 0 && strings.HasSuffix(id, "5") {
			err = errors.New("the receiver answers 503")
		}
		if t.runs[run].to = now; err == nil {
			t.ended = "done"
		}
	})
	return err
}

// Observe notes what no handler sees: tasks that were skipped, replaced or parked.
func (d *Demo) Observe(_ context.Context, e automutex.Event) {
	d.note(e.TaskID, func(t *task, _ time.Duration) {
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
		q, err := d.inspector.GetQueueInfo(d.Name)
		switch {
		case errors.Is(err, asynq.ErrQueueNotFound), err == nil && q.Pending+q.Active+q.Scheduled+q.Retry == 0:
			return nil
		case err != nil:
			return err
		}
		<-time.After(20 * time.Millisecond)
	}
	return nil
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
	if counts["queued"] > 0 {
		fmt.Fprintf(d.out, "queued=%d in asynq queue %s of %s; to remove it: asynq queue rm --force %[2]s\n",
			counts["queued"], d.Name, d.store.Name)
	} else { // asynq keeps its statistics
		base, day := "asynq:{"+d.Name+"}:", ":"+d.start.UTC().Format(time.DateOnly)
		_ = d.inspector.DeleteQueue(d.Name, true) // it may be lost
		_ = d.Redis.Del(context.Background(), base+"processed", base+"processed"+day, base+"failed", base+"failed"+day)
	}
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
	skipped := strconv.Itoa(counts["skipped"])
	if n := counts["replaced"]; n > 0 {
		skipped += fmt.Sprintf(" replaced=%d", n)
	}
	fmt.Fprintf(d.out, "result: tasks=%d done=%d skipped=%s archived=%d lost=%d overlaps=%d\n",
		len(d.tasks), counts["done"], skipped, counts["archived"], counts["lost"], overlaps)
	if bad {
		return 1
	}
	return 0
}

// beside draws both runs of Noisy.
func (d *Demo) beside() {
	const rows, wide = 12, 14
	var waiting [2][rows]int          // of A's tasks, in a piece of the time
	var waited [2][rows]time.Duration // by B's tasks that were enqueued then, at most
	end, longest := time.Since(d.start), time.Millisecond
	for run, tasks := range [][]*task{d.first, d.tasks} {
		for _, t := range tasks {
			began := end
			if len(t.runs) > 0 {
				began = t.runs[0].from
			}
			for i := range rows {
				if from := end * time.Duration(i) / rows; t.row == "A" && t.queued < from+end/rows && from < began {
					waiting[run][i]++
				} else if t.row == "B" && from <= t.queued && t.queued < from+end/rows {
					waited[run][i] = max(waited[run][i], began-t.queued)
					longest = max(longest, waited[run][i])
				}
			}
		}
	}
	bar := func(part, whole int64) string {
		n := int((part*wide + whole - 1) / whole)
		return strings.Repeat("█", n) + strings.Repeat("·", wide-n)
	}
	fmt.Fprintf(d.out, "%6s %-40s %s\n%6s", "", "  without the rule", fmt.Sprintf("  Limit: %d, Busy: Park", d.Limit), "")
	fmt.Fprintln(d.out, strings.Repeat(fmt.Sprintf("   %-14s      %-14s       ", "A's backlog", "B waits"), 2))
	for i := range rows {
		fmt.Fprintf(d.out, "%5.1fs", (end * time.Duration(i) / rows).Seconds())
		for run := range waiting {
			fmt.Fprintf(d.out, "   %s %-4d %s %5.2fs", bar(int64(waiting[run][i]), int64(len(d.tasks))), waiting[run][i],
				bar(int64(waited[run][i]), int64(longest)), waited[run][i].Seconds())
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
	fmt.Fprintf(d.out, "%-20.20s  0 %s %s  runs  overlaps  parked  p50 wait  p95 wait\n", strings.Join(d.On, ", "), axis,
		round(end))
	for _, label := range slices.SortedFunc(maps.Keys(rows), func(a,
		b string) int {
		return cmp.Or(len(rows[b])-len(rows[a]), cmp.Compare(a, b))
	}) {
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

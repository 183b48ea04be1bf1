package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// D: what the middleware costs where no key is ever busy.
var asynqScenario = scenario{
	name:  "D",
	title: "asynq: tasks that do nothing, a key of its own for each",
	about: "So many no-op tasks are pending when the server starts; tasks a second until the last is done. Client CPU is the worker process', from the server's start to its last task; " +
		"Redis' time is the CPU of its main thread meanwhile. Both hold on a machine that is shared, where tasks a second do not.",
	metrics: []metric{
		{"rate", "tasks/s", 0}, {"cpu", "client CPU µs/task", 1}, {"redis", "Redis µs/task", 1}, {"done", "done", 0}, {"overlaps", "overlaps", 0},
	},
	refs: []string{noLocks, raw + returns},
	points: func(b *bench) []point {
		n := sized(b, 10_000, 500)
		return []point{
			{label: "concurrency 10, " + grouped(n) + " tasks", n: 10, load: "distinct"},
			{label: "concurrency 64, " + grouped(n) + " tasks", n: 64, load: "distinct"},
		}
	},
	entries: func(point) []string {
		return slices.Concat([]string{noLocks, guardedBy + "Retry", guardedBy + "Park"},
			around(returns, raws[:1], redislocks[:1], redsyncs[:1], rueidislocks, semaphores[:1]))
	},
	run: runTasks,
}

// D2: the loads of docs/park.md.
var mixedScenario = scenario{
	name:  "D2",
	title: "asynq: mixed loads on busy keys",
	about: "Hot among cold: 200 tasks of 20 ms on one key among 2,000 of 2 ms on 200 other keys, shuffled, 10 workers; ideal is the hot key's work in one piece. " +
		"20 hot keys: 10,000 tasks of 1 ms, 16 workers. (A quick pass has a tenth of the tasks.) TaskCheckInterval is 50 ms, DelayedTaskCheckInterval 1 s. " +
		"A run of the handler is one time that a task was taken out of its queue.",
	metrics: []metric{
		{"took", "seconds", 2}, {"ideal", "of the ideal", 2}, {"others", "other keys done after s", 2}, {"runs", "taken out per task", 2},
		{"done", "done", 0}, {"overlaps", "overlaps", 0},
	},
	refs: []string{noLocks},
	points: func(*bench) []point {
		return []point{
			{label: "hot among cold", n: 10, load: "hot among cold", every: tuned(9, 20*time.Millisecond)},
			{label: "20 hot keys", n: 16, load: "20 hot keys", every: tuned(1, time.Millisecond)},
		}
	},
	entries: func(point) []string {
		return slices.Concat([]string{noLocks, guardedBy + "Park", guardedBy + "Wait", guardedBy + "Retry"},
			around(returns, raws[:1], redislocks[:1], redsyncs[:1], rueidislocks[1:], semaphores[:1]),
			around(waitsFor, raws[:2], redislocks[:2], redsyncs, rueidislocks, semaphores[:1]))
	},
	run: runTasks,
}

// around are the entries for peers in a middleware by hand.
func around(how string, peers ...[]*contender) []string {
	names := namesOf(peers...)
	for i := range names {
		names[i] += how
	}
	return names
}

// tasksPatience is how long a load may take. It takes us some seconds.
const tasksPatience = 30 * time.Second

func runTasks(ctx context.Context, b *bench, p point, entry string) (values, error) {
	var got tasksResult
	part := 1 // N: only so much less of the load there is
	if b.quick {
		part = map[string]int{"distinct": 20, "hot among cold": 10, "20 hot keys": 10}[p.load]
	}
	spent := b.alone(ctx, job{
		Do: "tasks", Contender: entry, Conf: conf{Addr: b.server.addr, N: p.n, Every: p.every}, Load: p.load,
		N: part, Time: sized(b, tasksPatience, 1500*time.Millisecond),
	}, nil, &got)
	v := values{
		"took": got.Took.Seconds(), "rate": float64(got.Done) / got.Took.Seconds(), "others": got.Others.Seconds(),
		"runs": float64(got.Runs) / float64(max(1, got.Done)), "done": float64(got.Done), "overlaps": float64(got.Overlaps),
	}
	if got.Done > 0 {
		v["cpu"], v["redis"] = microseconds(got.CPU)/float64(got.Done), microseconds(spent.cpu)/float64(got.Done)
	}
	if got.Ideal > 0 {
		v["ideal"] = got.Took.Seconds() / got.Ideal.Seconds()
	} else {
		delete(v, "others") // all keys are alike
	}
	if got.Done < got.Tasks {
		return v, errUnfinished
	}
	return v, nil
}

type tasksResult struct {
	Tasks, Done    int
	Runs, Overlaps int64
	Took, CPU      time.Duration
	Others         time.Duration // until the last of the cold keys was done
	Ideal          time.Duration // 0: there is none
}

// load gives the tasks of a load, shuffled; of n tasks n/part.
func load(name string, part int) (wares []ware, ideal time.Duration) {
	add := func(n int, key func(i int) string, work time.Duration) {
		for i := range n / part {
			wares = append(wares, ware{Key: key(i), Work: work})
		}
	}
	switch name {
	case "distinct":
		add(10_000, func(i int) string { return fmt.Sprintf("k%d", i) }, 0)
	case "hot among cold":
		add(200, func(int) string { return hotKey }, 20*time.Millisecond)
		ideal = time.Duration(len(wares)) * 20 * time.Millisecond
		add(2000, func(i int) string { return fmt.Sprintf("cold%d", i%200) }, 2*time.Millisecond)
	case "20 hot keys":
		add(10_000, func(i int) string { return fmt.Sprintf("k%d", i%20) }, time.Millisecond)
	default:
		panic(fmt.Errorf("bench: there is no load %q", name))
	}
	rng := rand.New(rand.NewPCG(1, 2)) // the same order for everybody
	rng.Shuffle(len(wares), func(i, j int) { wares[i], wares[j] = wares[j], wares[i] })
	return wares, ideal
}

const hotKey = "hot"

// tasksDuty runs an asynq server on a load, for Time at most.
func tasksDuty(ctx context.Context, m *mate) {
	wares, ideal := load(m.Load, m.N)
	rdb := connect(m.Conf)
	enqueue(ctx, asynq.NewClientFromRedisClient(rdb), wares)
	f := newWorkplace(wares)
	s := outfit(m.Contender, m.Conf, asynq.Config{
		Concurrency: m.Conf.N, TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: goesBack, Logger: redistest.Silent{},
	}, asynq.HandlerFunc(f.work))
	server := asynq.NewServerFromRedisClient(rdb, s.config)
	m.ready()
	cpuBefore := get(cpuTime())
	f.began = time.Now()
	must(server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		f.runs.Add(1)
		return s.handler.ProcessTask(ctx, t)
	})))
	late := time.NewTimer(m.Time)
	defer late.Stop()
	select {
	case <-f.done:
	case <-late.C:
	}
	r := f.result()
	r.Tasks, r.Ideal, r.CPU = len(wares), ideal, get(cpuTime())-cpuBefore
	m.tell(r)
	m.stay() // nothing is left to shut down for: the server is cleared next
}

// enqueue has all tasks pending, in order.
func enqueue(ctx context.Context, client automutex.Enqueuer, wares []ware, opts ...asynq.Option) {
	for _, w := range wares {
		get(client.EnqueueContext(ctx, asynq.NewTask("order", get(json.Marshal(w))), opts...))
	}
}

// workplace is where the tasks are worked on: it counts what is done, and who is
// there beside another with the same key.
type workplace struct {
	runs  atomic.Int64
	began time.Time // written before the server starts

	mu       sync.Mutex // guards what follows
	left     int
	tasks    int
	inside   map[string]int
	overlaps int64
	last     time.Time
	others   time.Time
	done     chan struct{} // closed when nothing is left
}

func newWorkplace(wares []ware) *workplace {
	return &workplace{left: len(wares), tasks: len(wares), inside: map[string]int{}, done: make(chan struct{})}
}

func (f *workplace) work(_ context.Context, t *asynq.Task) error {
	var w ware
	if err := json.Unmarshal(t.Payload(), &w); err != nil {
		return errors.Join(err, asynq.SkipRetry)
	}
	f.mu.Lock()
	if f.inside[w.Key]++; f.inside[w.Key] > 1 {
		f.overlaps++
	}
	f.mu.Unlock()
	if w.Work > 0 {
		time.Sleep(w.Work)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inside[w.Key]--
	f.last = time.Now()
	if w.Key != hotKey {
		f.others = f.last
	}
	if f.left--; f.left == 0 {
		close(f.done)
	}
	return nil
}

func (f *workplace) result() tasksResult {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := tasksResult{Done: f.tasks - f.left, Runs: f.runs.Load(), Overlaps: f.overlaps, Took: f.last.Sub(f.began), Others: f.others.Sub(f.began)}
	if f.left > 0 {
		r.Took = time.Since(f.began)
	}
	return r
}

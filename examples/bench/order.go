package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// K: what order costs.
var orderScenario = scenario{
	name:  "K",
	title: "asynq: tasks in order",
	about: "One key: 10,000 tasks of 1 ms, 10 workers. Failing: 1,000 keys of 100 tasks each, enqueued key by key in turn, of 1 ms, 64 workers; each tenth task fails twice, and may come back at once. " +
		"All are pending when the servers start. Tasks a second until the last is done; out of order are the tasks that began before an earlier one of their key was done; " +
		"the gap is from the end of a task to the first start of the next one of its key, at the 95th percentile, TaskCheckInterval being 50 ms and DelayedTaskCheckInterval 100 ms. " +
		"A queue per key: a server with one worker for each queue, and no locks. Numbered by hand: a middleware that runs a task if its number is the next one of its key, and else has it go back for a second. " +
		"Blocked: 10,000 tasks of one key are parked behind an archived one, on a server with 10 workers; tasks a second are those of 10,000 tasks of 1 ms on other keys. Commands are what MONITOR sees, those in scripts not counted, beyond what the same server sends before: " +
		"while nothing else is done, and those of the parked tasks that come back by themselves, from their delays and the cost of one that comes back. " +
		"Enqueue: one goroutine, 100 keys; the time is in turn with an asynq.Client's. Bytes are MEMORY USAGE of this library's keys for each task.",
	metrics: []metric{
		{"rate", "a second", 0}, {"broken", "out of order", 0}, {"gap", "gap p95, ms", 0}, {"intervals", "in intervals", 2}, {"runs", "taken out per task", 2}, {"overlaps", "overlaps", 0},
		{"commands", "commands/s", 2}, {"away", "of these, parked that come back", 2}, {"of", "time, of asynq's", 2}, {"bytes", "bytes/task", 0},
	},
	points: func(b *bench) []point {
		return []point{
			{label: "one key", n: 10, load: "one key"},
			{label: "failing", n: 64, load: "failing"},
			{label: "blocked", n: 10, load: "blocked"},
			{label: "Enqueue", n: 1, load: "enqueue"},
		}
	},
	entries: func(p point) []string {
		entries := []string{guardedBy + "Park", guardedBy + inOrder}
		switch p.load {
		case "failing":
			return append(entries, guardedBy+"Park"+atFront, guardedBy+inOrder+atFront, queueEach, numbered+returns)
		case "blocked":
			return []string{guardedBy + inOrder + unblocked, guardedBy + inOrder}
		case "one key":
			return append(entries, queueEach, numbered+returns)
		}
		return entries
	},
	takes: 2 * time.Minute,
	run: func(ctx context.Context, b *bench, p point, entry string) (values, error) {
		switch p.load {
		case "blocked":
			return b.runBlocked(ctx, p, entry), nil
		case "enqueue":
			return b.runEnqueue(ctx, entry), nil
		}
		return b.runOrder(ctx, p, entry)
	},
}

const (
	queueEach = "a queue per key"
	numbered  = "numbered by hand"
	unblocked = ", nothing blocked"

	orderPatience = 3 * time.Minute
	orderCheck    = 50 * time.Millisecond  // TaskCheckInterval
	orderReturns  = 100 * time.Millisecond // DelayedTaskCheckInterval: a task that failed comes back then
)

func (b *bench) runOrder(ctx context.Context, p point, entry string) (values, error) {
	var got orderResult
	patience := sized(b, orderPatience, 5*time.Second)
	if entry == numbered+returns {
		patience = min(patience, tasksPatience)
	}
	b.alone(ctx, job{
		Do: "order", Contender: entry, Conf: conf{Addr: b.server.addr, N: p.n}, Load: p.load,
		N: sized(b, 1, 50), Time: patience,
	}, nil, &got)
	v := values{
		"rate": float64(got.Done) / got.Took.Seconds(), "broken": float64(got.Broken), "overlaps": float64(got.Overlaps), "runs": float64(got.Runs) / float64(max(1, got.Done)),
		"gap": milliseconds(got.Gap), "intervals": got.Gap.Seconds() / orderCheck.Seconds(),
	}
	if got.Done < got.Tasks {
		return v, errUnfinished
	}
	return v, nil
}

// orderLoad gives the tasks of a load, in the order of their enqueueing; 1/part of them.
func orderLoad(name string, part int) []ware {
	keys, each, failing := 1, max(20, 10_000/part), false
	switch name {
	case "one key":
	case "failing":
		keys, each, failing = max(20, 1000/part), max(20, 100/part), true
	default:
		panic(fmt.Errorf("bench: there is no load %q", name))
	}
	wares := make([]ware, 0, keys*each)
	for turn := range each {
		for k := range keys {
			w := ware{Key: fmt.Sprintf("k%d", k), Work: time.Millisecond, Turn: turn}
			if failing && (turn+k)%10 == 0 {
				w.Fails = 2
			}
			wares = append(wares, w)
		}
	}
	return wares
}

type orderResult struct {
	Tasks, Done, Broken int
	Runs, Overlaps      int64
	Took, Gap           time.Duration
}

// orderDuty runs a load of tasks in order, for Time at most.
func orderDuty(ctx context.Context, m *mate) {
	wares := orderLoad(m.Load, m.N)
	rdb := connect(m.Conf)
	f := newOrderedWork(wares)
	servers, handler := orderServers(ctx, rdb, m, wares, f)
	m.ready()
	f.began = time.Now()
	for _, server := range servers {
		must(server.Start(handler))
	}
	late := time.NewTimer(m.Time)
	defer late.Stop()
	select {
	case <-f.done:
	case <-late.C:
	}
	m.tell(f.result())
	m.stay() // nothing is left to shut down for: the server is cleared next
}

// orderServers enqueues the tasks, and makes what runs them.
func orderServers(ctx context.Context, rdb *redis.Client, m *mate, wares []ware, f *orderedWork) ([]*asynq.Server, asynq.Handler) {
	config := asynq.Config{
		Concurrency: m.Conf.N, TaskCheckInterval: orderCheck, DelayedTaskCheckInterval: orderReturns, Logger: redistest.Silent{},
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	}
	counted := func(h asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			f.runs.Add(1)
			return h.ProcessTask(ctx, t)
		})
	}
	work := asynq.HandlerFunc(f.work)
	plain := asynq.NewClientFromRedisClient(rdb)
	switch m.Contender {
	case queueEach:
		byKey := map[string][]ware{}
		for _, w := range wares {
			byKey[w.Key] = append(byKey[w.Key], w)
		}
		servers := make([]*asynq.Server, 0, len(byKey))
		for key, of := range byKey {
			enqueue(ctx, plain, of, asynq.Queue(key))
			config.Concurrency, config.Queues = 1, map[string]int{key: 1}
			servers = append(servers, asynq.NewServerFromRedisClient(rdb, config))
		}
		return servers, counted(work)
	case numbered + returns:
		config.IsFailure = func(err error) bool { return !errors.Is(err, errBusy) }
		config.RetryDelayFunc = func(_ int, err error, _ *asynq.Task) time.Duration {
			if errors.Is(err, errBusy) {
				return goesBack
			}
			return 0
		}
		enqueue(ctx, plain, wares)
		return []*asynq.Server{asynq.NewServerFromRedisClient(rdb, config)}, counted(byNumber(rdb, work))
	}
	enqueue(ctx, get(automutex.NewClient(rdb, plain, configOf(automutex.Rule{}, m.Contender))), wares)
	s := guardedWith(automutex.Rule{}, m.Contender, m.Conf, config, work)
	return []*asynq.Server{asynq.NewServerFromRedisClient(rdb, s.config)}, counted(s.handler)
}

// byNumber is order by hand: Redis counts the tasks of a key that are done.
func byNumber(rdb *redis.Client, work asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		var w ware
		if err := json.Unmarshal(t.Payload(), &w); err != nil {
			return errors.Join(err, asynq.SkipRetry)
		}
		next, err := rdb.Get(ctx, "turn:"+w.Key).Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		if next != w.Turn {
			return errBusy
		}
		if err := work.ProcessTask(ctx, t); err != nil {
			return err
		}
		return rdb.Incr(ctx, "turn:"+w.Key).Err()
	})
}

// orderedWork is a workplace that knows the tasks' order, and fails as they ask for.
type orderedWork struct {
	runs  atomic.Int64
	began time.Time // written before the servers start

	mu       sync.Mutex // guards what follows
	keys     map[string]*orderedKey
	tasks    int
	left     int
	broken   int
	overlaps int64
	gaps     []time.Duration
	last     time.Time
	done     chan struct{} // closed when nothing is left
}

type orderedKey struct {
	tries  []int  // of each task
	isDone []bool // each task
	next   int    // the first one that is not done
	inside int
	ended  time.Time // when the last one that was done ended; zero: the next one has begun
}

func newOrderedWork(wares []ware) *orderedWork {
	f := &orderedWork{tasks: len(wares), left: len(wares), keys: map[string]*orderedKey{}, done: make(chan struct{})}
	for _, w := range wares {
		k := f.keys[w.Key]
		if k == nil {
			k = &orderedKey{}
			f.keys[w.Key] = k
		}
		k.tries, k.isDone = append(k.tries, 0), append(k.isDone, false)
	}
	return f
}

var errAsAsked = errors.New("bench: fails, as it was asked to")

func (f *orderedWork) work(_ context.Context, t *asynq.Task) error {
	var w ware
	if err := json.Unmarshal(t.Payload(), &w); err != nil {
		return errors.Join(err, asynq.SkipRetry)
	}
	f.mu.Lock()
	k := f.keys[w.Key]
	if k.inside++; k.inside > 1 {
		f.overlaps++
	}
	if k.tries[w.Turn]++; k.tries[w.Turn] == 1 {
		if w.Turn != k.next {
			f.broken++
		}
		if !k.ended.IsZero() {
			f.gaps = append(f.gaps, time.Since(k.ended))
			k.ended = time.Time{}
		}
	}
	fails := k.tries[w.Turn] <= w.Fails
	f.mu.Unlock()
	time.Sleep(w.Work)
	f.mu.Lock()
	defer f.mu.Unlock()
	k.inside--
	if fails {
		return errAsAsked
	}
	if k.isDone[w.Turn] {
		return nil
	}
	f.last = time.Now()
	k.isDone[w.Turn], k.ended = true, f.last
	if i := slices.Index(k.isDone[k.next:], false); i >= 0 {
		k.next += i
	} else {
		k.next = len(k.isDone)
	}
	if f.left--; f.left == 0 {
		close(f.done)
	}
	return nil
}

func (f *orderedWork) result() orderResult {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := orderResult{
		Tasks: f.tasks, Done: f.tasks - f.left, Broken: f.broken, Runs: f.runs.Load(), Overlaps: f.overlaps,
		Took: f.last.Sub(f.began), Gap: quantile(slices.Clone(f.gaps), 0.95),
	}
	if f.left > 0 {
		r.Took = time.Since(f.began)
	}
	return r
}

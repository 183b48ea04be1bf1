//go:build unix

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// job is the payload of a task: what it is keyed on, and its work; of a crowd also its number, and when it is enqueued.
type job struct {
	Key  string
	Work time.Duration
	N    int
	At   time.Duration
}

// load is what an asynq server has to do: job i of n.
type load struct {
	name       string
	workers    int
	contenders string
	job        func(i int) job
}

var loads = []load{
	{"distinct:10", 10, "none raw automutex redislock redsync rueidislock asynq-semaphore", distinct},
	{"distinct:64", 64, "none raw automutex redislock redsync rueidislock asynq-semaphore", distinct},
	{"hot-among-cold", 10, "none raw automutex automutex-wait rueidislock", func(i int) job {
		if i%11 == 0 {
			return job{Key: "hot", Work: 20 * time.Millisecond}
		}
		return job{Key: fmt.Sprintf("cold%d", i%200), Work: 2 * time.Millisecond}
	}},
	{"hot-keys:20", 16, "none raw automutex automutex-wait rueidislock", func(i int) job {
		return job{Key: fmt.Sprintf("k%d", i%20), Work: time.Millisecond}
	}},
}

func distinct(i int) job { return job{Key: fmt.Sprintf("k%d", i)} }

// rules are this library's, by the name of a contender.
var rules = map[string]automutex.Rule{
	"automutex":         {}, // Park
	"automutex-idle":    {LeaveIdle: 2},
	"automutex-wait":    {Busy: automutex.Retry, Wait: time.Hour},
	"automutex-inorder": {InOrder: true},
}

func config(name string, limit int) (automutex.Config, bool) {
	rule, ok := rules[name]
	rule.Task, rule.On, rule.Limit = "job", []string{"Key"}, limit
	return automutex.Config{Rules: []automutex.Rule{rule}, Logger: slog.New(slog.DiscardHandler)}, ok
}

// taskCommands are those that locks send. The scripts of asynq are among them, which are the same for everybody.
var taskCommands = []string{"set", "delex", "delifeq", "evalsha", "eval"}

// BenchmarkTask has an asynq server work, with a lock around each task, from its start to the last task. A contender
// that is no Guard is in a middleware by hand, and waits in its worker. Handler: the middleware alone, without a
// server. Distinct: tasks that do nothing, a key of its own for each. Hot-among-cold: each eleventh task is of one key
// and takes 20 ms, the others 2. Parked: all tasks of one key, but those that wait in a worker, are parked before its
// holder is done, and then run; its time is that of both. With none they come back once, and an Inspector runs them.
// Enqueue: no server, one goroutine.
func BenchmarkTask(b *testing.B) {
	s := redistest.StartReal(b, "--maxclients", "5000")
	row(b, s, "handler", loads[0].contenders, func(b *testing.B, name string) { handler(b, s, name) })
	for _, l := range loads {
		row(b, s, l.name, l.contenders, func(b *testing.B, name string) { work(b, s, name, l) })
	}
	row(b, s, "parked", "none automutex automutex-inorder", func(b *testing.B, name string) { parked(b, s, name) })
	row(b, s, "enqueue", "none automutex-inorder", func(b *testing.B, name string) { enqueue(b, s, name) })
}

// guarded has a contender's locks around a handler. A limit of 0: one at a time, and a middleware by hand waits;
// otherwise that has a lock for each slot, and a task that finds its lock busy comes back after a second.
func guarded(
	b *testing.B, s *redistest.Server, name string, limit int, of asynq.Config, next asynq.Handler,
) (asynq.Config, asynq.Handler) {
	if cfg, ok := config(name, limit); ok {
		guard, err := automutex.New(connect(b, s.Addr()), cfg)
		redistest.Must(b, err)
		b.Cleanup(func() { _ = guard.Close(context.Background()) })
		return guard.ServerConfig(of), guard.Middleware(next)
	}
	if isBare(name) {
		return of, next
	}
	of.IsFailure = func(err error) bool { return !errors.Is(err, errBusy) }
	of.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Second }
	open := named(name).open(b, s.Addr(), 1)
	return of, asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) (err error) {
		var j job
		if err := json.Unmarshal(t.Payload(), &j); err != nil {
			return errors.Join(err, asynq.SkipRetry)
		}
		key := fmt.Sprint(t.Type(), ":", j.Key, j.N%max(limit, 1))
		return errors.Join(open(key)(ctx, limit == 0, func() { err = next.ProcessTask(ctx, t) }), err)
	})
}

// isBare tells whether a contender has no locks.
func isBare(name string) bool { return name == "none" || name == "queues" }

func handler(b *testing.B, s *redistest.Server, name string) {
	_, h := guarded(b, s, name, 0, asynq.Config{},
		asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	// As asynq calls handlers: with a deadline, and a context that can be cancelled.
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	tasks := make([]*asynq.Task, 64)
	for i := range tasks {
		tasks[i] = task(b, distinct(i))
	}
	once := func(n int) {
		for i := range n {
			redistest.Must(b, h.ProcessTask(ctx, tasks[i%len(tasks)]))
		}
	}
	once(len(tasks))
	measure(b, s, taskCommands, func() { once(b.N) })
}

func task(b *testing.B, j job) *asynq.Task {
	payload, err := json.Marshal(j)
	redistest.Must(b, err)
	return asynq.NewTask("job", payload)
}

// client is what enqueues a contender's tasks.
func client(b *testing.B, s *redistest.Server, name string) automutex.Enqueuer {
	rdb := connect(b, s.Addr())
	plain := asynq.NewClientFromRedisClient(rdb)
	if name != "automutex-inorder" {
		return plain
	}
	cfg, _ := config(name, 0)
	ours, err := automutex.NewClient(rdb, plain, cfg)
	redistest.Must(b, err)
	return ours
}

func enqueueAll(b *testing.B, client automutex.Enqueuer, jobs []job) {
	for _, j := range jobs {
		_, err := client.EnqueueContext(b.Context(), task(b, j))
		redistest.Must(b, err)
	}
}

func enqueue(b *testing.B, s *redistest.Server, name string) {
	c := client(b, s, name)
	jobs := make([]job, b.N)
	for i := range jobs {
		jobs[i] = distinct(i % 100)
	}
	enqueueAll(b, c, jobs[:1])
	measure(b, s, taskCommands, func() { enqueueAll(b, c, jobs) })
}

// yard is running asynq servers. It knows who is at work.
type yard struct {
	b    *testing.B
	most int // of a key at work at once; 0: as many as come
	runs atomic.Int64
	left atomic.Int64
	done chan struct{} // closed when nothing is left
	hold chan struct{} // what the job of a held key waits for
	held chan struct{} // closed when it waits
	told func(j job)   // of each start, with mu; nil: nobody is

	mu     sync.Mutex
	inside map[string]int // by key: how many are at work
}

const heldKey = "held"

func (y *yard) ProcessTask(_ context.Context, t *asynq.Task) error {
	var j job
	if err := json.Unmarshal(t.Payload(), &j); err != nil {
		return errors.Join(err, asynq.SkipRetry)
	}
	y.enter(j)
	switch {
	case j.Work > 0:
		time.Sleep(j.Work)
	case j.Key == heldKey:
		close(y.held)
		<-y.hold
	}
	y.mu.Lock()
	y.inside[j.Key]--
	y.mu.Unlock()
	if y.left.Add(-1) == 0 {
		close(y.done)
	}
	return nil
}

func (y *yard) enter(j job) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.inside[j.Key]++; y.most > 0 && y.inside[j.Key] > y.most {
		y.b.Errorf("%d of %q are at work", y.inside[j.Key], j.Key)
	}
	if y.told != nil {
		y.told(j)
	}
}

func newYard(b *testing.B, most, tasks int) *yard {
	y := &yard{b: b, most: most, done: make(chan struct{}), hold: make(chan struct{}), held: make(chan struct{}),
		inside: map[string]int{}}
	y.left.Store(int64(tasks))
	return y
}

// start has a server work on so many tasks, with a contender's locks.
func start(b *testing.B, s *redistest.Server, name string, workers, tasks int) *yard {
	y := newYard(b, 1, tasks)
	if isBare(name) {
		y.most = 0
	}
	y.serve(s, name, 0, asynq.Config{Concurrency: workers})
	return y
}

// serve starts a server.
func (y *yard) serve(s *redistest.Server, name string, limit int, of asynq.Config) {
	of.TaskCheckInterval, of.DelayedTaskCheckInterval = check, time.Second
	of.ShutdownTimeout, of.Logger = time.Second, redistest.Silent{}
	of, h := guarded(y.b, s, name, limit, of, y)
	server := asynq.NewServerFromRedisClient(connect(y.b, s.Addr()), of)
	y.b.Cleanup(server.Shutdown)
	redistest.Must(y.b, server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		y.runs.Add(1)
		return h.ProcessTask(ctx, t)
	})))
}

func work(b *testing.B, s *redistest.Server, name string, l load) {
	jobs := make([]job, b.N)
	byKey, all := map[string]time.Duration{}, time.Duration(0)
	for i := range jobs {
		jobs[i] = l.job(i)
		byKey[jobs[i].Key] += jobs[i].Work
		all += jobs[i].Work
	}
	// the same for everybody
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(jobs), func(i, k int) { jobs[i], jobs[k] = jobs[k], jobs[i] })
	ideal := all / time.Duration(l.workers)
	for _, d := range byKey {
		ideal = max(ideal, d)
	}
	enqueueAll(b, client(b, s, name), jobs)
	var y *yard
	measure(b, s, taskCommands, func() {
		y = start(b, s, name, l.workers, b.N)
		<-y.done
	})
	b.ReportMetric(float64(y.runs.Load())/float64(b.N), "runs/op")
	if ideal > 0 {
		b.ReportMetric(b.Elapsed().Seconds()/ideal.Seconds(), "x-ideal")
	}
}

func parked(b *testing.B, s *redistest.Server, name string) {
	if isBare(name) {
		comeBack(b, s)
		return
	}
	c := client(b, s, name)
	y := start(b, s, name, 10, b.N+1)
	enqueueAll(b, c, []job{{Key: heldKey}})
	<-y.held
	jobs := make([]job, b.N)
	for i := range jobs {
		jobs[i] = job{Key: heldKey, Work: time.Millisecond}
	}
	rdb := connect(b, s.Addr())
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	redistest.Must(b, inspector.PauseQueue("default"))
	enqueueAll(b, c, jobs)
	measure(b, s, taskCommands, func() {
		redistest.Must(b, inspector.UnpauseQueue("default"))
		for rdb.LLen(b.Context(), "asynq:{default}:pending").Val() > 0 {
			time.Sleep(10 * time.Millisecond)
		}
		close(y.hold)
		<-y.done
	})
	b.ReportMetric(float64(y.runs.Load())/float64(b.N), "runs/op")
}

// comeBack has asynq alone do what it does for parked tasks: each comes back to its queue once, and then an Inspector
// looks at it and runs it, up to 64 ahead of the one at work.
func comeBack(b *testing.B, s *redistest.Server) {
	rdb := connect(b, s.Addr())
	inspector, c, ids := asynq.NewInspectorFromRedisClient(rdb), client(b, s, "none"), make([]string, b.N)
	for i := range ids {
		info, err := c.EnqueueContext(b.Context(), task(b, job{}))
		redistest.Must(b, err)
		ids[i] = info.ID
	}
	var first atomic.Int64
	var work sync.Mutex
	ahead := make(chan struct{}, 64)
	server := asynq.NewServerFromRedisClient(rdb, asynq.Config{Concurrency: 10, TaskCheckInterval: check,
		ShutdownTimeout: time.Second, Logger: redistest.Silent{}, IsFailure: func(error) bool { return false },
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour }})
	b.Cleanup(server.Shutdown)
	measure(b, s, taskCommands, func() {
		redistest.Must(b, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			if first.Add(1) <= int64(b.N) {
				return errBusy
			}
			work.Lock()
			time.Sleep(time.Millisecond)
			work.Unlock()
			<-ahead
			return nil
		})))
		for first.Load() < int64(b.N) {
			time.Sleep(10 * time.Millisecond)
		}
		for _, id := range ids {
			ahead <- struct{}{}
			info, err := inspector.GetTaskInfo("default", id)
			for ; err == nil && info.State != asynq.TaskStateRetry; info, err = inspector.GetTaskInfo("default", id) {
				time.Sleep(time.Millisecond)
			}
			redistest.Must(b, errors.Join(err, inspector.RunTask("default", id)))
		}
		for range cap(ahead) {
			ahead <- struct{}{}
		}
	})
}

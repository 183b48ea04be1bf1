package trust

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/lock"
)

// soakWorker is one life of an asynq server with its guard: in this process, or
// in one of its own that gets this as JSON.
type soakWorker struct {
	Proc    string // names this life
	Guard   string // host:port of Redis, as the guard sees it
	Asynq   string // as asynq does
	Ledger  string
	Prefix  string
	AtFront bool

	ledger *soakLedger
	runs   atomic.Int64
	guard  *automutex.Guard
	server *asynq.Server
	close  []io.Closer
	// running are the handlers: a server that shuts down leaves those behind that
	// take too long, and they still have something to write down.
	running sync.WaitGroup
}

// soakPatience is longer than any handler, and than any shutdown takes.
const soakPatience = 30 * time.Second

// start begins to serve. fail is told of what must not happen.
func (w *soakWorker) start(fail func(error)) error {
	client := func(addr, name string) *redis.Client {
		rdb := redis.NewClient(&redis.Options{Addr: addr, ClientName: name, ReadTimeout: 500 * time.Millisecond})
		w.close = append(w.close, rdb)
		return rdb
	}
	ledger := redis.NewClient(&redis.Options{Addr: w.Ledger, ReadTimeout: soakPatience})
	w.close = append(w.close, ledger)
	w.ledger = &soakLedger{rdb: ledger, fail: fail}
	rules, _ := soakRules()
	var err error
	w.guard, err = automutex.New(client(w.Guard, "guard"), automutex.Config{
		Rules: rules, Prefix: w.Prefix, Owner: w.Proc, WakeAtFront: w.AtFront,
		Logger: slog.New(slog.DiscardHandler), Observe: w.observe,
	})
	if err != nil {
		return err
	}
	queues := map[string]int{soakOnceQueue: 1}
	for _, q := range soakQueues {
		queues[q] = 1
	}
	w.server = asynq.NewServerFromRedisClient(client(w.Asynq, "asynq"), w.guard.ServerConfig(asynq.Config{
		Concurrency: 10, Queues: queues, TaskCheckInterval: 20 * time.Millisecond,
		DelayedTaskCheckInterval: 200 * time.Millisecond, ShutdownTimeout: time.Second, Logger: soakSilence{},
		RetryDelayFunc: w.spends,
		ErrorHandler:   asynq.ErrorHandlerFunc(w.failed),
	}))
	guarded := w.guard.Middleware(asynq.HandlerFunc(w.handle))
	return w.server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		w.running.Add(1) // not beside the Wait: that is after Shutdown, which begins none
		defer w.running.Done()
		var task soakTask
		if err := json.Unmarshal(t.Payload(), &task); err != nil {
			return err
		}
		retried, _ := asynq.GetRetryCount(ctx)
		if most, _ := asynq.GetMaxRetry(ctx); retried >= most {
			w.ledger.note(final, task.N)
		}
		// What the guard observes knows the task by this.
		return guarded.ProcessTask(context.WithValue(ctx, soakKey{}, soakContext{w, task.N, time.Now()}), t)
	}))
}

// stop ends the life as a program would: Close beside Shutdown.
func (w *soakWorker) stop() error {
	closed := make(chan error, 1) // from the goroutine below, once
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), soakPatience)
		defer cancel()
		closed <- w.guard.Close(ctx)
	}()
	w.server.Shutdown()
	err := <-closed
	w.running.Wait()
	for _, c := range w.close {
		err = errors.Join(err, c.Close())
	}
	return err
}

// soakKey finds the worker and the task's number in a context.
type soakKey struct{}

type soakContext struct {
	worker *soakWorker
	n      int
	since  time.Time // when the task came to the guard
}

func soakWorkerOf(ctx context.Context) *soakWorker {
	c, _ := ctx.Value(soakKey{}).(soakContext)
	return c.worker
}

func (w *soakWorker) observe(ctx context.Context, e automutex.Event) {
	c, _ := ctx.Value(soakKey{}).(soakContext)
	switch e.Kind {
	case automutex.EventSkipped:
		w.ledger.note(skipped, c.n)
	case automutex.EventReplaced:
		w.ledger.note(replaced, c.n)
	case automutex.EventKeyError:
		w.ledger.note(unkeyed, c.n)
	case automutex.EventParked, automutex.EventLost, automutex.EventBackendError, automutex.EventOverdue, automutex.EventRetried:
		w.ledger.count(string(e.Kind))
	case automutex.EventAcquired, automutex.EventBusy, automutex.EventReleased, automutex.EventWaited, automutex.EventWaiting:
	}
}

// failed notes a task that its handler has archived.
func (w *soakWorker) failed(_ context.Context, t *asynq.Task, err error) {
	var task soakTask
	if json.Unmarshal(t.Payload(), &task) == nil && errors.Is(err, asynq.SkipRetry) {
		w.ledger.note(final, task.N)
	}
}

// spends is asked for a delay whenever an attempt is spent, by a handler or by
// asynq's recoverer, and never when a task is handed back: the guard answers then.
func (w *soakWorker) spends(_ int, _ error, t *asynq.Task) time.Duration {
	var task soakTask
	if json.Unmarshal(t.Payload(), &task) == nil {
		w.ledger.spent(task.N)
	}
	return time.Second
}

// handle does what the payload says, and writes down that it does.
func (w *soakWorker) handle(ctx context.Context, t *asynq.Task) error {
	var task soakTask
	if err := json.Unmarshal(t.Payload(), &task); err != nil {
		return err
	}
	came, _ := ctx.Value(soakKey{}).(soakContext)
	run := soakRun{
		proc: w.Proc, name: fmt.Sprintf("%s#%d", w.Proc, w.runs.Add(1)), n: task.N,
		came: came.since, began: time.Now(),
	}
	var err error
	if run.keys, err = w.guard.Keys(ctx, t); err != nil {
		return err
	}
	for _, key := range run.keys {
		run.fences = append(run.fences, soakFence(ctx, t, key, task))
	}
	if retried, _ := asynq.GetRetryCount(ctx); retried > 0 {
		w.ledger.checkSpent(task.N, retried)
	}
	if soakKindOf(t.Type()).supersedes() {
		w.ledger.note(began, task.N)
	}
	w.ledger.enter(run)
	defer func() { w.ledger.leave(run, errors.Is(context.Cause(ctx), lock.ErrLost)) }()
	if err := task.work(ctx); err != nil {
		if errors.Is(err, asynq.RevokeTask) {
			w.ledger.note(revoked, task.N)
		}
		return err
	}
	w.ledger.succeed(run, t.Type() == "turn:cool")
	return nil
}

// soakFence is that of the lease on a key; 0: none, or it could not be asked for.
func soakFence(ctx context.Context, t *asynq.Task, key string, task soakTask) int64 {
	for _, r := range soakKindOf(t.Type()).rules {
		name, value := cmp.Or(r.Name, r.Task), task.ID
		if r.Name == "to" {
			value = task.To
		}
		lease, ok := automutex.LeaseOf(ctx, name)
		if ok && (strings.HasSuffix(key, "|"+value+"}") || len(r.On) == 0) {
			fence, err := lease.Fence()
			if err != nil {
				return 0
			}
			return fence
		}
	}
	return 0
}

// work is what soakDo says.
func (task soakTask) work(ctx context.Context) error {
	retried, _ := asynq.GetRetryCount(ctx)
	pause := time.NewTimer(time.Duration(task.MS) * time.Millisecond)
	defer pause.Stop()
	failing := retried < task.Fails
	switch {
	case failing && task.Do == "ignore":
		<-ctx.Done()
		<-pause.C
		time.Sleep(100 * time.Millisecond) // a handler that does not listen
		return errSoakFails
	case failing && task.Do == "timeout":
		<-ctx.Done()
		return context.Cause(ctx)
	}
	select {
	case <-pause.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case task.Do == "always", failing && task.Do == "fail":
		return errSoakFails
	case failing && task.Do == "panic":
		panic("soak: the handler panics")
	case task.Do == "skip":
		return fmt.Errorf("%w for good: %w", errSoakFails, asynq.SkipRetry)
	case task.Do == "revoke":
		return asynq.RevokeTask
	}
	return nil
}

func init() { children["soak worker"] = soakChild } //nolint:gochecknoinits // the table of them is elsewhere

// soakWorkerEnv is the soakWorker of a child.
const soakWorkerEnv = "AUTOMUTEX_TRUST_SOAK_WORKER"

// soakLeaked is how a child exits that has left goroutines behind.
const soakLeaked = 4

// soakChild serves until its standard input ends, which it does with the parent,
// and then looks what it has left behind.
func soakChild() {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, "soak worker:", err)
		os.Exit(3)
	}
	var w soakWorker
	if err := json.Unmarshal([]byte(os.Getenv(soakWorkerEnv)), &w); err != nil {
		fail(err)
	}
	if err := w.start(fail); err != nil {
		fail(err)
	}
	fmt.Println("ready") // the parent waits for it
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := w.stop(); err != nil {
		fail(err)
	}
	// Longer than goleak itself looks: a dial that was under way ends with its timeout.
	var err error
	for range 20 {
		if err = goleak.Find(); err == nil {
			return
		}
	}
	fmt.Fprintln(os.Stderr, "soak worker: goroutines leaked:", err)
	os.Exit(soakLeaked)
}

// soakSilence is an asynq.Logger.
type soakSilence struct{}

func (soakSilence) Debug(...any) {}
func (soakSilence) Info(...any)  {}
func (soakSilence) Warn(...any)  {}
func (soakSilence) Error(...any) {}
func (soakSilence) Fatal(args ...any) {
	panic(strings.TrimSpace(fmt.Sprintln(args...)))
}

// Package automutextest is for tests of programs that use automutex. It needs no Redis: each test has one of its own in
// memory. Everything ends with the test. A failure names the rule, the key and its holder, if there are any. Nothing
// waits for longer than 30 seconds plus the longest Wait of the rules.
//
//	guard := automutextest.New(t, automutex.Config{Rules: rules})
//	server := automutextest.Serve(t, guard, newMux(guard.Guard))
//	release := automutextest.Hold(t, guard, verifyTask(1, "a"))
//	task := server.Enqueue(t, verifyTask(1, "b"))
//	task.Becomes(t, automutextest.HandedBack) // under Park, beside a free worker: Waiting, and no Again
//	release()
//	task.Again(t)
//	task.Becomes(t, automutextest.Done)
package automutextest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
)

var errUnguarded = errors.New("no rule has a key for a task of this type: it runs unguarded")

const poll = 2 * time.Millisecond // how often a task is looked at

// Guard is an automutex.Guard on a Redis in memory. Make one with [New].
type Guard struct {
	*automutex.Guard

	cfg      automutex.Config
	rdb      *redis.Client
	patience time.Duration // how long anything is waited for
	ordered  bool          // a rule needs the Client

	mu         sync.Mutex // guards deliveries and what is in them
	deliveries map[string]delivery
}

// New makes a Guard on a Redis in memory, for this test alone; both end with the test. A nil Logger is the test's log.
// MinReplicas and Inspector of cfg have no effect. A cfg that automutex.New refuses fails the test.
func New(tb testing.TB, cfg automutex.Config) *Guard {
	tb.Helper()
	memory, err := miniredis.Run()
	if err != nil {
		tb.Fatalf("automutextest: the Redis in memory does not start: %v", err)
	}
	tb.Cleanup(memory.Close)
	memory.ClockTTL(true) // keys expire as time goes by
	g := &Guard{rdb: redis.NewClient(&redis.Options{Addr: memory.Addr()}), deliveries: map[string]delivery{}}
	tb.Cleanup(func() { _ = g.rdb.Close() }) // the test may have closed it itself
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(testLog(tb.Log), nil))
	}
	cfg.MinReplicas, cfg.Inspector, cfg.Private = min(cfg.MinReplicas, 0), nil, true // there are none
	for _, rule := range cfg.Rules {
		g.patience, g.ordered = max(g.patience, rule.Wait), g.ordered || rule.InOrder || rule.StartWithin > 0
	}
	g.patience += 30 * time.Second
	cfg.Rules = slices.Clone(cfg.Rules)
	g.cfg = cfg
	cfg.Observe = automutex.JoinObservers(g.observe, cfg.Observe)
	if g.Guard, err = automutex.New(g.rdb, cfg); err != nil {
		tb.Fatalf("automutextest: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), g.patience)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			tb.Errorf("automutextest: a handler still runs %s after the end of the test: %v", g.patience, err)
		}
	})
	return g
}

// Redis returns the client of the Redis in memory, for clients and inspectors of the program.
func (g *Guard) Redis() *redis.Client { return g.rdb }

// testLog writes to the log of a test, which it is the Log of. Slog's handlers write a record, a line, at a time.
type testLog func(...any)

func (log testLog) Write(p []byte) (int, error) {
	log(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// ShareKey checks that any two of the tasks need a common lock, and so take turns. A task without a key fails the test.
func ShareKey(tb testing.TB, g *Guard, tasks ...*asynq.Task) {
	tb.Helper()
	g.share(tb, true, tasks)
}

// ShareNoKey checks that no two of the tasks need a common lock, so that none waits for another.
func ShareNoKey(tb testing.TB, g *Guard, tasks ...*asynq.Task) {
	tb.Helper()
	g.share(tb, false, tasks)
}

func (g *Guard) share(tb testing.TB, want bool, tasks []*asynq.Task) {
	tb.Helper()
	if len(tasks) < 2 {
		tb.Fatalf("automutextest: %d tasks; give two or more to compare", len(tasks))
	}
	keys := make([][]string, len(tasks))
	for i, task := range tasks {
		var err error
		if keys[i], err = g.Keys(context.Background(), task); err != nil || len(keys[i]) == 0 {
			tb.Fatalf("automutextest: a %q has no key, %s", task.Type(), cmp.Or(err, errUnguarded))
		}
		for j, other := range tasks[:i] {
			isOurs := func(key string) bool { return slices.Contains(keys[i], key) }
			if share := slices.ContainsFunc(keys[j], isOurs); share != want {
				tb.Errorf("automutextest: do these tasks share a key? %t\n  %s %.200q: %q\n  %s %.200q: %q",
					share, other.Type(), other.Payload(), keys[j], task.Type(), task.Payload(), keys[i])
			}
		}
	}
}

// Hold takes the locks of a task, as its handler would, until release is called or the test ends. release may be called
// more than once. With a Limit above 1 Hold takes one of the slots; call it Limit times to take all. If a lock has no
// free slot, Hold fails the test at once. A Hold is no run: it begins no Cooldown, counts for no Rate, and has no place
// in an order.
func Hold(tb testing.TB, g *Guard, task *asynq.Task) (release func()) {
	tb.Helper()
	_, file, line, _ := runtime.Caller(1)
	owner := fmt.Sprintf("the Hold at %s:%d", filepath.Base(file), line)
	said, let := make(chan error), make(chan struct{})
	hold := func(context.Context) error { //nolint:unparam // as runAs takes it
		said <- nil
		<-let
		return nil
	}
	go func() { said <- g.runAs(owner, task, hold) }() // ends with release, or without a lock
	if err := <-said; err != nil {
		tb.Fatalf("automutextest: nothing to hold: %v", err)
	}
	release = sync.OnceFunc(func() {
		close(let)
		if err := <-said; err != nil {
			tb.Errorf("automutextest: Hold: %v", err)
		}
	})
	tb.Cleanup(release)
	return release
}

// CloseGate closes the gate of a task's key for d, as a handler does with [automutex.CloseGate]. It takes the task's
// locks for a moment, as [Hold] does, and fails the test if one has no free slot.
func CloseGate(tb testing.TB, g *Guard, task *asynq.Task, d time.Duration) {
	tb.Helper()
	shut := func(ctx context.Context) error { return automutex.CloseGate(ctx, d) }
	if err := g.runAs("a CloseGate", task, shut); err != nil {
		tb.Fatalf("automutextest: CloseGate: %v", err)
	}
}

// runAs runs f under the locks of a task, or returns who has them. It never waits, and tells nobody.
func (g *Guard) runAs(owner string, task *asynq.Task, f func(context.Context) error) error {
	cfg := g.cfg
	cfg.Owner, cfg.Logger, cfg.Observe, cfg.Rules = owner, slog.New(slog.DiscardHandler), nil, slices.Clone(cfg.Rules)
	for i := range cfg.Rules {
		rule := &cfg.Rules[i]
		rule.Busy, rule.Wait, rule.MaxHold, rule.Cooldown, rule.Rate = automutex.Fail, 0, 0, 0, automutex.Rate{}
		rule.InOrder, rule.OnArchive, rule.MaxQueued, rule.RateOf, rule.Cost = false, automutex.HoldKey, 0, nil, nil
	}
	holder, err := automutex.New(g.rdb, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = holder.Close(context.Background()) }()
	return holder.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		if _, isGuarded := automutex.Lease(ctx); !isGuarded {
			return errUnguarded
		}
		return f(ctx)
	})).ProcessTask(context.Background(), task)
}

// Pause pauses a scope ("report") or a key ("report|acme"), as an operator does, until resume is called or the test
// ends. Until then, tasks become [HandedBack], whatever their policy. Then [Task.Again] runs them; a parked task runs
// by itself.
func Pause(tb testing.TB, g *Guard, target string) (resume func()) {
	tb.Helper()
	if err := g.Controls().Pause(context.Background(), target, time.Time{}, "the test "+tb.Name()); err != nil {
		tb.Fatalf("automutextest: Pause: %v", err)
	}
	resume = func() { _ = g.Controls().Resume(context.Background(), target) } // it fails if the test has closed Redis
	tb.Cleanup(resume)
	return resume
}

// Server is an asynq server on a Guard's Redis in memory; see [Serve].
type Server struct {
	guard     *Guard
	queues    map[string]int
	plain     *asynq.Client
	client    *automutex.Client
	inspector *asynq.Inspector
	tasks     []*Task // belongs to the test's goroutine
}

// Serve starts an asynq server with the Guard's ServerConfig, which ends with the test. handler must include
// guard.Middleware: pass the program's own mux, or guard.Middleware(handler). The server has ten workers and the queue
// "default"; adjust functions may change that. Tasks that asynq keeps for later (handed back, failed, or scheduled)
// stay there until [Task.Again] or [Server.Drain]. Parked tasks run by themselves when their turn comes.
func Serve(tb testing.TB, g *Guard, handler asynq.Handler, adjust ...func(*asynq.Config)) *Server {
	tb.Helper()
	cfg := asynq.Config{Concurrency: 10, Queues: map[string]int{"default": 1}, TaskCheckInterval: 5 * time.Millisecond,
		LogLevel: asynq.FatalLevel}
	for _, f := range adjust {
		f(&cfg)
	}
	cfg.DelayedTaskCheckInterval, cfg.ShutdownTimeout = 24*time.Hour, time.Second
	s := &Server{guard: g, queues: cfg.Queues, plain: asynq.NewClientFromRedisClient(g.rdb),
		inspector: asynq.NewInspectorFromRedisClient(g.rdb)}
	s.client, _ = automutex.NewClient(g.rdb, s.plain, g.cfg) // automutex.New has checked the Config
	server := asynq.NewServerFromRedisClient(g.rdb, g.ServerConfig(cfg))
	if err := server.Start(g.watching(handler)); err != nil {
		tb.Fatalf("automutextest: Serve: %v", err)
	}
	tb.Cleanup(func() {
		go func() { _ = g.Close(context.Background()) }() // ends with the handlers; Shutdown needs it to have begun
		server.Shutdown()
	})
	return s
}

// Client returns a Client with the Guard's Config, for code that takes an [automutex.Enqueuer].
func (s *Server) Client() *automutex.Client { return s.client }

// Enqueue enqueues a task and returns at once. The options are asynq's. If a rule is InOrder or has StartWithin,
// Enqueue uses [Server.Client], else an asynq.Client.
func (s *Server) Enqueue(tb testing.TB, task *asynq.Task, options ...asynq.Option) *Task {
	tb.Helper()
	var enqueuer automutex.Enqueuer = s.plain
	if s.guard.ordered {
		enqueuer = s.client
	}
	info, err := enqueuer.EnqueueContext(context.Background(), task, options...)
	if err != nil {
		tb.Fatalf("automutextest: Enqueue: %v", err)
	}
	return s.Follow(tb, info)
}

// Follow returns the task that a client has enqueued on [Guard.Redis], such as one of package unique.
func (s *Server) Follow(tb testing.TB, info *asynq.TaskInfo) *Task {
	tb.Helper()
	if s.queues[info.Queue] == 0 {
		tb.Fatalf("automutextest: the server does not serve the queue %q; have Serve do so: func(c *asynq.Config) { "+
			"c.Queues = ... }", info.Queue)
	}
	k := &Task{s, info}
	s.tasks = append(s.tasks, k)
	return k
}

// Drain waits until all tasks of [Server.Enqueue] and [Server.Follow] have ended. It runs those that asynq keeps for
// later at once, as often as needed.
func (s *Server) Drain(tb testing.TB) {
	tb.Helper()
	deadline := time.Now().Add(s.guard.patience)
	for _, k := range s.tasks {
		for now := k.look(); !now.hasEnded; now = k.look() {
			if time.Now().After(deadline) {
				tb.Fatalf("automutextest: not drained within %s: %s", s.guard.patience, k)
			}
			if !now.goesOn {
				_ = s.inspector.RunTask(k.info.Queue, k.info.ID)
			}
			<-time.After(poll)
		}
	}
}

// Outcome is what has happened to a task; see the constants.
type Outcome string

// The outcomes that [Task.Becomes] knows.
const (
	// Done: the task's handler ran and returned nil, or AfterFailure did.
	Done Outcome = "done"
	// Skipped: the policy (Skip, or AfterFailure whose function returned nil) ended the task as done, unrun.
	Skipped Outcome = "skipped"
	// Replaced: the policy Replace ended the task, since a newer one came.
	Replaced Outcome = "replaced"
	// Dropped: asynq has the task no more, and it is none of these: an error wrapped asynq.RevokeTask, or it was deleted.
	Dropped Outcome = "dropped"
	// Archived: asynq has archived the task: policy Archive, no key, or no attempts left.
	Archived Outcome = "archived"
	// HandedBack: asynq keeps the task for later, its attempt not spent: policies Retry and RetryIn, Park without a free
	// worker, a pause, a gate.
	HandedBack Outcome = "handed back"
	// Failed: asynq keeps the task for later, its attempt spent: the handler returned an error, or the policy is Fail.
	Failed Outcome = "failed"
	// Waiting: the task stands in line, in a worker.
	Waiting Outcome = "waiting"
)

// Task is a task on a [Server].
type Task struct {
	server *Server
	info   *asynq.TaskInfo
}

// Becomes waits until the task has the outcome want. It fails the test once nothing leads there.
func (k *Task) Becomes(tb testing.TB, want Outcome) {
	tb.Helper()
	deadline, still := time.Now().Add(k.server.guard.patience), 0
	for now := k.look(); now.outcome != want; now = k.look() {
		if still++; !k.stays(now, want) {
			still = 0
		}
		if !now.goesOn || still > 500 || time.Now().After(deadline) { // 500: 1 s
			tb.Fatalf("automutextest: the task is to become %s, but %s", want, k)
		}
		<-time.After(poll)
	}
}

// stays reports whether the task waits and never becomes want: all rules park, and nothing is to begin.
func (k *Task) stays(now state, want Outcome) bool {
	if now.outcome != Waiting || want != HandedBack && want != Skipped ||
		slices.ContainsFunc(k.server.guard.cfg.Rules, func(r automutex.Rule) bool { return r.Busy != automutex.Park }) {
		return false
	}
	info, err := k.server.inspector.GetQueueInfo(k.info.Queue)
	return err == nil && info.Pending == 0
}

// Again has asynq run a task now that was handed back, has failed or is scheduled. For others Again fails the test.
func (k *Task) Again(tb testing.TB) {
	tb.Helper()
	if err := k.server.inspector.RunTask(k.info.Queue, k.info.ID); err != nil {
		tb.Fatalf("automutextest: asynq does not keep the task for later: %s: %v", k, err)
	}
}

// state is what a task is at a moment.
type state struct {
	outcome  Outcome
	hasEnded bool
	goesOn   bool   // by itself
	reason   string // asynq's last error
	last     delivery
}

func (k *Task) look() (now state) {
	g := k.server.guard
	g.mu.Lock() // no delivery begins between asynq's answer and the look at the last one
	defer g.mu.Unlock()
	info, err := k.server.inspector.GetTaskInfo(k.info.Queue, k.info.ID)
	if errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound) {
		info, err = &asynq.TaskInfo{State: asynq.TaskStateCompleted}, nil
	}
	if err != nil {
		return state{outcome: "unknown", reason: err.Error()}
	}
	last := g.deliveries[k.info.Queue+"/"+k.info.ID]
	now = state{outcome: Outcome(info.State.String()), reason: info.LastErr, last: last}
	now.hasEnded = info.State == asynq.TaskStateArchived || info.State == asynq.TaskStateCompleted
	switch info.State {
	case asynq.TaskStateCompleted:
		now.outcome = cmp.Or(last.ended, Dropped)
	case asynq.TaskStateRetry:
		now.outcome, now.goesOn = HandedBack, last.isParked
		if info.Retried > last.spent {
			now.outcome = Failed
		}
	case asynq.TaskStateScheduled: // a Client may have parked it
		its, _ := stamp.Of(info.Headers, tasknote.Of(info.Queue, info.ID))
		now.goesOn = its.Key != ""
	case asynq.TaskStateActive, asynq.TaskStatePending, asynq.TaskStateAggregating:
		now.goesOn = true
		if last.waits > 0 {
			now.outcome = Waiting
		}
	}
	return now
}

// String says what is known of the task, for a failure.
func (k *Task) String() string {
	now, g := k.look(), k.server.guard
	task := asynq.NewTaskWithHeaders(k.info.Type, k.info.Payload, k.info.Headers)
	keys, _ := g.Keys(context.Background(), task) // else runAs says why
	text := fmt.Sprintf("task %s/%s (%s) is %s: %s\n  its keys: %q", k.info.Queue, k.info.ID, k.info.Type, now.outcome,
		now.reason, keys)
	if err := g.runAs("a look", task, func(context.Context) error { return nil }); err != nil &&
		!strings.Contains(text, err.Error()) {
		text += "\n  now: " + err.Error()
	}
	if now.outcome == Waiting {
		text += "\n  under Park it is so while a worker is free, and needs no Again"
	}
	if len(keys) > 0 && now.last.begun && !now.last.guarded {
		text += "\n  the guard saw nothing of it: is guard.Middleware around the handler?"
	}
	return text
}

// delivery is what happened to a task since a worker last got it.
type delivery struct {
	begun, guarded bool // the handler of Serve has it; the Guard had an event
	isParked       bool
	spent          int     // attempts before
	waits          int     // begun and not ended
	ended          Outcome // Done, Skipped or Replaced, if it ended so
}

// watching wraps the handler of a server, and takes in each delivery and its end.
func (g *Guard) watching(handler asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		queue, _ := asynq.GetQueueName(ctx)
		id, _ := asynq.GetTaskID(ctx)
		spent, _ := asynq.GetRetryCount(ctx)
		g.update(queue, id, func(d *delivery) { *d = delivery{begun: true, spent: spent} })
		err := handler.ProcessTask(ctx, task)
		if err == nil {
			g.update(queue, id, func(d *delivery) { d.ended = cmp.Or(d.ended, Done) })
		}
		return err
	})
}

func (g *Guard) observe(_ context.Context, e automutex.Event) {
	g.update(e.Queue, e.TaskID, func(d *delivery) {
		d.guarded = true
		if e.Inner && e.Kind != automutex.EventParked { // asynq wakes the outer task for one that parks
			return
		}
		switch e.Kind {
		case automutex.EventWaiting:
			d.waits++
		case automutex.EventWaited:
			d.waits--
		case automutex.EventSkipped:
			d.ended = Skipped
		case automutex.EventReplaced:
			d.ended = Replaced
		case automutex.EventParked:
			d.isParked = true
		}
	})
}

func (g *Guard) update(queue, id string, change func(*delivery)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.deliveries[queue+"/"+id]
	change(&d)
	g.deliveries[queue+"/"+id] = d
}

// Runs is a handler that records which of its runs overlapped; see [Watch]. Safe for concurrent use.
type Runs struct {
	guard   *Guard
	handler asynq.Handler
	by      func(*asynq.Task) string

	mu    sync.Mutex          // guards what follows; not held while the handler runs
	now   map[string][]string // by group: the runs under way
	crowd map[string][]string // by group: the most there were at once
}

// Watch wraps a handler so that [Runs.AtMostAtOnce] can check which runs overlapped. Put the result inside of
// guard.Middleware. by names what tasks share that must not overlap, such as the account that they change. by should
// read the payload and not use the rules, so that the check finds a rule that forgets a field. Watch delays each run by
// 25 ms, so that it finds an overlap however short the handler is.
func Watch(_ testing.TB, g *Guard, handler asynq.Handler, by func(*asynq.Task) string) *Runs {
	return &Runs{guard: g, handler: handler, by: by, now: map[string][]string{}, crowd: map[string][]string{}}
}

// ProcessTask runs the handler.
func (r *Runs) ProcessTask(ctx context.Context, task *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	keys, _ := r.guard.Keys(ctx, task)
	run := fmt.Sprintf("task %s: %s %.200q: %q", id, task.Type(), task.Payload(), keys)
	if _, isGuarded := automutex.Lease(ctx); !isGuarded {
		run += ", but it ran without a lock: is guard.Middleware around the handler, and the policy not allow?"
	}
	group := r.by(task)
	r.mu.Lock()
	r.now[group] = append(r.now[group], run)
	if len(r.now[group]) > len(r.crowd[group]) {
		r.crowd[group] = slices.Clone(r.now[group])
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		at := slices.Index(r.now[group], run)
		r.now[group] = slices.Delete(r.now[group], at, at+1)
	}()
	<-time.After(25 * time.Millisecond) // several times what a server takes to start a task
	return r.handler.ProcessTask(ctx, task)
}

// AtMostAtOnce checks, after the tasks have run, that never more than n runs of one group overlapped. It fails the test
// if there was no run, since that proves nothing.
func (r *Runs) AtMostAtOnce(tb testing.TB, n int) {
	tb.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.crowd) == 0 {
		tb.Errorf("automutextest: the handler never ran, so nothing was tested")
	}
	for group, crowd := range r.crowd {
		if len(crowd) > n {
			tb.Errorf("automutextest: %d runs of %q at once, want at most %d:\n  %s", len(crowd), group, n,
				strings.Join(crowd, "\n  "))
		}
	}
}

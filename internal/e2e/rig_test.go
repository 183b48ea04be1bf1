package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/unique"
)

const patience = redistest.Patience

// onID is the payload's field whose value is the key of most rules here.
var onID = []string{"id"}

// soon is the TTL or MaxHold of a lease that has to end during a test, but not
// before a busy machine has come to the handler.
const soon = 2 * time.Second

// rig is an asynq server with a guard, with a queue and a prefix of its own, so that tests share a Redis and nothing
// else.
type rig struct {
	t         *testing.T
	queue     string
	rdb       redis.UniversalClient // asynq's
	guard     *automutex.Guard
	cfg       automutex.Config // the guard's, as New got it
	locks     lock.Client      // where the guard's locks are
	server    *asynq.Server
	served    asynq.Config // the server's
	client    *asynq.Client
	inspector *asynq.Inspector
	stage     *stage // what runs where setup.handler is nil
	log       *redistest.Log
	seen      *events
	others    *lock.Locker // takes keys from outside asynq

	stopping, down sync.Once
}

// setup is what differs between rigs; the zero value is ready to use.
type setup struct {
	rules   []automutex.Rule // of tasks of type "work", where a rule has no Task
	handler asynq.HandlerFunc
	workers int                     // 0: 10
	queue   string                  // "": a new one
	prefix  string                  // "": a new one
	locks   lock.Client             // where the guard's locks are; nil: where asynq is
	guarded func(*automutex.Config) // further settings of the guard
	served  func(*asynq.Config)     // further settings of the server, before ServerConfig
	after   func(*asynq.Config)     // and after it
	plain   bool                    // without ServerConfig
	hook    redis.Hook              // on asynq's client, which is the guard's where locks is nil
	// wrap is how guard and handler become the server's; nil: guard.Middleware
	wrap func(g *automutex.Guard, h asynq.Handler) asynq.Handler
}

var each = redistest.EachInParallel

// eachRig is each for a test that needs one rig alone.
func eachRig(t *testing.T, o setup, f func(t *testing.T, r *rig)) {
	t.Helper()
	each(t, func(t *testing.T, s *redistest.Server) { f(t, start(t, s, o)) })
}

func eventually(t *testing.T, is func() bool, what string, args ...any) {
	t.Helper()
	redistest.Eventually(t, patience, is, what, args...)
}

// says holds a text against the words that have to be in it.
func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q does not say %q", text, word)
		}
	}
}

// ofWork has rules without a Task be of tasks of type "work".
func ofWork(rules []automutex.Rule) []automutex.Rule {
	rules = slices.Clone(rules)
	for i := range rules {
		rules[i].Task = cmp.Or(rules[i].Task, "work")
	}
	return rules
}

// start makes a rig on s that is stopped when the test ends.
func start(t *testing.T, s *redistest.Server, o setup) *rig {
	t.Helper()
	o.rules = ofWork(o.rules)
	r := &rig{t: t, queue: o.queue, rdb: s.Client(t), stage: newStage(), log: &redistest.Log{}, seen: &events{}}
	if o.hook != nil {
		r.rdb.AddHook(o.hook)
	}
	if r.queue == "" {
		r.queue = redistest.Name(t)
	}
	if o.locks == nil {
		o.locks = r.rdb
	}
	if o.prefix == "" {
		o.prefix = redistest.Name(t)
	}
	cfg := automutex.Config{Rules: o.rules, Prefix: o.prefix, Owner: "this-worker", Logger: r.log.Logger(),
		Observe: r.seen.observe, Private: true}
	if o.guarded != nil {
		o.guarded(&cfg)
	}
	var err error
	r.cfg, r.locks = cfg, o.locks
	r.guard, err = automutex.New(o.locks, cfg)
	redistest.Must(t, err)
	r.others = lock.New(s.Client(t), lock.Options{Prefix: cfg.Prefix, Owner: "somebody-else", Logger: r.log.Logger()})
	r.client = asynq.NewClientFromRedisClient(r.rdb)
	r.inspector = asynq.NewInspectorFromRedisClient(r.rdb)

	if o.workers == 0 {
		o.workers = 10
	}
	served := asynq.Config{
		Concurrency:       o.workers,
		Queues:            map[string]int{r.queue: 1},
		TaskCheckInterval: redistest.CheckEvery,
		ShutdownTimeout:   patience,
		Logger:            redistest.Silent{},
		// A task that waits for its retry comes back when the test says so, see
		// rerun; asynq keeps whole seconds, so that it might come at once else.
		DelayedTaskCheckInterval: time.Hour,
		BaseContext: func() context.Context {
			ctx, cancel := context.WithCancel(context.Background())
			return context.WithValue(ctx, cutKey{}, cancel)
		},
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	}
	if o.served != nil {
		o.served(&served)
	}
	if !o.plain {
		served = r.guard.ServerConfig(served)
	}
	if o.after != nil {
		o.after(&served)
	}
	var handler asynq.Handler = r.stage
	if o.handler != nil {
		handler = o.handler
	}
	if o.wrap == nil {
		o.wrap = (*automutex.Guard).Middleware
	}
	r.served = served
	r.server = asynq.NewServerFromRedisClient(r.rdb, served)
	redistest.Must(t, r.server.Start(o.wrap(r.guard, handler)))
	t.Cleanup(r.stop)
	return r
}

func newGuard(
	t *testing.T, s *redistest.Server, log *redistest.Log, seen *events, rules ...automutex.Rule,
) *automutex.Guard {
	t.Helper()
	guard, err := automutex.New(s.Client(t), automutex.Config{Rules: rules, Prefix: redistest.Name(t),
		Logger: log.Logger(), Observe: seen.observe})
	redistest.Must(t, err)
	t.Cleanup(func() { redistest.Must(t, guard.Close(context.Background())) })
	return guard
}

// cutKey finds what ends the context of one attempt, see run.cut.
type cutKey struct{}

// comingBack has tasks come back from their retries by themselves.
func comingBack(c *asynq.Config) { c.DelayedTaskCheckInterval = 100 * time.Millisecond }

// telling has the server's ErrorHandler send what it is told.
func telling() (told chan error, served func(*asynq.Config)) {
	told = make(chan error, 10)
	return told, func(c *asynq.Config) {
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { told <- err })
	}
}

func atOnce(c *asynq.Config) {
	comingBack(c)
	c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
}

// shutdown returns when the server is down: asynq's own second Shutdown returns at once, and the client would be closed
// under the first.
func (r *rig) shutdown() { r.down.Do(r.server.Shutdown) }

// stop ends what start began, as a program would: Close beside Shutdown.
func (r *rig) stop() {
	r.stopping.Do(func() {
		r.stage.end()
		closed := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			closed <- r.guard.Close(ctx)
		}()
		r.shutdown()
		if err := <-closed; err != nil {
			r.t.Errorf("Close: %v", err)
		}
		if err := r.others.Close(); err != nil {
			r.t.Error(err)
		}
		if r.t.Failed() {
			for _, e := range r.seen.list() {
				r.t.Logf("event %q of %s (%s): waited %s, held %s, delay %s, %v %v", e.Kind, e.TaskID, e.Rule, e.Waited, e.Held,
					e.Delay, e.Busy, e.Err)
			}
			r.t.Logf("log: %s", r.log.Text(slog.LevelDebug))
		}
	})
}

// options are those of a task. With Retention one that is done can be told from one that is lost.
func (r *rig) options(more []asynq.Option) []asynq.Option {
	return append([]asynq.Option{asynq.Queue(r.queue), asynq.Retention(time.Hour), asynq.MaxRetry(5),
		asynq.Timeout(10 * time.Minute)}, more...)
}

// enqueue gives the ID of a new task. A payload that is no string is marshalled.
func (r *rig) enqueue(taskType string, payload any, options ...asynq.Option) string {
	r.t.Helper()
	text, ok := payload.(string)
	if !ok && payload != nil {
		b, err := json.Marshal(payload)
		redistest.Must(r.t, err)
		text = string(b)
	}
	info, err := r.client.Enqueue(asynq.NewTask(taskType, []byte(text)), r.options(options)...)
	redistest.Must(r.t, err)
	return info.ID
}

// enqueueOne is enqueue of a task of type "work" with the id 1.
func (r *rig) enqueueOne(options ...asynq.Option) string {
	r.t.Helper()
	return r.enqueue("work", one, options...)
}

func (r *rig) once(rule unique.Rule) *unique.Client {
	r.t.Helper()
	rule.Queue = r.queue
	c, err := unique.New(r.client, r.inspector, r.rdb, unique.Config{Prefix: r.cfg.Prefix, Rules: []unique.Rule{rule}})
	redistest.Must(r.t, err)
	return c
}

// await waits until the task is in that state.
func (r *rig) await(id string, state asynq.TaskState) *asynq.TaskInfo {
	r.t.Helper()
	var info *asynq.TaskInfo
	deadline := time.Now().Add(patience)
	for {
		var err error
		info, err = r.inspector.GetTaskInfo(r.queue, id)
		switch {
		case err == nil && info.State == state:
			return info
		case time.Now().Before(deadline):
			<-time.After(2 * time.Millisecond)
		default:
			r.t.Fatalf("the task %s is not %s: %+v, %v", id, state, info, err)
		}
	}
}

func (r *rig) awaitDone(id string) *asynq.TaskInfo {
	r.t.Helper()
	return r.await(id, asynq.TaskStateCompleted)
}

func (r *rig) awaitArchived(id string) *asynq.TaskInfo {
	r.t.Helper()
	return r.await(id, asynq.TaskStateArchived)
}

// awaitRetried waits until asynq has filed the task for another attempt, and checks how many were spent.
func (r *rig) awaitRetried(id string, spent int) *asynq.TaskInfo {
	r.t.Helper()
	return r.awaitSpent(id, asynq.TaskStateRetry, spent)
}

func (r *rig) awaitSpent(id string, state asynq.TaskState, spent int) *asynq.TaskInfo {
	r.t.Helper()
	info := r.await(id, state)
	if info.Retried != spent {
		r.t.Fatalf("%d attempts of %s are spent, want %d; last error %q", info.Retried, id, spent, info.LastErr)
	}
	return info
}

// ends has a run return nil, and waits until its task is done.
func (r *rig) ends(run *run) {
	r.t.Helper()
	run.returns(nil)
	r.awaitDone(run.id)
}

func (r *rig) wantRuns(want int) {
	r.t.Helper()
	if n := r.stage.count(); n != want {
		r.t.Errorf("%d runs, want %d", n, want)
	}
}

func (r *rig) awaitDropped(id string) {
	r.t.Helper()
	eventually(r.t, func() bool {
		_, err := r.inspector.GetTaskInfo(r.queue, id)
		return errors.Is(err, asynq.ErrTaskNotFound)
	}, "asynq has dropped the task %s", id)
}

func (r *rig) wantAtOnce(taskType string, want int) {
	r.t.Helper()
	if most := r.stage.mostAtOnce(taskType); most != want {
		r.t.Errorf("%s: %d at once, want %d", taskType, most, want)
	}
}

// nudge has asynq run the task now if it waits for its retry.
func (r *rig) nudge(id string) {
	if info, err := r.inspector.GetTaskInfo(r.queue, id); err == nil && info.State == asynq.TaskStateRetry {
		_ = r.inspector.RunTask(r.queue, id)
	}
}

func (r *rig) rerun(id string) {
	r.t.Helper()
	eventually(r.t, func() bool { // the event of its return may come before asynq has stored it
		return r.inspector.RunTask(r.queue, id) == nil
	}, "%s cannot be run", id)
}

// lockOf is the lock of a scope, seen from outside asynq.
func (r *rig) lockOf(scope string, parts ...string) *lock.Lock {
	return r.others.Mutex(scope, lock.Parts(parts...))
}

func (r *rig) take(scope string, parts ...string) *lock.Lease {
	r.t.Helper()
	lease, err := r.lockOf(scope, parts...).TryLock(context.Background())
	redistest.Must(r.t, err)
	r.t.Cleanup(func() { _ = lease.Unlock(context.Background()) })
	return lease
}

func (r *rig) free(lease *lock.Lease) {
	r.t.Helper()
	redistest.Must(r.t, lease.Unlock(context.Background()))
}

func (r *rig) locked(scope string, parts ...string) bool {
	r.t.Helper()
	is, err := r.lockOf(scope, parts...).Locked(context.Background())
	redistest.Must(r.t, err)
	return is
}

func (r *rig) wantLocked(want bool, scope string, parts ...string) {
	r.t.Helper()
	if r.locked(scope, parts...) != want {
		r.t.Errorf("%s %v is locked: %t", scope, parts, !want)
	}
}

// awaitLine waits until n waiters stand in line for the key.
func (r *rig) awaitLine(n int, scope string, parts ...string) {
	r.t.Helper()
	m := r.lockOf(scope, parts...)
	eventually(r.t, func() bool {
		waiting, err := m.Waiting(context.Background())
		return err == nil && waiting == n
	}, "%d wait for %s", n, m.Key())
}

type events struct {
	mu   sync.Mutex
	seen []automutex.Event
}

func (e *events) observe(_ context.Context, event automutex.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = append(e.seen, event)
}

// list gives the events of these kinds so far, of all kinds when there is none.
func (e *events) list(kinds ...automutex.EventKind) []automutex.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var found []automutex.Event
	for _, event := range e.seen {
		if len(kinds) == 0 || slices.Contains(kinds, event.Kind) {
			found = append(found, event)
		}
	}
	return found
}

func (e *events) kindsOf(id string) (kinds []automutex.EventKind) {
	for _, event := range e.list() {
		if event.TaskID == id {
			kinds = append(kinds, event.Kind)
		}
	}
	return kinds
}

func (r *rig) wantKinds(id string, want ...automutex.EventKind) {
	r.t.Helper()
	if kinds := r.seen.kindsOf(id); !slices.Equal(kinds, want) {
		r.t.Errorf("events of %s: %v, want %v", id, kinds, want)
	}
}

func (r *rig) noEvents(kinds ...automutex.EventKind) {
	r.t.Helper()
	if events := r.seen.list(kinds...); len(events) > 0 {
		r.t.Errorf("events %v", events)
	}
}

func (r *rig) awaitEvent(kind automutex.EventKind, id string) (found automutex.Event) {
	r.t.Helper()
	eventually(r.t, func() bool {
		for _, event := range r.seen.list(kind) {
			if event.TaskID == id {
				found = event
				return true
			}
		}
		return false
	}, "event %q of task %s", kind, id)
	return found
}

func engineOf(m *lock.Lock) *engine.Engine { return inside.At(m).Engine }
func refOf(m *lock.Lock) engine.Ref        { return inside.At(m).Request.Ref }

// What package automutex does, and does not export.
const (
	margin         = time.Second     // how long before its deadline a task ends its wait
	minPauseSpread = 5 * time.Second // how far apart the tasks of a paused key come back, at least
)

// hold holds a key, which has to be free, under a Guard of its own, as a task would, until the lease is released or the
// test ends.
func (r *rig) hold(scope string, parts ...string) *lock.Lease {
	r.t.Helper()
	cfg := r.cfg
	key := func(context.Context, *asynq.Task) ([]string, error) { return parts, nil }
	cfg.Rules = []automutex.Rule{{Task: scope, Busy: automutex.Park, Key: key}}
	cfg.Observe, cfg.Logger = nil, slog.New(slog.DiscardHandler)
	guard, err := automutex.New(r.locks, cfg)
	redistest.Must(r.t, err)
	taken, ended, end := make(chan *lock.Lease), make(chan error, 1), make(chan struct{})
	handler := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		lease, _ := automutex.Lease(ctx)
		taken <- lease
		select {
		case <-ctx.Done(): // the lease was released, or lost
		case <-end:
		}
		return nil
	}))
	r.t.Cleanup(func() {
		close(end)
		redistest.Must(r.t, guard.Close(context.Background()))
	})
	// ends with the lease, or with the test
	go func() { ended <- handler.ProcessTask(context.Background(), asynq.NewTask(scope, nil)) }()
	select {
	case lease := <-taken:
		return lease
	case err := <-ended:
		r.t.Fatalf("the key %v is not free: %v", parts, err)
		return nil
	}
}

// stage is a handler whose every run waits for the test's say.
type stage struct {
	started chan *run
	over    chan struct{} // closed when the test ends: whatever runs returns nil
	ended   sync.Once

	mu   sync.Mutex
	runs int            // so far
	now  map[string]int // under way, by task type
	most map[string]int // at once, by task type
}

type run struct {
	ctx    context.Context
	task   *asynq.Task
	id     string
	finish chan error // what the handler returns
	left   chan struct{}
}

func newStage() *stage {
	return &stage{
		started: make(chan *run, 1000), over: make(chan struct{}),
		now: map[string]int{}, most: map[string]int{},
	}
}

// ProcessTask ignores the end of its context, as the worst of handlers do.
func (s *stage) ProcessTask(ctx context.Context, t *asynq.Task) error {
	r := &run{ctx: ctx, task: t, finish: make(chan error, 1), left: make(chan struct{})}
	r.id, _ = asynq.GetTaskID(ctx)
	s.enter(t.Type())
	defer s.leave(t.Type())
	defer close(r.left)
	s.started <- r
	select {
	case err := <-r.finish:
		return err
	case <-s.over:
		return nil
	}
}

func (s *stage) enter(taskType string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs++
	s.now[taskType]++
	s.most[taskType] = max(s.most[taskType], s.now[taskType])
}

func (s *stage) leave(taskType string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now[taskType]--
}

func (s *stage) end() { s.ended.Do(func() { close(s.over) }) }

func (s *stage) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs
}

func (s *stage) mostAtOnce(taskType string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most[taskType]
}

func (r *rig) next() *run {
	r.t.Helper()
	select {
	case run := <-r.stage.started:
		return run
	case <-time.After(patience):
		r.t.Fatal("no handler starts")
		return nil
	}
}

// nextIs is next, for a task that has to be this one.
func (r *rig) nextIs(id string) *run {
	r.t.Helper()
	run := r.next()
	if run.id != id {
		r.t.Fatalf("task %s runs, want %s", run.id, id)
	}
	return run
}

// none checks that no handler has started that the test does not know of.
func (r *rig) none() {
	r.t.Helper()
	select {
	case run := <-r.stage.started:
		r.t.Fatalf("the handler of %s (%s) runs", run.id, run.task.Type())
	default:
	}
}

func (r *run) returns(err error) { r.finish <- err }

// cut ends the context of a run, as its deadline would, and waits for that.
// asynq then files the task as failed, though the handler still runs.
func (r *run) cut() {
	r.ctx.Value(cutKey{}).(context.CancelFunc)()
	<-r.ctx.Done()
}

func (r *run) awaitEnd(t *testing.T) error {
	t.Helper()
	select {
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	case <-time.After(patience):
		t.Fatal("the handler's context does not end")
		return nil
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(runEnv) != "" {
		runMain()
		return
	}
	redistest.Main(m)
}

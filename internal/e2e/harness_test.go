package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

const patience = redistest.Patience

// soon is the TTL or MaxHold of a lease that has to end during a test, but not
// before a busy machine has come to the handler.
const soon = 2 * time.Second

// parkedOn begins the last error of a task that is parked on that key.
func parkedOn(key string) string { return "parked on " + key + "," }

// rig is an asynq server with a guard, for one test: a queue and a prefix of
// its own, so that tests share a Redis and nothing else.
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
	rules    []automutex.Rule
	handler  asynq.HandlerFunc
	workers  int                     // 0: 10
	queue    string                  // "": a new one
	prefix   string                  // "": a new one
	locks    lock.Client             // where the guard's locks are; nil: where asynq is
	guarded  func(*automutex.Config) // further settings of the guard
	served   func(*asynq.Config)     // further settings of the server, before ServerConfig
	unmarked bool                    // without ServerConfig
	hook     redis.Hook              // on asynq's client, which is the guard's where locks is nil
	// wrap is how guard and handler become the server's; nil: guard.Middleware
	wrap func(g *automutex.Guard, h asynq.Handler) asynq.Handler
}

// start makes a rig on s that is stopped when the test ends.
func start(t *testing.T, s *redistest.Server, o setup) *rig {
	t.Helper()
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
	cfg := automutex.Config{Rules: o.rules, Prefix: o.prefix, Owner: "this-worker", Logger: r.log.Logger(), Observe: r.seen.observe, Private: true}
	if o.guarded != nil {
		o.guarded(&cfg)
	}
	var err error
	r.cfg, r.locks = cfg, o.locks
	if r.guard, err = automutex.New(o.locks, cfg); err != nil {
		t.Fatal(err)
	}
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
	if !o.unmarked {
		served = r.guard.ServerConfig(served)
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

// newGuard is a guard without a server.
func newGuard(t *testing.T, s *redistest.Server, log *redistest.Log, seen *events, rules ...automutex.Rule) *automutex.Guard {
	t.Helper()
	return newGuardAt(t, s, redistest.Name(t), log, seen, rules...)
}

// newGuardAt is newGuard with that prefix.
func newGuardAt(t *testing.T, s *redistest.Server, prefix string, log *redistest.Log, seen *events, rules ...automutex.Rule) *automutex.Guard {
	t.Helper()
	guard, err := automutex.New(s.Client(t), automutex.Config{Rules: rules, Prefix: prefix, Logger: log.Logger(), Observe: seen.observe})
	redistest.Must(t, err)
	t.Cleanup(func() {
		if err := guard.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return guard
}

// cutKey finds what ends the context of one attempt, see run.cut.
type cutKey struct{}

// comingBack has tasks come back from their retries by themselves. Tests with a short TTL
// need it: on a busy machine a lease may end before its handler begins, and the task returns.
func comingBack(c *asynq.Config) { c.DelayedTaskCheckInterval = 100 * time.Millisecond }

// atOnce has failed tasks come back by themselves, at once.
func atOnce(c *asynq.Config) {
	comingBack(c)
	c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
}

// shutdown shuts the server down, once; all calls return when that is through.
// (asynq's own second Shutdown returns at once, and the client would be closed
// under the first.)
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
				r.t.Logf("event %q of %s (%s): waited %s, held %s, delay %s, %v %v", e.Kind, e.TaskID, e.Rule, e.Waited, e.Held, e.Delay, e.Busy, e.Err)
			}
			r.t.Logf("log: %s", r.log.Text(slog.LevelDebug))
		}
	})
}

// enqueue gives the ID of a new task. A payload that is no string is marshalled.
func (r *rig) enqueue(taskType string, payload any, options ...asynq.Option) string {
	r.t.Helper()
	text, ok := payload.(string)
	if !ok && payload != nil {
		b, err := json.Marshal(payload)
		if err != nil {
			r.t.Fatal(err)
		}
		text = string(b)
	}
	// Retention, so that a task that is done can be told from one that is lost.
	options = append([]asynq.Option{asynq.Queue(r.queue), asynq.Retention(time.Hour), asynq.MaxRetry(5), asynq.Timeout(10 * time.Minute)}, options...)
	info, err := r.client.Enqueue(asynq.NewTask(taskType, []byte(text)), options...)
	if err != nil {
		r.t.Fatal(err)
	}
	return info.ID
}

// await waits until the task is in that state. Errors of the inspector are tried
// again: for a moment after a restart, go-redis may still report the refused dial.
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
		case err != nil:
			r.t.Fatalf("the task %s is to be %s: %v", id, state, err)
		default:
			r.t.Fatalf("the task %s is %s, not %s; tried %d times, last error %q", id, info.State, state, info.Retried, info.LastErr)
		}
	}
}

// awaitRetried waits until asynq has filed the task for another attempt, and
// checks how many were spent.
func (r *rig) awaitRetried(id string, spent int) *asynq.TaskInfo {
	r.t.Helper()
	info := r.await(id, asynq.TaskStateRetry)
	if info.Retried != spent {
		r.t.Fatalf("%d attempts are spent, want %d; last error %q", info.Retried, spent, info.LastErr)
	}
	return info
}

// awaitDropped waits until asynq has the task no more.
func (r *rig) awaitDropped(id string) {
	r.t.Helper()
	redistest.Eventually(r.t, patience, func() bool {
		_, err := r.inspector.GetTaskInfo(r.queue, id)
		return errors.Is(err, asynq.ErrTaskNotFound)
	}, "asynq has dropped the task %s", id)
}

// rerun has asynq run a task that waits for its retry now.
func (r *rig) rerun(id string) {
	r.t.Helper()
	if err := r.inspector.RunTask(r.queue, id); err != nil {
		r.t.Fatal(err)
	}
}

// lockOf is the lock of a scope, seen from outside asynq.
func (r *rig) lockOf(scope string, parts ...string) *lock.Lock {
	return r.others.Mutex(scope, lock.Parts(parts...))
}

// take holds a key from outside asynq.
func (r *rig) take(scope string, parts ...string) *lock.Lease {
	r.t.Helper()
	lease, err := r.lockOf(scope, parts...).TryLock(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = lease.Unlock(context.Background()) })
	return lease
}

// free gives it back.
func (r *rig) free(lease *lock.Lease) {
	r.t.Helper()
	if err := lease.Unlock(context.Background()); err != nil {
		r.t.Fatal(err)
	}
}

// locked tells whether somebody holds the key.
func (r *rig) locked(scope string, parts ...string) bool {
	r.t.Helper()
	is, err := r.lockOf(scope, parts...).Locked(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	return is
}

// awaitLine waits until n waiters stand in line for the key.
func (r *rig) awaitLine(n int, scope string, parts ...string) {
	r.t.Helper()
	m := r.lockOf(scope, parts...)
	redistest.Eventually(r.t, patience, func() bool {
		waiting, err := m.Waiting(context.Background())
		return err == nil && waiting == n
	}, "%d wait for %s", n, m.Key())
}

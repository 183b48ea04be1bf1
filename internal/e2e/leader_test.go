package e2e

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// ticks counts what schedulers enqueued, by name.
type ticks struct {
	mu sync.Mutex // guards n
	n  map[string]int
}

func (k *ticks) of(name string) int { return k.add(name, 0) }

func (k *ticks) add(name string, n int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.n[name] += n
	return k.n[name]
}

// leading counts the terms under way, as a program does for its health check.
type leading struct {
	*asynq.Scheduler
	k    *ticks
	name string
}

func (l leading) Start() error {
	l.k.add(l.name, 1)
	return l.Scheduler.Start()
}

func (l leading) Shutdown() {
	l.Scheduler.Shutdown()
	l.k.add(l.name, -1)
}

// scheduler makes a Scheduler that enqueues each second, and counts that under name.
func (k *ticks) scheduler(rdb redis.UniversalClient, name, queue string) func() (leading, error) {
	return func() (leading, error) {
		s := asynq.NewSchedulerFromRedisClient(rdb, &asynq.SchedulerOpts{
			Logger: redistest.Silent{},
			PostEnqueueFunc: func(_ *asynq.TaskInfo, err error) {
				if err == nil {
					k.add(name, 1)
				}
			},
		})
		_, err := s.Register("@every 1s", asynq.NewTask("tick", nil), asynq.Queue(queue))
		return leading{s, k, name + " leads"}, err
	}
}

// Of two schedulers one enqueues; when its context ends the other one takes over.
func TestLeadScheduler(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		name := redistest.Name(t)
		enqueued := &ticks{n: make(map[string]int)}
		begin := func(replica string) (stop func()) {
			locker := lock.New(rdb, lock.Options{Owner: replica})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- automutex.LeadScheduler(ctx, locker, name, enqueued.scheduler(rdb, replica, name)) }()
			stop = sync.OnceFunc(func() {
				cancel()
				if err := <-done; err != nil {
					t.Errorf("LeadScheduler of %s returned %v, want nil", replica, err)
				}
				if err := locker.Close(); err != nil {
					t.Error(err)
				}
			})
			t.Cleanup(stop)
			return stop
		}
		stopFirst := begin("first")
		redistest.Eventually(t, 20*time.Second, func() bool { return enqueued.of("first") > 0 }, "a tick of the first")
		begin("second")
		watcher := lock.New(rdb, lock.Options{}) // that of a health check, which leads nothing
		defer watcher.Close()
		leader := func() string {
			leader, err := watcher.Leader(t.Context(), name)
			redistest.Must(t, err)
			return leader.Owner
		}
		if who := leader(); who != "first" {
			t.Errorf("%q leads, want the first", who)
		}
		redistest.Eventually(t, 20*time.Second, func() bool { return enqueued.of("first") > 2 }, "more ticks of the first")
		if n := enqueued.of("second") + enqueued.of("second leads"); n > 0 || enqueued.of("first leads") != 1 {
			t.Errorf("not the first alone leads: %d of the second", n)
		}
		stopFirst()
		before := enqueued.of("first")
		redistest.Eventually(t, 20*time.Second, func() bool { return enqueued.of("second") > 0 }, "a tick of the second")
		if who := leader(); who != "second" {
			t.Errorf("%q leads, want the second", who)
		}
		if after := enqueued.of("first"); after != before || enqueued.of("first leads") != 0 {
			t.Errorf("the first enqueued %d ticks after its end, or leads", after-before)
		}
	})
}

// periodic is the tasks of a PeriodicTaskManager.
type periodic []*asynq.PeriodicTaskConfig

func (p periodic) GetConfigs() ([]*asynq.PeriodicTaskConfig, error) { return p, nil }

// A PeriodicTaskManager of asynq leads as a Scheduler does.
func TestLeadScheduler_periodicTaskManager(t *testing.T) {
	t.Parallel()
	rdb, queue := redistest.Mini(t).Client(t), redistest.Name(t)
	locker := lock.New(rdb, lock.Options{})
	t.Cleanup(func() { _ = locker.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := automutex.LeadScheduler(ctx, locker, queue, func() (*asynq.PeriodicTaskManager, error) {
		return asynq.NewPeriodicTaskManager(asynq.PeriodicTaskManagerOpts{
			RedisUniversalClient: rdb,
			PeriodicTaskConfigProvider: periodic{{Cronspec: "@every 1s", Task: asynq.NewTask("tick", nil),
				Opts: []asynq.Option{asynq.Queue(queue)}}},
			SchedulerOpts: &asynq.SchedulerOpts{Logger: redistest.Silent{},
				PostEnqueueFunc: func(*asynq.TaskInfo, error) { cancel() }},
		})
	})
	if err != nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Errorf("LeadScheduler returned %v, want nil after a tick; %v", err, ctx.Err())
	}
}

func TestLeadScheduler_errors(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	locker := lock.New(rdb, lock.Options{})
	t.Cleanup(func() { _ = locker.Close() })
	failure := errors.New("no such time zone")
	started := asynq.NewSchedulerFromRedisClient(rdb, &asynq.SchedulerOpts{Logger: redistest.Silent{}})
	redistest.Must(t, started.Start())
	t.Cleanup(started.Shutdown)
	for what, newScheduler := range map[string]func() (*asynq.Scheduler, error){
		"an error":                   func() (*asynq.Scheduler, error) { return nil, failure },
		"nothing":                    func() (*asynq.Scheduler, error) { return nil, nil },
		"one that has started":       func() (*asynq.Scheduler, error) { return started, nil },
		"no function for Schedulers": nil,
	} {
		err := automutex.LeadScheduler(t.Context(), locker, redistest.Name(t), newScheduler)
		if err == nil || what == "an error" && !errors.Is(err, failure) {
			t.Errorf("%s: LeadScheduler returned %v", what, err)
		}
	}
	if err := automutex.LeadScheduler(t.Context(), nil, "x", (&ticks{}).scheduler(rdb, "", "")); err == nil {
		t.Error("no locker: LeadScheduler returned nil")
	}
}

package automutextest

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
)

const (
	// patience is how long anything is waited for, besides the rules' own Wait.
	patience = 10 * time.Second
	// grace is how long handlers may take to return at the end of a test.
	grace = 5 * time.Second
)

// Guard is an automutex.Guard on a Redis in memory. Make one with [New]. Pass its field Guard
// where an *automutex.Guard is wanted.
type Guard struct {
	*automutex.Guard

	cfg      automutex.Config // as given
	rdb      *redis.Client
	patience time.Duration
	grace    time.Duration

	mu          sync.Mutex // guards the fields below and what is in seen; held for moments
	seen        map[string]*sightings
	servers     []served
	lastEnqueue time.Time // when the test last gave a task to asynq
	onlookers   int       // calls of Drain and Becomes under way
}

// sightings are what the Guard's events said of one task since it was last
// enqueued or run again.
type sightings struct {
	waiting int // waits begun and not ended
	skipped bool
	parked  bool
	last    error // who was in the way, or what went wrong
}

// New makes a Guard on a Redis in memory, for this test alone; both end with the test.
// Defaults are those of automutex.New, except that an empty Owner is the test's name and a
// nil Logger the test's log. MinReplicas has no effect, since a Redis in memory has no
// replicas. A cfg that automutex.New refuses fails the test.
func New(tb testing.TB, cfg automutex.Config) *Guard {
	tb.Helper()
	redisServer, err := miniredis.Run()
	if err != nil {
		tb.Fatalf("automutextest: the Redis in memory does not start: %v", err)
	}
	tb.Cleanup(redisServer.Close)
	redisServer.ClockTTL(true) // the deadline of a lease may be its key's expiry
	g := &Guard{
		rdb:      redis.NewClient(&redis.Options{Addr: redisServer.Addr()}),
		patience: patience,
		grace:    grace,
		seen:     map[string]*sightings{},
	}
	tb.Cleanup(func() { _ = g.rdb.Close() }) // the test may have closed it itself
	if cfg.Owner == "" {
		cfg.Owner = tb.Name()
	}
	cfg.MinReplicas = min(cfg.MinReplicas, 0)
	cfg.Private = true // nobody looks
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(logOf(tb), nil))
	}
	g.cfg = cfg
	g.cfg.Rules = slices.Clone(cfg.Rules)
	for _, rule := range cfg.Rules {
		g.patience = max(g.patience, patience+rule.Wait)
	}
	cfg.Observe = g.observe
	if g.Guard, err = automutex.New(g.rdb, cfg); err != nil {
		tb.Fatalf("automutextest: New: %v", err)
	}
	tb.Cleanup(func() { g.end(tb) })
	return g
}

// Redis returns the client of the Redis in memory. It is closed when the test ends.
func (g *Guard) Redis() *redis.Client { return g.rdb }

// end closes the Guard. A second call does no harm.
func (g *Guard) end(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), g.grace)
	defer cancel()
	if err := g.Close(ctx); err != nil {
		tb.Errorf("automutextest: a handler still runs %s after the end of the test: %v", g.grace, err)
	}
}

// observe notes what an event says of a task, and tells the test's own observer.
func (g *Guard) observe(ctx context.Context, e automutex.Event) {
	g.mu.Lock()
	s := g.of(e.Queue, e.TaskID)
	switch e.Kind {
	case automutex.EventWaiting:
		s.waiting++
	case automutex.EventWaited:
		s.waiting--
	case automutex.EventSkipped:
		s.skipped = true
	case automutex.EventParked:
		s.parked = true
	case automutex.EventBusy:
		s.last = e.Busy
	case automutex.EventKeyError, automutex.EventBackendError, automutex.EventLost, automutex.EventBlocked:
		s.last = e.Err
	}
	g.mu.Unlock()
	if g.cfg.Observe != nil {
		g.cfg.Observe(ctx, e)
	}
}

// of are the sightings of a task. Callers hold mu.
func (g *Guard) of(queue, id string) *sightings {
	key := queue + "/" + id
	if g.seen[key] == nil {
		g.seen[key] = &sightings{}
	}
	return g.seen[key]
}

// sighted copies them; nil when there is none.
func (g *Guard) sighted(queue, id string) *sightings {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.seen[queue+"/"+id]
	if s == nil {
		return nil
	}
	copied := *s
	return &copied
}

// forget has a task begin anew.
func (g *Guard) forget(queue, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.seen, queue+"/"+id)
}

// check fails the test where there is no Guard.
func (g *Guard) check(tb testing.TB, what string) {
	tb.Helper()
	if g == nil || g.Guard == nil {
		tb.Fatalf("automutextest: %s: there is no guard: make one with automutextest.New", what)
	}
}

// explain gives the locks of a task. No task, one that no key can be made from and
// one without a rule fail the test: the last runs unguarded.
func (g *Guard) explain(tb testing.TB, what string, task *asynq.Task) []automutex.Explanation {
	tb.Helper()
	g.check(tb, what)
	if task == nil {
		tb.Fatalf("automutextest: %s: the task is nil", what)
	}
	locks, err := g.Explain(context.Background(), task)
	if err != nil {
		tb.Fatalf("automutextest: %s: %v", what, err)
	}
	if len(locks) == 0 {
		tb.Fatalf("automutextest: %s: no rule is for a task of type %q: it runs unguarded", what, task.Type())
	}
	return locks
}

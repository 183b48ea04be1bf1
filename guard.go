package automutex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/redisx"
	"github.com/automutex/automutex/internal/tasktype"
	"github.com/automutex/automutex/lock"
)

// Guard applies rules to the tasks of one or more asynq servers. Make one with [New], make each server with
// [Guard.ServerConfig], and run it with [Guard.Run]. Safe for concurrent use.
type Guard struct {
	cfg      Config // defaults filled in
	rules    *ruleSet
	engine   *engine.Engine
	controls *lock.Controls
	log      *slog.Logger
	rdb      lock.Client
	client   io.Closer // the client that NewFromConnOpt made, else nil

	tasks          *blocked.Tasks // for Park; without an Inspector if no rule has that policy
	inspectorAsked atomic.Bool    // checkInspector got an answer, or waits for one

	outage  redisx.Outage
	warned  sync.Map // by the topic that warnOnce has logged
	served  tasktype.Served
	history *history.Writer // of the keys; nil: none is kept

	life           *life.Life    // its Closing ends all waits; it counts tasks
	middlewareUsed atomic.Bool   // Middleware was called
	announced      chan struct{} // closed when announce, which Middleware starts, has ended
}

// New makes a Guard on rdb, a client of asynq's Redis or of the one for locks. New does no I/O. The error joins all
// mistakes in rdb and cfg; each one in cfg is a [*FieldError].
func New(rdb lock.Client, cfg Config) (*Guard, error) {
	unfit, few := engine.CheckClient(rdb), error(nil)
	rules, wrong := compile(cfg)
	tasks, blind := parkTasks(rdb, cfg)
	if unfit != nil {
		unfit, blind = fmt.Errorf("automutex: %w", unfit), nil
	} else if few = engine.CheckReplicas(rdb, cfg.MinReplicas); few != nil {
		few = configError("MinReplicas", "%w", few)
	}
	if err := errors.Join(unfit, few, wrong, blind); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	g := &Guard{cfg: cfg, rules: rules, rdb: rdb, log: cfg.Logger, life: life.New(), announced: make(chan struct{}),
		tasks: tasks}
	options := engine.Options{
		Client: rdb, Prefix: cfg.Prefix, HashKeys: cfg.HashKeys, Owner: cfg.Owner, Log: cfg.Logger, Replicas: cfg.MinReplicas,
		Obeys: true, HasScope: rules.isScope,
	}
	g.cfg.HashKeys = "" // printing a Guard prints its Config, and the secret must not show
	if tasks.Inspector != nil {
		options.Call = g.wakeParked
	}
	g.engine, g.controls = engine.New(options), &lock.Controls{}
	*inside.At(g.controls) = g.engine.Controls()
	if cfg.History > 0 {
		g.history = history.New(rdb, cfg.Prefix, cfg.Owner, cfg.History, cfg.Logger)
	}
	rules.warn(g.log)
	return g, nil
}

// NewFromConnOpt is [New] with a client made from opt, which asynq.NewServer gets.
func NewFromConnOpt(opt asynq.RedisConnOpt, cfg Config) (*Guard, error) {
	if opt == nil {
		return nil, errors.New("automutex: the RedisConnOpt is nil: pass the one that asynq.NewServer gets")
	}
	made := opt.MakeRedisClient()
	rdb, ok := made.(redis.UniversalClient)
	if !ok {
		return nil, fmt.Errorf("automutex: %T makes a %T, which is no redis.UniversalClient", opt, made)
	}
	g, err := New(rdb, cfg)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	g.client = rdb
	return g, nil
}

// Keys returns the Redis keys of the locks that a task needs, in the order in which the task takes them; none if no
// rule matches, or for [NoLock]. The error wraps a [*KeyError], or the error of a function in the Config that makes
// keys. Keys does no I/O, unless one of these functions does.
func (g *Guard) Keys(ctx context.Context, t *asynq.Task) ([]string, error) {
	return (&KeyMaker{rules: g.rules, prefix: g.cfg.Prefix}).Keys(ctx, t)
}

// Controls returns the orders of operators for the keys of this Guard's Prefix: a pause, another limit or rate, for a
// scope or one key. Every Guard and Locker with the prefix obeys them within 2 seconds.
//
// A task whose key is paused returns to asynq, its attempt not spent, whatever the policy, until the pause ends, or for
// 30 to 90 seconds. Under [Park] it keeps its place in line, and is woken when the pause ends. A task on its last
// attempt waits in its worker.
func (g *Guard) Controls() *lock.Controls { return g.controls }

// Close ends the Guard. Tasks in line, and from now on every other task that has a rule, return to asynq unrun. Close
// waits until the running handlers have returned, and renews their leases meanwhile. If ctx ends before, Close returns
// an error that wraps the cause of ctx, and the leases last until their deadlines, or until the handlers return. A
// further Close also waits.
//
// Call Close before the server's Shutdown, or at the same time, and give ctx the server's ShutdownTimeout: Shutdown
// waits for tasks in line up to that time. A task on its last attempt cannot return, since asynq would archive it: it
// blocks its worker, and asynq requeues it at the end.
//
// Close closes only a Redis client that [NewFromConnOpt] made, and none after an error: call it again.
func (g *Guard) Close(ctx context.Context) error {
	idle := g.life.End()
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
	}
	select {
	case <-idle: // also where ctx ended at the same time
	default:
		err = fmt.Errorf("automutex: closed while handlers still ran: %w", context.Cause(ctx))
	}
	g.engine.Close()
	g.history.Close(ctx)
	if g.middlewareUsed.Load() {
		select {
		case <-g.announced:
		case <-time.After(time.Second):
		}
	}
	if g.client != nil && err == nil { // else late handlers release their leases
		if closed := g.client.Close(); closed != nil && !errors.Is(closed, redis.ErrClosed) {
			err = closed
		}
	}
	return err
}

// pause is an order as a BusyError has it, and how long it lasts; nil: none.
func (g *Guard) pause(by *control.Order) (*lock.Control, time.Duration) {
	left, ok := g.engine.Controls().Lasts(by)
	if !ok {
		return nil, 0
	}
	return &lock.Control{Target: by.Target, Paused: true, PausedUntil: by.PausedUntil, Why: by.Why, By: by.By,
		Since: by.Since}, left
}

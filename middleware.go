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

	"github.com/automutex/automutex/lock"
)

// Guard makes the tasks of its rules take turns. Make one with [New], hand its
// [Guard.Middleware] to asynq's mux and its [Guard.ServerConfig] to the server,
// and [Guard.Close] it when the server shuts down. Safe for concurrent use.
type Guard struct {
	cfg    Config // defaults filled in
	rules  *ruleSet
	locker *lock.Locker
	log    *slog.Logger
	client io.Closer // the client NewFromConnOpt made, else nil

	inspector     *asynq.Inspector      // for Park; nil where no rule parks
	inspectorSeen atomic.Bool           // checkInspector has had an answer
	front         redis.UniversalClient // asynq's Redis, for WakeAtFront; else nil
	paused        pausedQueues

	waiting   atomic.Int64 // workers in line, for MaxWaiting
	outage    outage       // of Redis
	keyOutage outage       // of what a rule's Key, or Config.Decode, asks
	warned    sync.Map     // what warnOnce has logged

	// closing ends the waits when Close begins. running counts the handlers
	// under way; mu guards it and idle, which is closed when Close has begun
	// and running is 0.
	closing context.Context //nolint:containedctx // the Guard's own lifetime, not a caller's
	stop    context.CancelFunc
	mu      sync.Mutex
	running int
	closed  bool
	idle    chan struct{}
	usedUp  atomic.Bool // Close is through
	wrapped atomic.Bool // Middleware was called
}

// New makes a Guard on rdb, which may be the client that asynq uses or another
// on the same Redis. It does no I/O. The error joins everything that is wrong
// with rdb and cfg, each with the rule and the field it is about.
func New(rdb lock.Client, cfg Config) (*Guard, error) {
	var problems []error
	unfit := lock.CheckClient(rdb)
	if unfit != nil {
		problems = append(problems, fmt.Errorf("automutex: %w", unfit))
	}
	rules, notices, err := compile(cfg)
	if err != nil {
		problems = append(problems, err)
	}
	inspector, front, err := parkWith(rdb, cfg)
	if err != nil && unfit == nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	cfg = cfg.withDefaults()
	g := &Guard{
		cfg:       cfg,
		rules:     rules,
		log:       cfg.Logger,
		idle:      make(chan struct{}),
		inspector: inspector,
		front:     front,
		outage:    redisOutage(),
		keyOutage: keyOutage(),
	}
	options := lock.Options{
		Prefix: cfg.Prefix, HashKeys: cfg.HashKeys, Owner: cfg.Owner, Logger: cfg.Logger, MinReplicas: cfg.MinReplicas,
	}
	g.cfg.HashKeys = "" // a Guard that is printed prints its Config
	if inspector != nil {
		options.Call = g.call
	}
	g.locker = lock.New(rdb, options)
	g.closing, g.stop = context.WithCancel(context.Background())
	for _, notice := range notices {
		g.log.Warn(notice)
	}
	return g, nil
}

// NewFromConnOpt is New for those who have only what they give to asynq. The
// client it makes is closed by [Guard.Close].
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

// Middleware wraps a handler so that it runs while the task's locks are held.
// A task that no rule matches passes through untouched. It is an
// asynq.MiddlewareFunc, and belongs before all others: what runs before it runs
// unguarded, also for tasks that find their lock taken.
func (g *Guard) Middleware(next asynq.Handler) asynq.Handler {
	g.wrapped.Store(true)
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		// Every task counts, also one that has no rule: it takes a worker.
		defer g.enterTask(ctx)()
		if g.rules.match(t.Type()) == nil || g.passed(ctx, t) {
			return next.ProcessTask(ctx, t)
		}
		return g.process(ctx, t, next)
	})
}

// process is the path of a task that has rules. What its handler returns is
// passed on untouched.
func (g *Guard) process(ctx context.Context, t *asynq.Task, next asynq.Handler) error {
	a := g.newAttempt(ctx, t)
	if a.id != "" && a.server == nil {
		g.warnOnce("no ServerConfig", "the asynq server runs without Guard.ServerConfig: tasks that are handed back spend an attempt each and come back late; "+
			"make the server with asynq.NewServer(redis, guard.ServerConfig(config))")
	}
	targets, v := a.keys()
	switch {
	case v != nil && v.closed:
		return a.afterClose()
	case v != nil:
		return v.answer
	case len(targets) == 0:
		return next.ProcessTask(context.WithValue(ctx, passedKey{g}, t), t) // no rule's lock is needed, or no key is made under Allow
	}
	err, closed := g.guarded(a, targets, next)
	if closed {
		return a.afterClose()
	}
	return err
}

// guarded takes the task's locks in order, runs the handler and gives the locks
// back. closed: the Guard was closed before the handler could run.
func (g *Guard) guarded(a *attempt, targets []target, next asynq.Handler) (err error, closed bool) {
	if !g.enter() {
		return nil, true
	}
	defer g.leave()
	// Plain defers, no recover: a panic of the handler reaches asynq with the
	// stack it had.
	defer a.release()
	for {
		for _, t := range targets {
			if err := a.take(t); err != nil {
				return err.answer, err.closed
			}
		}
		if v := a.dropClaim(targets); v != nil {
			return v.answer, v.closed
		}
		if a.ctx.Err() != nil {
			// asynq has filed the task already; running it now would be a second
			// run beside its retry.
			return context.Cause(a.ctx), false
		}
		if a.stopped() {
			return a.revoke(nil), false
		}
		early := a.lostEarly()
		if early == nil {
			break
		}
		if v := a.startAgain(early); v != nil {
			return v.answer, v.closed
		}
	}
	a.began = time.Now()
	err = next.ProcessTask(a.bind(), a.task)
	return a.ended(err), false
}

// Keys are the keys of the locks that a task needs, in the order in which they
// are taken; none when no rule matches, or the rule's Key answers [NoLock]. The
// error is a [*KeyError], or has one in it, or is what a rule's Key or
// [Config].Decode failed with. Keys does no I/O, unless one of these does.
func (g *Guard) Keys(ctx context.Context, t *asynq.Task) ([]string, error) {
	targets, err := g.rules.targets(ctx, t, g.cfg.Prefix)
	if err != nil || len(targets) == 0 {
		return nil, err
	}
	keys := make([]string, len(targets))
	for i, target := range targets {
		keys[i] = target.key
	}
	return keys, nil
}

// Close ends the Guard: tasks in line stop waiting and go back to asynq, while
// leases of running handlers are renewed until these return or ctx ends. From
// then on every task that has a rule goes back to asynq unrun. The error is
// ctx's when handlers still ran at the end: their leases last until their
// deadlines, or until the handlers return.
//
// Call it before the server's Shutdown, or beside it; after it would be late:
// Shutdown waits for tasks in line up to its whole timeout. A task without
// attempts left does not come back from its wait, since any answer would archive
// it: it blocks its worker, unrun, until asynq has requeued it at the end of that
// timeout. Give ctx as much time as the server has. The Redis client is
// not closed, unless [NewFromConnOpt] made it. Further calls wait as well.
func (g *Guard) Close(ctx context.Context) error {
	g.mu.Lock()
	if !g.closed {
		g.closed = true
		if g.running == 0 {
			close(g.idle)
		}
	}
	g.mu.Unlock()
	g.stop()
	var err error
	select {
	case <-g.idle:
	case <-ctx.Done():
	}
	select {
	case <-g.idle: // also where ctx ended at the same time
	default:
		err = fmt.Errorf("automutex: closed while handlers still ran: %w", context.Cause(ctx))
	}
	err = errors.Join(err, g.locker.Close())
	g.usedUp.Store(true)
	if g.client != nil {
		if closed := g.client.Close(); closed != nil && !errors.Is(closed, redis.ErrClosed) {
			err = errors.Join(err, closed)
		}
	}
	return err
}

// enter counts a task in, unless the Guard is closed.
func (g *Guard) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.running++
	return true
}

// leave counts it out; the last one after Close lets Close go on.
func (g *Guard) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	if g.closed && g.running == 0 {
		close(g.idle)
	}
}

package automutex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

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

// warnOnce logs a warning for the first call with the same what, and does
// nothing for later ones. It is for mistakes of a setup, which every task meets.
func (g *Guard) warnOnce(what, text string, args ...any) {
	if _, told := g.warned.LoadOrStore(what, true); !told {
		g.log.Warn("automutex: "+text, args...)
	}
}

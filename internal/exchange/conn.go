package exchange

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Client is what a Conn needs of go-redis: scripts and pipelines.
type Client interface {
	redis.Scripter
	Pipeline() redis.Pipeliner
}

// Scripts carries single scripts.
type Scripts interface {
	Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd
	EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd
}

// Process sends one command and waits for its reply.
type Process func(ctx context.Context, cmd redis.Cmder) error

// sender is a client or a transport that sends any command, and not scripts alone.
type sender interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

var _ sender = (*redis.Client)(nil)

// Options are how a Conn sends.
type Options struct {
	// Transport carries single scripts, and SETs if it has a method Process, in place of
	// the client; nil: the client does.
	Transport Scripts
	// Queue is set where Transport only queues a command: Queue sends it and waits for
	// its reply until ctx ends, and the transport may write to the command after that.
	Queue Process
	// Prefix of the keys, for the rights that an error names.
	Prefix string
	Log    *slog.Logger
	// Closing is closed when the owner of the Conn closes; idle goroutines end then.
	Closing <-chan struct{}
}

// Timeout bounds each exchange with Redis, retries of the client included.
const Timeout = 5 * time.Second

// Conn sends commands and scripts to one Redis. It owns the bound on every exchange.
// Safe for concurrent use.
type Conn struct {
	rdb     Client
	scripts Scripts // rdb, unless Options say otherwise
	queue   Process // Options.Queue
	process Process // sends a single command that is no script; nil: the transport sends scripts alone
	// bounded: the client itself gives up within Timeout of a context's end.
	// Otherwise (reads without timeout, a client type we do not know) each call
	// runs beside, and is left behind.
	bounded bool
	jobs    chan func() // to idle workers, see beside
	closing <-chan struct{}
	located atomic.Bool // the client has found out once which master has which slots
	// measures: arguments may be marshaled to no other end than to know their size.
	measures  bool
	deadlines deadlines
	denied    denials
}

// New makes a Conn on rdb. It does no I/O and starts no goroutine.
func New(rdb Client, o Options) *Conn {
	c := &Conn{
		rdb: rdb, scripts: rdb, queue: o.Queue, measures: true, jobs: make(chan func()), closing: o.Closing,
		denied: denials{prefix: o.Prefix, log: o.Log},
	}
	var single any = rdb
	if o.Transport != nil {
		c.scripts, single = o.Transport, o.Transport
	}
	if sender, ok := single.(sender); ok {
		c.process = sender.Process
	}
	if o.Transport != nil {
		return c
	}
	within := func(contextTimeout bool, read time.Duration) bool {
		return contextTimeout || (read > 0 && read <= Timeout)
	}
	switch rdb := rdb.(type) {
	case *redis.Client:
		c.measures = false
		c.bounded = within(rdb.Options().ContextTimeoutEnabled, rdb.Options().ReadTimeout)
	case *redis.ClusterClient:
		c.measures = false
		c.bounded = within(rdb.Options().ContextTimeoutEnabled, rdb.Options().ReadTimeout)
	}
	return c
}

// Run executes s on keys, the one key of a lock. It returns when ctx ends, and
// leaves the exchange behind: to interrupt what has begun would not undo it.
func (c *Conn) Run(ctx context.Context, s *Script, keys []string, args []any) (any, error) {
	bound := c.bound(ctx)
	if c.queue != nil {
		return c.submit(ctx, bound, s, keys, args)
	}
	v, err := c.within(ctx, bound, func() (any, error) { return c.run(bound, s, keys, args) })
	if errors.Is(err, ErrNoAnswer) {
		noteLeftBehind(args)
	}
	if errors.Is(err, errLeftBehind) {
		c.unreached(err)
	}
	return v, err
}

// run sends s by its hash, and whole if the server does not take that.
func (c *Conn) run(ctx context.Context, s *Script, keys []string, args []any) (any, error) {
	var v any
	var err error
	whole := c.denied.noHash.Load()
	if !whole {
		v, err = replyOf(c.scripts.EvalSha(ctx, s.SHA, keys, args...), nil)
		if whole = c.denied.sendWhole(err); whole {
			noteNotRun(args)
		}
	}
	if whole {
		v, err = replyOf(c.scripts.Eval(ctx, s.Source, keys, args...), nil)
	}
	c.unreached(err)
	return v, c.denied.describe(s, err)
}

// opContext is a caller's values under a deadline of our own.
type opContext struct {
	context.Context // the deadline
	values          context.Context
}

func (c opContext) Value(key any) any { return c.values.Value(key) }

// deadlines hands out contexts that end Timeout from now, give or take a
// fifth. One serves all exchanges that begin within that fifth, which spares
// each of them a timer.
type deadlines struct {
	mu    sync.Mutex      // guards the fields below
	ctx   context.Context //nolint:containedctx // shared by short exchanges, ends by itself
	renew time.Time
	// cancel is never called: whoever has ctx may use it until its own timer ends
	// it, also after Close, and that is all it holds. (vet wants it kept.)
	cancel context.CancelFunc
}

// bound returns the context of one exchange: values' values, and a deadline.
func (c *Conn) bound(values context.Context) context.Context {
	now := time.Now()
	c.deadlines.mu.Lock()
	defer c.deadlines.mu.Unlock()
	if now.After(c.deadlines.renew) {
		// The one before is left to end by its own timer: exchanges still use it.
		c.deadlines.ctx, c.deadlines.cancel = context.WithTimeout(context.Background(), Timeout) //nolint:gosec // ends by itself
		c.deadlines.renew = now.Add(Timeout / 5)
	}
	return opContext{c.deadlines.ctx, values}
}

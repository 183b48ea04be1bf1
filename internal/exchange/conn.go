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

// Scripts sends single scripts.
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
	// Transport sends single scripts in place of the client, and SETs if it has a method
	// Process; nil: the client sends all.
	Transport Scripts
	// Queue is set if Transport only queues a command. It queues the command and waits for
	// its reply until ctx ends; after that the transport may still write to the command.
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
	// bounded: the client gives up a command within Timeout of the end of its context.
	// Otherwise (no read timeout, or an unknown client type) each call runs on a worker,
	// so that its caller can return before it ends.
	bounded    bool
	jobs       chan func() // to idle workers, see onWorker
	closing    <-chan struct{}
	slotsKnown atomic.Bool // the client knows which master has which slots
	// mayMeasure: the client may marshal an argument only to learn its size, see writing.
	mayMeasure bool
	deadlines  deadlines
	denied     denials
}

// New makes a Conn on rdb. It does no I/O and starts no goroutine.
func New(rdb Client, o Options) *Conn {
	c := &Conn{
		rdb: rdb, scripts: rdb, queue: o.Queue, mayMeasure: true, jobs: make(chan func()), closing: o.Closing,
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
		c.mayMeasure = false
		c.bounded = within(rdb.Options().ContextTimeoutEnabled, rdb.Options().ReadTimeout)
	case *redis.ClusterClient:
		c.mayMeasure = false
		c.bounded = within(rdb.Options().ContextTimeoutEnabled, rdb.Options().ReadTimeout)
	}
	return c
}

// Run runs s on keys, the one key of a lock. When ctx ends it returns ErrNoAnswer and lets
// the exchange go on: an interrupted command could have run all the same.
func (c *Conn) Run(ctx context.Context, s *Script, keys []string, args []any) (any, error) {
	bound := c.boundContext(ctx)
	var v any
	var err error
	if c.queue != nil {
		v, err = c.run(ctx, s, args, func(command, script string) (any, error) {
			return c.submit(ctx, bound, command, script, keys, args)
		})
	} else {
		v, err = c.within(ctx, bound, func() (any, error) {
			return c.run(bound, s, args, func(command, script string) (any, error) {
				return c.eval(bound, command, script, keys, args)
			})
		})
	}
	if errors.Is(err, ErrNoAnswer) {
		noteLeftBehind(args)
	}
	if errors.Is(err, errLeftBehind) {
		c.unreached(err)
	}
	return v, err
}

// maxMovePause bounds the pauses after which run sends a script again: they are 10 ms, and
// double each time, 630 ms together.
const maxMovePause = 320 * time.Millisecond

// run has s sent once, and again while a Cluster moves its slot: a lock that is a string cannot
// become a sorted set there before its key has moved or is free. What the script wrote before
// the error stays, as after a command that go-redis sent twice, and its copies are counted
// like those. The pauses end with ctx.
func (c *Conn) run(ctx context.Context, s *Script, args []any, send sendScript) (any, error) {
	for pause := 10 * time.Millisecond; ; pause *= 2 {
		v, err := c.runOnce(s, args, send)
		if !SlotMoves(err) || pause > maxMovePause {
			return v, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, LeftAtEndOf(ctx)
		}
	}
}

// sendScript sends a script and returns its reply. command is evalsha, and script a hash, or
// eval, and the source.
type sendScript func(command, script string) (any, error)

// runOnce has s sent by EVALSHA, and by EVAL if the server does not run it by its hash.
func (c *Conn) runOnce(s *Script, args []any, send sendScript) (any, error) {
	var v any
	var err error
	bySource := c.denied.noHash.Load()
	if !bySource {
		v, err = send("evalsha", s.SHA)
		if bySource = c.denied.mustSendSource(err); bySource {
			noteNotRun(args)
		}
	}
	if bySource {
		v, err = send("eval", s.Source)
	}
	return v, c.denied.describe(s, err)
}

// eval is a sendScript over a client, or a transport that waits for the reply by itself.
func (c *Conn) eval(ctx context.Context, command, script string, keys []string, args []any) (any, error) {
	var cmd *redis.Cmd
	if command == "eval" {
		cmd = c.scripts.Eval(ctx, script, keys, args...)
	} else {
		cmd = c.scripts.EvalSha(ctx, script, keys, args...)
	}
	v, err := replyOf(cmd, nil)
	c.unreached(err)
	return v, err
}

// opContext has the deadline of one context and the values of another.
type opContext struct {
	context.Context // the deadline
	values          context.Context
}

func (c opContext) Value(key any) any { return c.values.Value(key) }

// deadlines hands out contexts that end in four to five fifths of Timeout. All exchanges
// that begin within one fifth share a context, so that not each of them needs a timer.
type deadlines struct {
	mu    sync.Mutex      // guards the fields below
	ctx   context.Context //nolint:containedctx // shared by short exchanges, ends by itself
	renew time.Time
	// cancel is never called: exchanges use ctx until its timer ends it, also after Close.
	// ctx holds nothing but that timer. (go vet wants cancel to be kept.)
	cancel context.CancelFunc
}

// boundContext returns the context of one exchange: the values of a caller's context, under
// a shared deadline.
func (c *Conn) boundContext(values context.Context) context.Context {
	now := time.Now()
	c.deadlines.mu.Lock()
	defer c.deadlines.mu.Unlock()
	if now.After(c.deadlines.renew) {
		// The previous context ends by its own timer: exchanges still use it.
		c.deadlines.ctx, c.deadlines.cancel = context.WithTimeout(context.Background(), Timeout) //nolint:gosec // ends by itself
		c.deadlines.renew = now.Add(Timeout / 5)
	}
	return opContext{c.deadlines.ctx, values}
}

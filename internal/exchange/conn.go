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
	rdb Client
	// scripts sends single scripts; nil: process or queue does. It is set for a transport, and
	// for a client of unknown type, which may do something of its own in these methods.
	scripts Scripts
	queue   Process // Options.Queue
	process Process // sends a single command, such as SET; nil: queue does, or the transport sends scripts alone
	// bounded: the client gives up a command within Timeout of the end of its context.
	// Otherwise (no read timeout, or an unknown client type) each call runs on a worker,
	// so that its caller can return before it ends.
	bounded    bool
	jobs       chan func() // to idle workers, see onWorker
	closing    <-chan struct{}
	slotsKnown atomic.Bool // the client knows which master has which slots
	// mayMeasure: the client may marshal an argument only to learn its size, see isWriter.
	mayMeasure bool
	cluster    bool    // rdb is a ClusterClient
	repeats    repeats // of releases, see tries.go
	deadlines  deadlines
	denied     denials
	refused    refusals
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
	if o.Queue != nil {
		c.scripts = nil
	}
	if o.Transport != nil {
		return c
	}
	switch rdb := rdb.(type) {
	case *redis.Client:
		c.useClient(rdb.Options().ContextTimeoutEnabled, rdb.Options().ReadTimeout)
		c.repeats = repeatsOf(rdb.Options())
	case *redis.ClusterClient:
		c.cluster = true
		c.useClient(rdb.Options().ContextTimeoutEnabled, rdb.Options().ReadTimeout)
	}
	return c
}

// useClient notes that a client of go-redis sends all, with these options.
func (c *Conn) useClient(contextTimeout bool, read time.Duration) {
	c.scripts, c.mayMeasure = nil, false
	c.bounded = contextTimeout || (read > 0 && read <= Timeout)
}

// Run runs s on keys, the one key of a lock. When ctx ends it returns ErrNoAnswer and lets
// the exchange go on: an interrupted command could have run all the same.
func (c *Conn) Run(ctx context.Context, s *Script, keys []string, args []any) (any, error) {
	return c.RunBounded(Bounds{Leave: ctx, Values: ctx, Now: time.Now()}, s, keys, args)
}

// Bounds are when an exchange begins and when its caller leaves it.
type Bounds struct {
	Leave  context.Context // when it ends, the exchange returns
	Values context.Context // hooks of the client see its values; its end has no effect
	Now    time.Time       // when the exchange begins: its caller has read the clock anyway
}

// RunBounded is Run for a caller that may stay after the end of the context whose values it
// passes on.
func (c *Conn) RunBounded(b Bounds, s *Script, keys []string, args []any) (v any, err error) {
	bound := c.boundContext(b.Values, b.Now)
	if c.queue != nil || c.onCaller(b.Leave) {
		v, err = c.run(b.Leave, bound, s, keys, args)
	} else {
		v, err = c.within(b.Leave, bound, func() (any, error) { return c.run(bound, bound, s, keys, args) })
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
// double each time.
const maxMovePause = 320 * time.Millisecond

// run sends s once, and again while a Cluster moves its slot: a lock that is a string cannot
// become a sorted set there before its key has moved or is free. A slot with many keys takes
// seconds to move, so run goes on as long as bound allows. What the script wrote before
// the error stays, as after a command that go-redis sent twice, and its copies are counted
// like those. The pauses end with leave.
func (c *Conn) run(leave, bound context.Context, s *Script, keys []string, args []any) (any, error) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, maxMovePause) {
		v, err := c.runOnce(leave, bound, s, keys, args)
		if !SlotMoves(err) {
			return v, err
		}
		if end, _ := bound.Deadline(); time.Until(end) < 2*pause { // too late for another answer
			return v, err
		}
		select {
		case <-time.After(pause):
		case <-leave.Done():
			return nil, LeftAtEndOf(leave)
		}
	}
}

// runOnce sends s by EVALSHA, and by EVAL if the server does not run it by its hash.
func (c *Conn) runOnce(leave, bound context.Context, s *Script, keys []string, args []any) (v any, err error) {
	bySource := c.denied.noHash.Load()
	if !bySource {
		v, err = c.send(leave, bound, s.byHash, keys, args)
		if bySource = c.denied.mustSendSource(err); bySource {
			noteNotRun(args)
		}
	}
	if bySource {
		v, err = c.send(leave, bound, s.bySource, keys, args)
	}
	return v, c.denied.describe(s, err)
}

// send sends a script once. It ends when the client or the transport does; over a transport
// that queues, also when leave or bound ends, and then only the transport uses the command.
func (c *Conn) send(leave, bound context.Context, how scriptCommand, keys []string, args []any) (v any, err error) {
	if c.scripts != nil {
		v, err = replyOf(how.over(bound, c.scripts, keys, args), nil)
		c.unreached(err)
		return v, err
	}
	words := append(append(make([]any, 0, 4+len(args)), how.command, how.script, len(keys), keys[0]), args...)
	body := countedIn(args)
	var sent *resent
	if body != nil && c.queue == nil {
		words[4], sent = c.redirects(body)
	}
	cmd := redis.NewCmd(bound, words...)
	cmd.SetFirstKeyPos(3) // where a Cluster sends it
	if sent != nil {
		sent.cmd = cmd
	}
	if c.queue == nil {
		err = c.processOne(bound, cmd, body)
		v, err = replyOf(cmd, err)
		c.unreached(err)
		return v, err
	}
	if err = c.submit(leave, bound, cmd); errors.Is(err, ErrNoAnswer) {
		return nil, err
	}
	return replyOf(cmd, err)
}

// processOne sends a command with body, which may be nil, among its arguments.
func (c *Conn) processOne(ctx context.Context, cmd *redis.Cmd, body *Counted) error {
	if body != nil && body.Releases && c.repeats.most > 0 {
		return c.processReleases(ctx, cmd, body)
	}
	return c.process(ctx, cmd)
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
	ctx   context.Context // shared by short exchanges, ends by itself
	renew time.Time
	// cancel is never called: exchanges use ctx until its timer ends it, also after Close.
	// ctx holds nothing but that timer. (go vet wants cancel to be kept.)
	cancel context.CancelFunc
}

// boundContext returns the context of one exchange: the values of a caller's context, under
// a shared deadline. An exchange that begins now has at least four fifths of Timeout.
func (c *Conn) boundContext(values context.Context, now time.Time) context.Context {
	c.deadlines.mu.Lock()
	defer c.deadlines.mu.Unlock()
	if now.After(c.deadlines.renew) {
		// The previous context ends by its own timer: exchanges still use it.
		c.deadlines.ctx, c.deadlines.cancel = context.WithTimeout(context.Background(), Timeout) //nolint:gosec // ends by itself
		c.deadlines.renew = now.Add(Timeout / 5)
	}
	return opContext{c.deadlines.ctx, values}
}

package lock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Client is what the engine needs of go-redis: scripts, pipelines, Pub/Sub.
// *redis.Client, *redis.ClusterClient and redis.UniversalClient satisfy it. A
// *redis.Ring does too, but is refused: it moves keys to other shards when one
// is down, and two shards would each grant the lock.
type Client interface {
	redis.Scripter
	Pipeline() redis.Pipeliner
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// Transport carries the scripts of single operations in place of the client, and the SET
// of a lock that nobody waits for where it has a Process method, as go-redis' clients do:
// both must lead to the same keys.
//
// It is another connection, or another way to use one. An AutoPipeliner of go-redis 9.22
// or later is one: it gathers the commands of many goroutines into one write. Pass
// an asynchronous one through [Async]: every other transport costs a goroutine for
// each call. Subscriptions, and the pipelines of renewals
// and waiters, stay with the client, so both must lead to the same Redis. A
// transport may ignore contexts: a call that has no answer after about 5 s is left
// behind, and its goroutine ends when the transport lets go of it. Its owner
// closes it, after the Locker.
type Transport interface {
	Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd
	EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd
}

func checkTransport(t Transport) error {
	if v := reflect.ValueOf(t); v.Kind() == reflect.Pointer && v.IsNil() && t != nil {
		return fmt.Errorf("lock: Options.Transport is a nil %T: leave it out, or pass one that was made", t)
	}
	if _, ring := t.(*redis.Ring); ring {
		return errors.New("lock: Options.Transport is a *redis.Ring, which cannot hold locks: see Client")
	}
	return nil
}

// checkClient reports whether rdb can serve as a Client: not nil (nor a typed
// nil) and no *redis.Ring. It does no I/O.
func checkClient(rdb Client) error {
	if rdb == nil {
		return errors.New("lock: the Redis client is nil: pass a *redis.Client or *redis.ClusterClient")
	}
	if v := reflect.ValueOf(rdb); v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("lock: the Redis client is a nil %T: pass one that was made with redis.NewClient or the like", rdb)
	}
	if _, ring := rdb.(*redis.Ring); ring {
		return errors.New("lock: *redis.Ring cannot hold locks (a shard that is away would let a second holder in on another): " +
			"use *redis.Client or *redis.ClusterClient")
	}
	return nil
}

// opTimeout bounds each exchange with Redis, retries of the client included.
const opTimeout = 5 * time.Second

// conn runs scripts. It owns the bound on every exchange.
type conn struct {
	rdb     Client
	scripts Transport // rdb, unless Options say otherwise
	// process is that of scripts where Async made them, else nil.
	process func(ctx context.Context, cmd redis.Cmder) error
	sender  sender // scripts, if it sends other commands too; else nil
	// bounded: the client itself gives up within opTimeout of a context's end.
	// Otherwise (reads without timeout, a client type we do not know) each call
	// runs beside, and is left behind.
	bounded bool
	jobs    chan func()     // to idle workers, see beside
	closing <-chan struct{} // closed when the Locker is
	located atomic.Bool     // the client has found out once which master has which slots
	// measures: arguments may be marshaled to no other end than to know their size.
	measures  bool
	deadlines deadlines
	denied    *denials
}

func newConn(rdb Client, transport Transport, denied *denials, closing <-chan struct{}) *conn {
	c := &conn{rdb: rdb, scripts: rdb, measures: true, jobs: make(chan func()), closing: closing, denied: denied}
	if transport != nil {
		c.scripts = transport
		c.sender, _ = transport.(sender)
		if async, ok := transport.(asyncTransport); ok {
			c.process = async.process
			c.sender = async
		}
		return c
	}
	c.sender, _ = rdb.(sender)
	within := func(contextTimeout bool, read time.Duration) bool {
		return contextTimeout || (read > 0 && read <= opTimeout)
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

// run executes s on keys, the one key of a lock. It returns when ctx ends, and
// leaves the exchange behind: to interrupt what has begun would not undo it.
func (c *conn) run(ctx context.Context, s *script, keys []string, args []any) (any, error) {
	bound := c.bound(ctx)
	if c.process != nil {
		return c.submit(ctx, bound, s, keys, args)
	}
	v, err := c.within(ctx, bound, func() (any, error) { return c.exchange(bound, s, keys, args) })
	if errors.Is(err, errNoAnswer) {
		noteLeftBehind(args)
	}
	if errors.Is(err, errLeftBehind) {
		c.unreached(err)
	}
	return v, err
}

func (c *conn) exchange(ctx context.Context, s *script, keys []string, args []any) (any, error) {
	var v any
	var err error
	whole := c.denied.noHash.Load()
	if !whole {
		v, err = replyOf(c.scripts.EvalSha(ctx, s.sha, keys, args...), nil)
		if whole = c.denied.sendWhole(err); whole {
			noteNotRun(args)
		}
	}
	if whole {
		v, err = replyOf(c.scripts.Eval(ctx, s.src, keys, args...), nil)
	}
	c.unreached(err)
	return v, c.denied.describe(s, err)
}

// submit is exchange over a transport of Async: this goroutine waits, until bound
// or ctx ends, and a command that is left behind is the transport's alone.
func (c *conn) submit(ctx, bound context.Context, s *script, keys []string, args []any) (any, error) {
	send := func(name, text string) (any, error) {
		words := append(make([]any, 0, 4+len(args)), name, text, len(keys), keys[0])
		cmd := redis.NewCmd(bound, append(words, args...)...)
		cmd.SetFirstKeyPos(3) // where a Cluster sends it
		err := c.submitOne(ctx, bound, cmd)
		if errors.Is(err, errNoAnswer) {
			noteLeftBehind(args)
			return nil, err
		}
		return replyOf(cmd, err)
	}
	var v any
	var err error
	whole := c.denied.noHash.Load()
	if !whole {
		v, err = send("evalsha", s.sha)
		if whole = c.denied.sendWhole(err); whole {
			noteNotRun(args)
		}
	}
	if whole {
		v, err = send("eval", s.src)
	}
	return v, c.denied.describe(s, err)
}

// submitOne has cmd sent over a transport of Async, and waits for its reply until bound
// or ctx ends. After errNoAnswer cmd may be written to yet: it is not to be looked at.
func (c *conn) submitOne(ctx, bound context.Context, cmd redis.Cmder) error {
	waiting := bound
	if ctx.Done() != nil {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, opTimeout)
		defer cancel()
	}
	err := c.process(waiting, cmd)
	switch {
	case err == nil || waiting.Err() == nil:
		return err
	case ctx.Err() != nil:
		return leftAtEndOf(ctx)
	}
	return errLeftBehind
}

// opContext is a caller's values under a deadline of our own.
type opContext struct {
	context.Context // the deadline
	values          context.Context
}

func (c opContext) Value(key any) any { return c.values.Value(key) }

// deadlines hands out contexts that end opTimeout from now, give or take a
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

func (c *conn) bound(values context.Context) context.Context {
	now := time.Now()
	c.deadlines.mu.Lock()
	defer c.deadlines.mu.Unlock()
	if now.After(c.deadlines.renew) {
		// The one before is left to end by its own timer: exchanges still use it.
		c.deadlines.ctx, c.deadlines.cancel = context.WithTimeout(context.Background(), opTimeout) //nolint:gosec // ends by itself
		c.deadlines.renew = now.Add(opTimeout / 5)
	}
	return opContext{c.deadlines.ctx, values}
}

// call is one script call of a pipeline, and its result.
type call struct {
	keys []string
	args []any

	reply any
	err   error
}

// pipeline executes s for each call in one round trip (one per node). Every
// call ends with a reply or an error. That a server does not run a script by its
// hash is answered per command: those go again, whole.
func (c *conn) pipeline(ctx context.Context, s *script, calls []*call) {
	bound := c.bound(ctx)
	mine := slices.Clone(calls)
	_, err := c.within(ctx, bound, func() (any, error) {
		c.exchangeAll(bound, s, mine)
		return nil, nil //nolint:nilnil // each call carries its own result
	})
	if err != nil {
		// The goroutine left behind may still write into its calls: the caller
		// gets others.
		for i := range calls {
			noteLeftBehind(calls[i].args)
			calls[i] = &call{keys: calls[i].keys, err: err}
		}
	}
}

func (c *conn) exchangeAll(ctx context.Context, s *script, calls []*call) {
	send := func(calls []*call, queue func(p redis.Pipeliner, keys []string, args []any) *redis.Cmd) {
		p := c.rdb.Pipeline()
		cmds := make([]*redis.Cmd, len(calls))
		for i, x := range calls {
			cmds[i] = queue(p, x.keys, x.args)
		}
		_, failed := p.Exec(ctx)
		for i, x := range calls {
			x.reply, x.err = replyOf(cmds[i], failed)
			c.unreached(x.err)
		}
	}
	whole := calls
	if !c.denied.noHash.Load() {
		send(calls, func(p redis.Pipeliner, keys []string, args []any) *redis.Cmd {
			return p.EvalSha(ctx, s.sha, keys, args...)
		})
		whole = nil
		for _, x := range calls {
			if c.denied.sendWhole(x.err) {
				noteNotRun(x.args)
				whole = append(whole, x)
			}
		}
	}
	if len(whole) > 0 {
		send(whole, func(p redis.Pipeliner, keys []string, args []any) *redis.Cmd {
			return p.Eval(ctx, s.src, keys, args...)
		})
	}
	for _, x := range calls {
		x.err = c.denied.describe(s, x.err)
	}
}

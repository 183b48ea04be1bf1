// Package redisx sends scripts, single commands and pipelines to one Redis through a client of go-redis. It bounds
// every exchange, and waits for replicas. It knows no locks.
package redisx

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Client is what a Conn needs of go-redis: commands, pipelines, Pub/Sub.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// Timeout bounds each exchange with Redis, retries of the client included.
const Timeout = 5 * time.Second

// Conn sends commands and scripts to one Redis. Safe for concurrent use.
type Conn struct {
	rdb Client
	// bounded: the client gives up a command within Timeout of the end of its context. Otherwise (no read timeout, or an
	// unknown client type) each exchange runs on a worker, so that its caller can return before it ends.
	bounded    bool
	jobs       chan func() // to idle workers, see onWorker
	closing    <-chan struct{}
	slotsKnown atomic.Bool  // the client knows which master has which slots
	refused    atomic.Int32 // how many commands of DeleteIfEqual a server has refused
	deadlines  deadlines
}

// New makes a Conn on rdb. Its idle goroutines end when closing is closed. New does no I/O and starts no goroutine.
func New(rdb Client, closing <-chan struct{}) *Conn {
	c := &Conn{rdb: rdb, jobs: make(chan func()), closing: closing}
	switch rdb := rdb.(type) {
	case *redis.Client:
		c.bounded = isBounded(rdb.Options().ContextTimeoutEnabled, rdb.Options().ReadTimeout)
	case *redis.ClusterClient:
		c.bounded = isBounded(rdb.Options().ContextTimeoutEnabled, rdb.Options().ReadTimeout)
	}
	return c
}

func isBounded(byContext bool, read time.Duration) bool {
	return byContext || read > 0 && read <= Timeout
}

// ErrNoAnswer is the error of an exchange whose caller returned before there was a reply. The command may have run, or
// may run yet.
var ErrNoAnswer = errors.New("no answer from Redis")

// errTimeout: there was no reply within Timeout.
var errTimeout = fmt.Errorf("%w within %s: %w", ErrNoAnswer, Timeout, context.DeadlineExceeded)

// AnswerGrace is how long a caller still waits for a reply after its context ended. A working Redis replies by then,
// and its reply says more than that the context ended.
const AnswerGrace = 250 * time.Millisecond

// Run runs s on keys. When ctx ends it returns ErrNoAnswer after AnswerGrace and lets the exchange go on: an
// interrupted command may have run. A ctx that cannot end costs least: the exchange runs on the caller's goroutine.
//
// While a Cluster moves the slot of the keys, Run sends s again as long as Timeout allows. A slot with many keys takes
// seconds.
func (c *Conn) Run(ctx context.Context, s *Script, keys []string, args ...any) (any, error) {
	words := make([]any, 3, 3+len(keys)+len(args))
	words[2] = len(keys)
	for i := range keys {
		words = append(words, &keys[i])
	}
	words[3] = keys[0] // for a Cluster
	return c.run(ctx, s, append(words, args...))
}

// run is Run for words; runOnce sets two.
func (c *Conn) run(ctx context.Context, s *Script, words []any) (any, error) {
	if c.runsHere(ctx) {
		return c.runThroughMove(ctx, c.deadlines.context(ctx), s, words)
	}
	return c.Within(ctx, func(bound context.Context) (any, error) { return c.runThroughMove(ctx, bound, s, words) })
}

func (c *Conn) runThroughMove(ctx, bound context.Context, s *Script, words []any) (any, error) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, maxMovePause) {
		v, err := c.runOnce(bound, s, words)
		if !isSlotMoving(err) {
			return v, err
		}
		if end, _ := bound.Deadline(); ctx.Err() != nil || time.Until(end) < 2*pause { // too late for another answer
			return v, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, LeftAtEndOf(ctx)
		}
	}
}

// maxMovePause bounds the pauses after which Run sends a script again: they are 10 ms, and double each time.
const maxMovePause = 320 * time.Millisecond

// runOnce sends s by EVALSHA, and by EVAL if the server does not know the hash. Such a script has not run.
func (c *Conn) runOnce(ctx context.Context, s *Script, words []any) (any, error) {
	words[0], words[1] = "evalsha", s.shaArg
	v, err := c.send(ctx, words, 3)
	if HasCode(err, "NOSCRIPT") {
		words[0], words[1] = "eval", s.Source
		v, err = c.send(ctx, words, 3)
	}
	return v, err
}

// send sends a command. A Cluster sends it where the word at keyAt belongs: go-redis may not know the command.
func (c *Conn) send(ctx context.Context, words []any, keyAt int8) (v any, err error) {
	forgetSent(words...)
	cmd := redis.NewCmd(ctx, words...)
	cmd.SetFirstKeyPos(keyAt)
	v, err = replyOf(cmd, c.rdb.Process(ctx, cmd))
	c.sawUnreached(err)
	return v, explain(err)
}

// Counted is an argument that knows whether the client has sent its command again: then an earlier one may have run.
type Counted struct {
	Text  string
	bytes []byte // Text, once it was sent
	sends atomic.Int32
}

// MarshalBinary is called by go-redis each time that it writes the command.
func (a *Counted) MarshalBinary() ([]byte, error) {
	if a.sends.Add(1); a.bytes == nil {
		a.bytes = []byte(a.Text)
	}
	return a.bytes, nil
}

// forgetSent: what was sent so far has not run, see Run.
func forgetSent(args ...any) {
	for _, arg := range args {
		if arg, ok := arg.(*Counted); ok {
			arg.sends.Store(0)
		}
	}
}

// Resent reports whether the command was sent more than once.
func (a *Counted) Resent() bool { return a.sends.Load() > 1 }

// Do sends a command whose second word is its only key.
func (c *Conn) Do(ctx context.Context, words ...any) (any, error) {
	if c.runsHere(ctx) {
		return c.send(c.deadlines.context(ctx), words, 1)
	}
	return c.Within(ctx, func(bound context.Context) (any, error) { return c.send(bound, words, 1) })
}

// SetNX sets key to body for ttl (ms) if the key does not exist. ok is false without an error if it does.
func (c *Conn) SetNX(ctx context.Context, key, body, ttl any) (ok bool, err error) {
	reply, err := c.Do(ctx, "set", key, body, "nx", "px", ttl)
	switch {
	case errors.Is(err, redis.Nil):
		return false, nil
	case err == nil && reply != any("OK"):
		err = fmt.Errorf("unexpected reply %q", reply)
	}
	return err == nil, err
}

// DeleteIfEqual deletes the string at key if it is body, by a command of the server, or by script, which replies 1 if
// it has deleted the key. deleted is false without an error if the key is another string, of another type, or not
// there.
//
// Redis 8.4 has DELEX, Valkey 9 DELIFEQ, for a quarter of what a script costs the server. What a server has is found by
// sending it; after a lost connection, anew.
func (c *Conn) DeleteIfEqual(ctx context.Context, script *Script, key, body any) (deleted bool, err error) {
	for n := c.refused.Load(); n < 2; n = c.refused.Load() {
		words := []any{"delex", key, "ifeq", body}
		if n > 0 {
			words = []any{"delifeq", key, body}
		}
		reply, err := c.Do(ctx, words...)
		switch {
		case err == nil:
			return reply == any(int64(1)), nil
		case HasCode(err, "WRONGTYPE"), IsServers(err) && strings.Contains(err.Error(), "should be of string type"):
			// of DELEX, without a code
			return false, nil
		case !IsServers(err) || IsNotRun(err):
			return false, err
		}
		c.refused.CompareAndSwap(n, n+1)
	}
	reply, err := c.run(ctx, script, []any{nil, nil, 1, key, body})
	if IsWrongType(err) {
		return false, nil
	}
	return reply == any(int64(1)), err
}

// Within runs f, an exchange with the context bound, for a caller with ctx. It returns when f returns, after Timeout,
// or AnswerGrace after ctx ended. In the last two cases f goes on, its result is dropped, and nobody waits for its
// goroutine: it ends when the client gives the command up, at its own timeout or when the client closes.
func (c *Conn) Within(ctx context.Context, f func(bound context.Context) (any, error)) (any, error) {
	bound := c.deadlines.context(ctx)
	if c.runsHere(ctx) {
		return f(bound)
	}
	done := make(chan result, 1) // buffered: the goroutine never waits for us
	c.onWorker(func() {
		v, err := f(bound)
		done <- result{v, err}
	})
	select {
	case r := <-done:
		return r.v, r.err
	case <-bound.Done():
		c.sawUnreached(errTimeout)
		return nil, goesOn{errTimeout, done}
	case <-ctx.Done():
	}
	timer := time.NewTimer(AnswerGrace)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.v, r.err
	case <-timer.C:
		return nil, goesOn{LeftAtEndOf(ctx), done}
	}
}

// runsHere reports whether an exchange runs on its caller's goroutine.
func (c *Conn) runsHere(ctx context.Context) bool {
	_, isBound := ctx.(boundContext)
	return c.bounded && (isBound || ctx.Done() == nil)
}

// Whole returns a context with the values of ctx, for exchanges whose end the caller waits for also if ctx ends. They
// begin at once, and share their bound.
func (c *Conn) Whole(ctx context.Context) context.Context {
	switch {
	case ctx.Done() == nil:
		return ctx
	case c.bounded:
		return c.deadlines.context(ctx)
	}
	return context.WithoutCancel(ctx)
}

type result struct {
	v   any
	err error
}

// goesOn is the error of a caller that returned before its exchange did, which is done when done has the result.
type goesOn struct {
	error
	done <-chan result
}

func (g goesOn) Unwrap() error { return g.error }

// AwaitEnd waits until the exchange that err is of has ended, or stop is closed: what undoes it is sent after it. One
// goroutine calls it for an exchange, at most.
func AwaitEnd(err error, stop <-chan struct{}) {
	var g goesOn
	if errors.As(err, &g) {
		select {
		case <-g.done:
		case <-stop:
		}
	}
}

// LeftAtEndOf returns the error of a caller that returned because ctx ended.
func LeftAtEndOf(ctx context.Context) error {
	return fmt.Errorf("%w before the context ended: %w", ErrNoAnswer, ctx.Err())
}

// workerIdle is how long a worker outlives its last exchange.
const workerIdle = time.Second

// onWorker runs f on a worker goroutine. Workers are reused for their stacks: go-redis calls deep, and each new
// goroutine would have to grow its stack, which costs a task a quarter of its time.
func (c *Conn) onWorker(f func()) {
	select {
	case c.jobs <- f: // an idle worker takes it
	default:
		go c.work(f)
	}
}

func (c *Conn) work(f func()) {
	idle := time.NewTimer(workerIdle)
	defer idle.Stop()
	for {
		f()
		idle.Reset(workerIdle)
		select {
		case f = <-c.jobs:
		case <-idle.C:
			return
		case <-c.closing:
			return
		}
	}
}

// boundContext has the deadline of one context and the values of another: hooks of the client see those.
type boundContext struct {
	context.Context // the deadline
	values          context.Context
}

func (c boundContext) Value(key any) any { return c.values.Value(key) }

// deadlines hands out contexts that end in four to five fifths of Timeout. All exchanges that begin within one fifth
// share a context: a timer for each of them would be two thirds more allocations for a lock that is free.
type deadlines struct {
	mu    sync.Mutex      // guards the fields below
	ctx   context.Context // shared by short exchanges, ends by itself
	renew time.Time
	// cancel is never called: exchanges use ctx until its timer ends it. ctx holds nothing but that timer. (go vet wants
	// cancel to be kept.)
	cancel context.CancelFunc
}

func (d *deadlines) context(values context.Context) context.Context {
	if _, isBound := values.(boundContext); isBound {
		return values
	}
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.After(d.renew) { // the previous context ends by its own timer: exchanges still use it
		d.ctx, d.cancel = context.WithTimeout(context.Background(), Timeout) //nolint:gosec // ends by itself
		d.renew = now.Add(Timeout / 5)
	}
	if values == context.Background() {
		return d.ctx
	}
	return boundContext{d.ctx, values}
}

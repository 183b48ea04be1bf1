package exchange

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// An exchange with Redis ends for its caller when it has its answer, when
// Timeout is over, or when the caller's context ends. go-redis interrupts no
// read for a context (with ContextTimeoutEnabled it observes a deadline, but no
// cancellation). So an exchange whose caller can leave runs on another goroutine,
// and what it gives is dropped when the caller has left. An exchange with a context that
// never ends runs on the caller's goroutine, if the client bounds its own reads.

// ErrNoAnswer is the error of an exchange whose caller left before there was an answer.
// The command may have run, or may run yet.
var ErrNoAnswer = errors.New("no answer from Redis")

// errLeftBehind: the client gave no answer within Timeout.
var errLeftBehind = fmt.Errorf("%w within %s: %w", ErrNoAnswer, Timeout, context.DeadlineExceeded)

// AnswerGrace is how long an answer may still come after the caller's context
// ended. A Redis that works answers by then, and its answer says more than that
// the context ended.
const AnswerGrace = 250 * time.Millisecond

// within runs f, which sends under bound, for a caller with ctx. A goroutine that
// is left behind ends when the client lets go of the command (at its own timeout,
// or at Close of the client). Nobody waits for it.
func (c *Conn) within(ctx, bound context.Context, f func() (any, error)) (any, error) {
	if c.bounded && ctx.Done() == nil {
		return f()
	}
	type result struct {
		v   any
		err error
	}
	done := make(chan result, 1) // buffered: the goroutine never waits for us
	c.beside(func() {
		v, err := f()
		done <- result{v, err}
	})
	select {
	case r := <-done:
		return r.v, r.err
	case <-bound.Done():
		return nil, errLeftBehind
	case <-ctx.Done():
	}
	timer := time.NewTimer(AnswerGrace)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.v, r.err
	case <-timer.C:
		return nil, LeftAtEndOf(ctx)
	}
}

// Within runs f, which sends under the context that it is given, for a caller with ctx. It
// returns when f has, and otherwise within Timeout, or shortly after ctx has ended; f goes
// on then, for nobody.
func (c *Conn) Within(ctx context.Context, f func(bound context.Context) (any, error)) (any, error) {
	bound := c.bound(ctx)
	return c.within(ctx, bound, func() (any, error) { return f(bound) })
}

// workerIdle is how long a worker outlives its last exchange.
const workerIdle = time.Second

// beside runs f on a worker. Workers are kept for a while for the sake of their
// stacks: go-redis calls deep, and each new goroutine would grow its stack anew.
// A worker ends when it was idle for workerIdle, or when it is idle and Options.Closing
// is closed.
func (c *Conn) beside(f func()) {
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

// LeftAtEndOf is the error of a caller who left because ctx ended.
func LeftAtEndOf(ctx context.Context) error {
	return fmt.Errorf("%w before the context ended: %w", ErrNoAnswer, ctx.Err())
}

package exchange

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// For its caller an exchange with Redis ends with a reply, after Timeout, or when the
// caller's context ends. go-redis interrupts no read for a context (with
// ContextTimeoutEnabled it observes a deadline, but no cancellation). So an exchange whose
// context can end runs on another goroutine. If the caller has returned by then, the reply
// is dropped. An exchange whose context cannot end runs on the caller's goroutine, if the
// client bounds its own reads.

// ErrNoAnswer is the error of an exchange whose caller returned before there was a reply.
// The command may have run, or may run yet.
var ErrNoAnswer = errors.New("no answer from Redis")

// errLeftBehind: there was no reply within Timeout. It wraps ErrNoAnswer.
var errLeftBehind = fmt.Errorf("%w within %s: %w", ErrNoAnswer, Timeout, context.DeadlineExceeded)

// AnswerGrace is how long a caller still waits for a reply after its context ended. A
// working Redis replies by then, and its reply says more than that the context ended.
const AnswerGrace = 250 * time.Millisecond

// onCaller reports whether an exchange runs on the goroutine of its caller, who leaves when
// ctx ends.
func (c *Conn) onCaller(ctx context.Context) bool { return c.bounded && ctx.Done() == nil }

// within runs f, an exchange with the context bound, for a caller with ctx. If the caller
// returns before f does, the goroutine of f ends when the client gives the command up, at
// its own timeout or at Close of the client. Nobody waits for that goroutine.
func (c *Conn) within(ctx, bound context.Context, f func() (any, error)) (any, error) {
	if c.onCaller(ctx) {
		return f()
	}
	type result struct {
		v   any
		err error
	}
	done := make(chan result, 1) // buffered: the goroutine never waits for us
	c.onWorker(func() {
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

// Within runs f, an exchange with the context bound, for a caller with ctx. It returns when f
// returns, after Timeout, or AnswerGrace after ctx ended. In the last two cases f goes on, and
// its result is dropped.
func (c *Conn) Within(ctx context.Context, f func(bound context.Context) (any, error)) (any, error) {
	bound := c.boundContext(ctx, time.Now())
	return c.within(ctx, bound, func() (any, error) { return f(bound) })
}

// workerIdle is how long a worker outlives its last exchange.
const workerIdle = time.Second

// onWorker runs f on a worker goroutine. Workers are reused for their stacks: go-redis calls
// deep, and each new goroutine would have to grow its stack. A worker ends when it was idle
// for workerIdle, or when it is idle and Options.Closing is closed.
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

// LeftAtEndOf returns the error of a caller that returned because ctx ended.
func LeftAtEndOf(ctx context.Context) error {
	return fmt.Errorf("%w before the context ended: %w", ErrNoAnswer, ctx.Err())
}

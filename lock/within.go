package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// An exchange with Redis ends for its caller when it has its answer, when
// opTimeout is over, or when the caller's context ends. go-redis interrupts no
// read for a context (with ContextTimeoutEnabled it observes a deadline, but no
// cancellation). So an exchange whose caller can leave runs on another goroutine,
// and what it gives is dropped when the caller has left. An exchange with a context that never ends runs on the caller's
// goroutine, if the client bounds its own reads.

// errNoAnswer: the caller left before there was an answer. The command may have
// run, or may run yet.
var errNoAnswer = errors.New("no answer from Redis")

// errLeftBehind: the client gave no answer within opTimeout.
var errLeftBehind = fmt.Errorf("%w within %s: %w", errNoAnswer, opTimeout, context.DeadlineExceeded)

// answerGrace is how long an answer may still come after the caller's context
// ended. A Redis that works answers by then, and its answer says more than that
// the context ended.
const answerGrace = leaveGrace

// within runs f, which sends under bound, for a caller with ctx. A goroutine that
// is left behind ends when the client lets go of the command (at its own timeout,
// or at Close of the client). The Locker's Close does not wait for it.
func (c *conn) within(ctx, bound context.Context, f func() (any, error)) (any, error) {
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
	timer := time.NewTimer(answerGrace)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.v, r.err
	case <-timer.C:
		return nil, leftAtEndOf(ctx)
	}
}

// workerIdle is how long a worker outlives its last exchange.
const workerIdle = time.Second

// beside runs f on a worker. Workers are kept for a while for the sake of their
// stacks: go-redis calls deep, and each new goroutine would grow its stack anew.
// A worker ends when it was idle for workerIdle, or when it is idle and the Locker
// is closed.
func (c *conn) beside(f func()) {
	select {
	case c.jobs <- f: // an idle worker takes it
	default:
		go c.work(f)
	}
}

func (c *conn) work(f func()) {
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

// leftAtEndOf is the error of a caller who left because ctx ended.
func leftAtEndOf(ctx context.Context) error {
	return fmt.Errorf("%w before the context ended: %w", errNoAnswer, ctx.Err())
}

// masterOf tells the masters of a Cluster apart: it is equal for two keys of one
// master. It is nil where the client is no Cluster's, or no master is known.
func (c *conn) masterOf(ctx context.Context, key string) any {
	cluster, isCluster := c.rdb.(clusterClient)
	if !isCluster {
		return nil
	}
	bound := c.bound(ctx)
	find := func() (any, error) { return cluster.MasterForKey(bound, key) }
	var master any
	var err error
	if c.located.Load() {
		master, err = find() // which has the slots in memory
	} else {
		master, err = c.within(ctx, bound, find)
	}
	if err != nil {
		return nil // go-redis looks for it again when the command is sent
	}
	c.located.Store(true)
	return master
}

// inBatches has send called with batches of items, of at most pipelined and on a
// goroutine each: a node that hangs holds up only the items that travel to it.
// No batch goes to two masters of a Cluster, for go-redis gives the error of one
// to all commands of a pipeline. The caller is counted in.
func inBatches[T any](l *Locker, items []T, key func(T) string, send func([]T)) {
	if len(items) == 0 {
		return
	}
	chunks := func(items []T) {
		for batch := range slices.Chunk(items, pipelined) {
			l.branch(func() { send(batch) })
		}
	}
	if _, isCluster := l.conn.rdb.(clusterClient); !isCluster {
		chunks(items)
		return
	}
	l.branch(func() { // a client that is new asks for the slots first
		byMaster := make(map[any][]T)
		for _, item := range items {
			master := l.conn.masterOf(context.Background(), key(item))
			byMaster[master] = append(byMaster[master], item)
		}
		for _, items := range byMaster {
			chunks(items)
		}
	})
}

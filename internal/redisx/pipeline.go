package redisx

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Call is one script call of a pipeline, and its result.
type Call struct {
	Script *Script
	Keys   []string
	Args   []any

	Reply any
	Err   error
}

// Pipeline runs the calls in one round trip (one per node). Every call ends with a reply or an error. A server that
// does not know the hash of a script says so for each command; Pipeline sends those again by EVAL.
func (c *Conn) Pipeline(ctx context.Context, calls []*Call) {
	c.exchange(ctx, calls, func(bound context.Context, calls []*Call) {
		c.sendAll(bound, c.rdb.Pipeline(), calls, false)
		bySource := slices.DeleteFunc(slices.Clone(calls), func(x *Call) bool { return !HasCode(x.Err, "NOSCRIPT") })
		if len(bySource) > 0 {
			c.sendAll(bound, c.rdb.Pipeline(), bySource, true)
		}
	})
}

// exchange has run work on copies of calls, since a goroutine that is left behind may still write to them, and gives
// calls the results.
func (c *Conn) exchange(ctx context.Context, calls []*Call, run func(bound context.Context, calls []*Call)) {
	mine := make([]*Call, len(calls))
	for i, x := range calls {
		copied := *x
		mine[i] = &copied
	}
	_, err := c.Within(ctx, func(bound context.Context) (any, error) {
		run(bound, mine)
		return nil, nil //nolint:nilnil // each call carries its own result
	})
	for i, x := range calls {
		if err != nil {
			x.Err = err
		} else {
			x.Reply, x.Err = mine[i].Reply, mine[i].Err
		}
	}
}

// sendAll sends calls by p. last are commands for the end of the pipeline.
func (c *Conn) sendAll(ctx context.Context, p redis.Pipeliner, calls []*Call, bySource bool, last ...func()) {
	cmds := make([]*redis.Cmd, len(calls))
	for i, x := range calls {
		if bySource {
			cmds[i] = p.Eval(ctx, x.Script.Source, x.Keys, x.Args...)
		} else {
			cmds[i] = p.EvalSha(ctx, x.Script.SHA, x.Keys, x.Args...)
		}
	}
	for _, f := range last {
		f()
	}
	_, failed := p.Exec(ctx)
	for i, x := range calls {
		x.Reply, x.Err = replyOf(cmds[i], failed)
		c.sawUnreached(x.Err)
		x.Err = explain(x.Err)
	}
}

// TooFew is the error of a write that too few replicas acknowledged in time.
type TooFew struct {
	Got    int64
	Want   int
	Within time.Duration
}

func (e *TooFew) Error() string {
	return fmt.Sprintf("%d of %d replicas acknowledged within %s", e.Got, e.Want, e.Within.Round(time.Millisecond))
}

// KnowsMasters reports whether Confirm works with rdb: a client of one server, or of a Cluster.
func KnowsMasters(rdb Client) bool {
	_, isMaster := rdb.(master)
	_, isCluster := rdb.(clusterClient)
	return isMaster || isCluster
}

// master is a client of one server, such as *redis.Client. *redis.ClusterClient is none: its Options method returns
// another type.
type master interface {
	Pipeline() redis.Pipeliner
	Options() *redis.Options
}

// Confirm runs the calls, and then one WAIT for each master. A script writes always, and replies with written if it
// did. Every call ends with a reply that enough replicas have acknowledged, or with an error, which is a *TooFew if
// they have not. Confirm asks the masters at the same time, so that one whose replicas are away delays the others for
// no longer than within.
//
// WAIT covers what its own connection wrote last. go-redis writes a pipeline to one connection.
func (c *Conn) Confirm(ctx context.Context, calls []*Call, written int64, replicas int, within time.Duration) {
	c.exchange(ctx, calls, func(bound context.Context, calls []*Call) {
		var wg sync.WaitGroup // its goroutines end when their exchanges do, by the deadline of bound
		for at, calls := range c.byMaster(bound, calls) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				c.confirmAt(bound, at, calls, written, replicas, waitTimeout(at, within))
			}()
		}
		wg.Wait()
	})
}

// waitTimeout returns the timeout of a WAIT: within, but less than the client's read timeout.
func waitTimeout(at master, within time.Duration) time.Duration {
	if read := at.Options().ReadTimeout; read > 0 {
		within = min(within, read/2)
	}
	return max(within, time.Millisecond) // 0 would be for ever
}

// byMaster groups calls by the master of their key. It sets the error of a call whose master is not known, and leaves
// the call out.
func (c *Conn) byMaster(ctx context.Context, calls []*Call) map[master][]*Call {
	cluster, isCluster := c.rdb.(clusterClient)
	if !isCluster {
		return map[master][]*Call{c.rdb.(master): calls} //nolint:forcetypeassert // see KnowsMasters
	}
	sorted := make(map[master][]*Call)
	for _, x := range calls {
		at, err := cluster.MasterForKey(ctx, x.Keys[0])
		if x.Err = err; err == nil {
			sorted[at] = append(sorted[at], x)
		}
	}
	return sorted
}

// confirmAt sends one pipeline. It uses EVAL: a server that does not know the hash, as after a failover, would make the
// caller wait for the replicas twice. go-redis would follow a redirection, but not with the WAIT on the same
// connection: so a call whose slot has moved, or moves, fails.
func (c *Conn) confirmAt(
	ctx context.Context, at master, calls []*Call, written int64, replicas int, within time.Duration,
) {
	p := at.Pipeline()
	var acks *redis.Cmd
	c.sendAll(ctx, p, calls, true, func() { acks = p.Do(ctx, "WAIT", replicas, within.Milliseconds()) })
	got, err := acks.Int64() // also an error if WAIT got no reply
	for _, x := range calls {
		switch {
		case x.Err != nil || x.Reply != written:
		case err != nil:
			x.Err = fmt.Errorf("WAIT, which MinReplicas needs: %w", err)
		case got < int64(replicas):
			x.Err = &TooFew{Got: got, Want: replicas, Within: within}
		}
	}
}

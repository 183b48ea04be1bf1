package exchange

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// TooFew is the error of a write that too few replicas acknowledged in time.
type TooFew struct {
	Got    int64
	Want   int
	Within time.Duration
}

func (e *TooFew) Error() string {
	return fmt.Sprintf("%d of %d replicas acknowledged within %s", e.Got, e.Want, e.Within.Round(time.Millisecond))
}

// Confirm runs s for each call, and then one WAIT for each master. s writes, and replies with
// written if it did. Every call ends with a reply that enough replicas have acknowledged, or
// with an error, which is a *TooFew if they have not. Confirm asks the masters at the same
// time, so that one whose replicas are away delays the others for no longer than within.
func (c *Conn) Confirm(ctx context.Context, s *Script, written int64, calls []*Call, replicas int, within time.Duration) {
	bound := c.boundContext(ctx, time.Now())
	mine := make([]*Call, len(calls))
	for i, x := range calls {
		copied := *x // a goroutine that within abandons may still write to it
		mine[i] = &copied
	}
	_, err := c.within(ctx, bound, func() (any, error) {
		var wg sync.WaitGroup // its goroutines end when their exchanges do, by the deadline of bound
		for at, calls := range c.byMaster(bound, mine) {
			w := &replicaConfirm{conn: c, script: s, written: written, replicas: replicas, within: waitTimeout(at, within)}
			wg.Add(1)
			go func() {
				defer wg.Done()
				w.confirmAt(bound, at, calls)
			}()
		}
		wg.Wait()
		return nil, nil //nolint:nilnil // each call carries its own result
	})
	for i := range calls {
		if err == nil {
			calls[i] = mine[i]
		} else {
			calls[i] = &Call{Keys: calls[i].Keys, Args: calls[i].Args, Err: err}
		}
	}
}

// KnowsMasters reports whether Confirm works with rdb: a client of one server, or of a
// Cluster.
func KnowsMasters(rdb Client) bool {
	_, isMaster := rdb.(master)
	_, isCluster := rdb.(clusterClient)
	return isMaster || isCluster
}

// master is a client of one server, such as *redis.Client. *redis.ClusterClient is none:
// its Options method returns another type.
type master interface {
	Pipeline() redis.Pipeliner
	Options() *redis.Options
}

// waitTimeout returns the timeout of a WAIT: within, but less than the client's read timeout.
func waitTimeout(at master, within time.Duration) time.Duration {
	if read := at.Options().ReadTimeout; read > 0 {
		within = min(within, read/2)
	}
	return max(within, time.Millisecond) // 0 would be for ever
}

// byMaster groups calls by the master of their key. It sets the error of a call whose
// master is not known, and leaves the call out.
func (c *Conn) byMaster(ctx context.Context, calls []*Call) iter.Seq2[master, []*Call] {
	return func(yield func(master, []*Call) bool) {
		cluster, isCluster := c.rdb.(clusterClient)
		if !isCluster {
			yield(c.rdb.(master), calls) //nolint:forcetypeassert // see KnowsMasters
			return
		}
		sorted := make(map[*redis.Client][]*Call)
		for _, x := range calls {
			at, err := cluster.MasterForKey(ctx, x.Keys[0])
			if x.Err = err; err == nil {
				sorted[at] = append(sorted[at], x)
			}
		}
		for at, calls := range sorted {
			if !yield(at, calls) {
				return
			}
		}
	}
}

// replicaConfirm is one call of Confirm: what its goroutines share. It is immutable.
type replicaConfirm struct {
	conn     *Conn
	script   *Script
	written  int64
	replicas int
	within   time.Duration
}

// confirmAt has one master confirm calls. If a slot has moved, it follows the redirection
// once. go-redis would follow it too, but not with the WAIT on the same connection.
func (w *replicaConfirm) confirmAt(ctx context.Context, at master, calls []*Call) {
	w.sendTo(ctx, at, calls, false)
	for _, x := range calls {
		addr, asking, elsewhere := redirected(x.Err)
		if !elsewhere {
			continue
		}
		if there, ok := w.conn.masterByAddr(ctx, addr); ok {
			w.sendTo(ctx, there, []*Call{x}, asking)
		}
	}
}

// sendTo sends one pipeline, which go-redis writes to one connection. It uses EVAL, not
// EVALSHA: a server that does not know the hash, as after a failover, would make the caller
// wait for the replicas twice.
func (w *replicaConfirm) sendTo(ctx context.Context, at master, calls []*Call, asking bool) {
	p := at.Pipeline()
	cmds := make([]*redis.Cmd, len(calls))
	for i, x := range calls {
		if asking {
			p.Do(ctx, "ASKING")
		}
		cmds[i] = p.Eval(ctx, w.script.Source, x.Keys, x.Args...)
	}
	acks := p.Do(ctx, "WAIT", w.replicas, w.within.Milliseconds())
	_, failed := p.Exec(ctx)
	got, err := acks.Int64() // also an error if WAIT got no reply
	for i, x := range calls {
		x.Reply, x.Err = replyOf(cmds[i], failed)
		w.conn.unreached(x.Err)
		x.Err = w.conn.denied.describe(w.script, x.Err)
		switch {
		case x.Err != nil || x.Reply != w.written:
		case err != nil:
			x.Err = fmt.Errorf("WAIT, which MinReplicas needs: %w", err)
		case got < int64(w.replicas):
			x.Err = &TooFew{Got: got, Want: w.replicas, Within: w.within}
		}
	}
}

// redirected reads a MOVED or ASK error: the address of the node to send the command to.
// asking means that the slot is being moved, and that ASKING has to come before the command.
func redirected(err error) (addr string, asking, ok bool) {
	if err == nil {
		return "", false, false
	}
	asking = redis.HasErrorPrefix(err, "ASK ")
	if f := strings.Fields(err.Error()); len(f) == 3 && (asking || redis.HasErrorPrefix(err, "MOVED ")) {
		return f[2], asking, true
	}
	return "", false, false
}

// masterByAddr returns the master with that address. go-redis does not know a master without
// slots, to which the first slot is moving: then the caller tries again later, as in an outage.
func (c *Conn) masterByAddr(ctx context.Context, addr string) (at master, ok bool) {
	cluster, isCluster := c.rdb.(clusterClient)
	if !isCluster {
		return nil, false
	}
	masters, err := Masters(ctx, cluster)
	if err != nil {
		return nil, false
	}
	for _, at := range masters {
		if at.Options().Addr == addr {
			return at, true
		}
	}
	return nil, false
}

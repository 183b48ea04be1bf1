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

// Confirm executes s for each call, and WAIT behind them, once for each master. s
// writes, and answers with written if it did. Every call ends with a reply that enough
// replicas know of, or an error, which is a *TooFew where they do not. Masters are asked at
// once, so that one whose replicas are away holds up the others for no longer than within.
func (c *Conn) Confirm(ctx context.Context, s *Script, written int64, calls []*Call, replicas int, within time.Duration) {
	bound := c.bound(ctx)
	mine := make([]*Call, len(calls))
	for i, x := range calls {
		copied := *x // the goroutine left behind may still write into it
		mine[i] = &copied
	}
	_, err := c.within(ctx, bound, func() (any, error) {
		var wg sync.WaitGroup // its goroutines end by the bound of their exchanges
		for at, calls := range c.byMaster(bound, mine) {
			w := &confirming{conn: c, script: s, written: written, replicas: replicas, within: patienceOf(at, within)}
			wg.Add(1)
			go func() {
				defer wg.Done()
				w.confirm(bound, at, calls)
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

// KnowsMasters reports whether rdb can be asked to wait for replicas.
func KnowsMasters(rdb Client) bool {
	_, isMaster := rdb.(master)
	_, isCluster := rdb.(clusterClient)
	return isMaster || isCluster
}

// master is a client of one server. *redis.Client is one; a *redis.ClusterClient,
// whose options are others, is not.
type master interface {
	Pipeline() redis.Pipeliner
	Options() *redis.Options
}

// patienceOf bounds a WAIT by how long the client waits for an answer.
func patienceOf(at master, within time.Duration) time.Duration {
	if read := at.Options().ReadTimeout; read > 0 {
		within = min(within, read/2)
	}
	return max(within, time.Millisecond) // 0 would be for ever
}

// byMaster sorts calls by the master of their key; those without one have their
// error.
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

// confirming is how calls are confirmed.
type confirming struct {
	conn     *Conn
	script   *Script
	written  int64
	replicas int
	within   time.Duration
}

// confirm has one master confirm calls. Those whose slot is elsewhere go there,
// where go-redis would send them too, had the WAIT not to be on the same connection.
func (w *confirming) confirm(ctx context.Context, at master, calls []*Call) {
	w.send(ctx, at, calls, false)
	for _, x := range calls {
		addr, asking, elsewhere := redirected(x.Err)
		if !elsewhere {
			continue
		}
		if there, ok := w.conn.masterAt(ctx, addr); ok {
			w.send(ctx, there, []*Call{x}, asking)
		}
	}
}

// send is one pipeline, which go-redis writes to one connection. The script goes
// whole: a server that does not know its hash, as after a failover, would have us
// wait for the replicas twice.
func (w *confirming) send(ctx context.Context, at master, calls []*Call, asking bool) {
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
	got, err := acks.Int64() // an error, too, where WAIT has no reply
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

// redirected tells where a Cluster says that a slot is, and whether one has to
// ask there because it is still on its way.
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

// masterAt is the master with that address. One without any slot yet, to which
// the first is just moving, is not known by go-redis: then it is tried again
// later, as with any outage.
func (c *Conn) masterAt(ctx context.Context, addr string) (found master, ok bool) {
	cluster, isCluster := c.rdb.(clusterClient)
	if !isCluster {
		return nil, false
	}
	var mu sync.Mutex // guards found: masters are visited at once
	err := cluster.ForEachMaster(ctx, func(_ context.Context, at *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		if at.Options().Addr == addr {
			found = at
		}
		return nil
	})
	return found, err == nil && found != nil
}

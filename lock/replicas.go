package lock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
)

// With Options.MinReplicas a lease counts for as long as that many replicas of
// the key's master know of it. Whatever moves its deadline (the end of an
// acquisition, a renewal, Extend) is a pipeline on one connection to that master:
// the script confirm, and a WAIT behind it. WAIT is about what its own
// connection wrote last, and confirm always writes: so an answer of "enough"
// speaks of this deadline, and of the grant before it, for replication keeps the
// order. The master that answers is the one that has the lease, or it would have
// said "lost". A deadline that too few have acknowledged is not believed in; it
// is in Redis all the same, which errs on the safe side.

// replicasError says how many have it.
func replicasError(key string, got int64, want int, within time.Duration) error {
	return fmt.Errorf("%w: %q: %d of the %d of MinReplicas acknowledged within %s: "+
		"see that its master's replicas are connected and keep up (INFO replication), or ask for fewer", ErrNotReplicated, key, got, want, within.Round(time.Millisecond))
}

// maxReplicas is more than any master has.
const maxReplicas = 1000

// checkReplicas reports whether rdb can be asked to wait for n replicas.
func checkReplicas(rdb Client, n int) error {
	if n < 0 || n > maxReplicas {
		return fmt.Errorf("lock: Options.MinReplicas is %d: a number of replicas, %d at most, where 0 waits for none", n, maxReplicas)
	}
	_, isMaster := rdb.(master)
	_, isCluster := rdb.(clusterClient)
	if n > 0 && !isMaster && !isCluster {
		return fmt.Errorf("lock: Options.MinReplicas does not go with a %T, of which it is not known which Redis it asks: "+
			"use a *redis.Client or *redis.ClusterClient, or what embeds one", rdb)
	}
	return nil
}

// replicated is the last step of an acquisition: le, which Redis has granted and
// the renewer has in charge, is handed out once enough replicas know of it, and
// else given back.
func (m *Lock) replicated(ctx context.Context, le *Lease) (*Lease, error) {
	if m.locker.replicas == 0 {
		return le, nil
	}
	within := replicasWithin(le)
	if end, ok := ctx.Deadline(); ok {
		within = min(within, max(time.Until(end), leaveGrace)) // a grant of the last moment needs one more
	}
	held, err := m.locker.confirm(ctx, le, m.ttl, within)
	switch {
	case err == nil && held:
		return le, nil
	case err == nil:
		err = fmt.Errorf("%w: %q: it was gone when replicas were to be waited for, as after a failover that forgot it", ErrNotReplicated, m.Key())
	}
	if ctx.Err() != nil { // the caller is not kept: the release goes on beside
		m.locker.renewer.drop(le)
		m.locker.abandon(le)
		return nil, err
	}
	_ = le.giveBack(ctx) // what Redis could not be told is told again beside
	return nil, err
}

// confirm makes le last for length, by what enough replicas know. held: it was
// still ours; on an error it is as it was.
func (l *Locker) confirm(ctx context.Context, le *Lease, length, within time.Duration) (held bool, err error) {
	sent := time.Now()
	calls := []*call{{keys: le.lock.keys, args: []any{le.heldArg, length.Milliseconds()}}}
	l.conn.confirm(ctx, calls, l.replicas, within)
	switch c := calls[0]; {
	case errors.Is(c.err, ErrNotReplicated):
		return true, c.err
	case c.err != nil:
		return true, backendError("confirm", le.lock.Key(), c.err)
	case c.reply == int64(renewLost):
		l.renewer.lose(le)
		return false, nil
	case c.reply != int64(renewRenewed):
		return true, backendError("confirm", le.lock.Key(), unexpected(c.reply))
	}
	return l.renewer.extended(le, sent, length), nil
}

// acknowledged waits, with MinReplicas, until enough replicas know of what was written
// under le before. The lease is as it was: its deadline is further away than that asked
// for here.
func (l *Locker) acknowledged(ctx context.Context, le *Lease) error {
	if l.replicas == 0 {
		return nil
	}
	calls := []*call{{keys: le.lock.keys, args: []any{le.heldArg, int64(1)}}}
	l.conn.confirm(ctx, calls, l.replicas, replicasWithin(le))
	switch c := calls[0]; {
	case errors.Is(c.err, ErrNotReplicated):
		return c.err
	case c.err != nil:
		return backendError("confirm", le.lock.Key(), c.err)
	case c.reply == int64(renewLost):
		l.renewer.lose(le)
		return fmt.Errorf("%w: %q was gone when replicas were to be waited for, as after a failover that forgot it", ErrNotHeld, le.lock.name)
	case c.reply != int64(renewRenewed):
		return backendError("confirm", le.lock.Key(), unexpected(c.reply))
	}
	return nil
}

// renewals sends what renews leases: with MinReplicas the ones that count.
func (l *Locker) renewals(batch []*Lease, calls []*call) {
	if l.replicas == 0 {
		l.conn.pipeline(context.Background(), renewScript, calls)
		return
	}
	within := inside.ReplicasWithin
	for _, le := range batch {
		within = min(within, replicasWithin(le))
	}
	l.conn.confirm(context.Background(), calls, l.replicas, within)
}

// replicasWithin leaves time to try a renewal again before the lease ends.
func replicasWithin(le *Lease) time.Duration { return min(inside.ReplicasWithin, le.lock.ttl/4) }

// confirm executes the script confirm for each call, and WAIT behind them, once
// for each master. Every call ends with a reply that enough replicas know of, or
// an error. Masters are asked at once, so that one whose replicas are away holds
// up the others for no longer than within.
func (c *conn) confirm(ctx context.Context, calls []*call, replicas int, within time.Duration) {
	bound := c.bound(ctx)
	mine := make([]*call, len(calls))
	for i, x := range calls {
		copied := *x // the goroutine left behind may still write into it
		mine[i] = &copied
	}
	_, err := c.within(ctx, bound, func() (any, error) {
		var wg sync.WaitGroup // its goroutines end by the bound of their exchanges
		for at, calls := range c.byMaster(bound, mine) {
			w := &confirming{conn: c, replicas: replicas, within: patienceOf(at, within)}
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
			calls[i] = &call{keys: calls[i].keys, args: calls[i].args, err: err}
		}
	}
}

// master is a client of one server. *redis.Client is one; a *redis.ClusterClient,
// whose options are others, is not.
type master interface {
	Pipeline() redis.Pipeliner
	Options() *redis.Options
}

// clusterClient is what a *redis.ClusterClient has, and what embeds one.
type clusterClient interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ForEachMaster(ctx context.Context, f func(ctx context.Context, master *redis.Client) error) error
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
func (c *conn) byMaster(ctx context.Context, calls []*call) iter.Seq2[master, []*call] {
	return func(yield func(master, []*call) bool) {
		cluster, isCluster := c.rdb.(clusterClient)
		if !isCluster {
			yield(c.rdb.(master), calls) //nolint:forcetypeassert // else New had refused, see checkReplicas
			return
		}
		sorted := make(map[*redis.Client][]*call)
		for _, x := range calls {
			at, err := cluster.MasterForKey(ctx, x.keys[0])
			if x.err = err; err == nil {
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
	conn     *conn
	replicas int
	within   time.Duration
}

// confirm has one master confirm calls. Those whose slot is elsewhere go there,
// where go-redis would send them too, had the WAIT not to be on the same connection.
func (w *confirming) confirm(ctx context.Context, at master, calls []*call) {
	w.send(ctx, at, calls, false)
	for _, x := range calls {
		addr, asking, elsewhere := redirected(x.err)
		if !elsewhere {
			continue
		}
		if there, ok := w.conn.masterAt(ctx, addr); ok {
			w.send(ctx, there, []*call{x}, asking)
		}
	}
}

// send is one pipeline, which go-redis writes to one connection. The script goes
// whole: a server that does not know its hash, as after a failover, would have us
// wait for the replicas twice.
func (w *confirming) send(ctx context.Context, at master, calls []*call, asking bool) {
	p := at.Pipeline()
	cmds := make([]*redis.Cmd, len(calls))
	for i, x := range calls {
		if asking {
			p.Do(ctx, "ASKING")
		}
		cmds[i] = p.Eval(ctx, confirmScript.src, x.keys, x.args...)
	}
	acks := p.Do(ctx, "WAIT", w.replicas, w.within.Milliseconds())
	_, failed := p.Exec(ctx)
	got, err := acks.Int64() // an error, too, where WAIT has no reply
	for i, x := range calls {
		x.reply, x.err = replyOf(cmds[i], failed)
		w.conn.unreached(x.err)
		x.err = w.conn.denied.describe(confirmScript, x.err)
		switch {
		case x.err != nil || x.reply != int64(renewRenewed):
		case err != nil:
			x.err = fmt.Errorf("WAIT, which MinReplicas needs: %w", err)
		case got < int64(w.replicas):
			x.err = replicasError(x.keys[0], got, w.replicas, w.within)
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
func (c *conn) masterAt(ctx context.Context, addr string) (found master, ok bool) {
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

package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/wire"
)

// With Options.MinReplicas a lease counts only while that many replicas of the key's master
// know of it. The end of an acquisition, a renewal and Extend each send one pipeline on one
// connection to that master: the script renew with a trace, and a WAIT.
//
// WAIT covers what its own connection wrote last, and with a trace renew always writes.
// Replication keeps the order. So enough acknowledgements prove that the replicas have this
// deadline, and the grant before it. The replying master has the lease, or renew would have
// replied "lost". If too few replicas acknowledge, the lease keeps its old deadline here. Redis may
// keep the lock taken for longer, which is safe.

// renewCall asks that le lasts for length; with MinReplicas also that the script writes.
func renewCall(le *Lease, length time.Duration) *exchange.Call {
	return &exchange.Call{Keys: le.lock.keys, Args: wire.RenewArgs(&le.member, length, le.lock.locker.replicas > 0)}
}

// renewReplicated runs the script renew for each call, made by renewCall, and waits for
// replicas; see exchange.Conn.Confirm. A call has ErrNotReplicated if too few acknowledged.
func (l *Locker) renewReplicated(ctx context.Context, calls []*exchange.Call, within time.Duration) {
	l.conn.Confirm(ctx, wire.RenewScript, wire.RenewRenewed, calls, l.replicas, within)
	for _, c := range calls {
		var few *exchange.TooFew
		if errors.As(c.Err, &few) {
			c.Err = fmt.Errorf("%w: %q: %d of the %d of MinReplicas acknowledged within %s: "+
				"see that its master's replicas are connected and keep up (INFO replication), or ask for fewer",
				ErrNotReplicated, c.Keys[0], few.Got, few.Want, few.Within.Round(time.Millisecond))
		}
	}
}

// maxReplicas is more than any master has.
const maxReplicas = 1000

// checkReplicas reports whether rdb can be asked to wait for n replicas.
func checkReplicas(rdb Client, n int) error {
	if n < 0 || n > maxReplicas {
		return fmt.Errorf("lock: Options.MinReplicas is %d: a number of replicas, %d at most, where 0 waits for none", n, maxReplicas)
	}
	if n > 0 && !exchange.KnowsMasters(rdb) {
		return fmt.Errorf("lock: Options.MinReplicas does not go with a %T, of which it is not known which Redis it asks: "+
			"use a *redis.Client or *redis.ClusterClient, or what embeds one", rdb)
	}
	return nil
}

// handOutReplicated is the last step of an acquisition. It returns le, which Redis has
// granted and the renewer renews, once enough replicas know of it. Otherwise it gives le
// back and returns an error.
func (m *Lock) handOutReplicated(ctx context.Context, le *Lease) (*Lease, error) {
	if m.locker.replicas == 0 {
		return le, nil
	}
	within := replicasWithin(le)
	if end, ok := ctx.Deadline(); ok {
		within = min(within, max(time.Until(end), leaveGrace)) // a grant just before the end gets leaveGrace
	}
	held, err := m.locker.extend(ctx, le, m.ttl, within)
	switch {
	case err == nil && held:
		return le, nil
	case err == nil:
		err = fmt.Errorf("%w: %q: it was gone when replicas were to be waited for, as after a failover that forgot it", ErrNotReplicated, m.Key())
	}
	if ctx.Err() != nil { // return at once; the release runs in the background
		m.locker.renewer.drop(le, time.Now())
		m.locker.abandon(le)
		return nil, err
	}
	_ = le.giveBack(ctx) // after an error the release is repeated in the background
	return nil, err
}

// extend makes le last for length, with MinReplicas once enough replicas know of that. held is
// false if the lease was lost. On an error le is unchanged.
func (l *Locker) extend(ctx context.Context, le *Lease, length, within time.Duration) (held bool, err error) {
	sent := time.Now()
	c := renewCall(le, length)
	if l.replicas > 0 {
		calls := []*exchange.Call{c}
		l.renewReplicated(ctx, calls, within)
		c = calls[0] // another one: see Confirm
	} else {
		c.Reply, c.Err = l.conn.RunBounded(toItsEnd(ctx, sent), wire.RenewScript, c.Keys, c.Args)
	}
	code, err := wire.CodeOf(c.Reply, wire.RenewRenewed)
	switch {
	case errors.Is(c.Err, ErrNotReplicated):
		return true, c.Err
	case c.Err != nil:
		return true, exchange.Failed("renew", le.lock.Key(), c.Err)
	case err != nil:
		return true, exchange.Failed("renew", le.lock.Key(), err)
	case code == wire.RenewLost:
		l.renewer.lose(le)
		return false, nil
	}
	return l.renewer.noteRenewed(le, sent, length), nil
}

// awaitReplicas waits, with MinReplicas, until enough replicas know of what was written
// under le before. It asks for a length of 1 ms, and renew never shortens a lease.
func (l *Locker) awaitReplicas(ctx context.Context, le *Lease) error {
	if l.replicas == 0 {
		return nil
	}
	held, err := l.extend(ctx, le, time.Millisecond, replicasWithin(le))
	if err == nil && !held {
		err = fmt.Errorf("%w: %q was gone when replicas were to be waited for, as after a failover that forgot it", ErrNotHeld, le.lock.name)
	}
	return err
}

// sendRenewals renews each lease of batch for its TTL, and returns the calls with their
// replies, in that order. With MinReplicas a renewal succeeds only if enough replicas
// acknowledge it.
func (l *Locker) sendRenewals(batch []*Lease) []*exchange.Call {
	calls := make([]*exchange.Call, len(batch))
	within := inside.ReplicasWithin
	for i, le := range batch {
		calls[i] = renewCall(le, le.lock.ttl)
		within = min(within, replicasWithin(le))
	}
	if l.replicas == 0 {
		l.conn.Pipeline(context.Background(), wire.RenewScript, calls)
	} else {
		l.renewReplicated(context.Background(), calls, within)
	}
	return calls
}

// replicasWithin returns how long replicas may take to acknowledge. It leaves time to try a
// renewal again before the lease ends.
func replicasWithin(le *Lease) time.Duration { return min(inside.ReplicasWithin, le.lock.ttl/4) }

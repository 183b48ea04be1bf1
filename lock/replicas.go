package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/exchange"
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

// confirmAll executes confirm for each call; see exchange.Conn.Confirm.
func (l *Locker) confirmAll(ctx context.Context, calls []*exchange.Call, within time.Duration) {
	l.conn.Confirm(ctx, confirmScript, renewRenewed, calls, l.replicas, within)
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
	calls := []*exchange.Call{{Keys: le.lock.keys, Args: []any{le.heldArg, length.Milliseconds()}}}
	l.confirmAll(ctx, calls, within)
	switch c := calls[0]; {
	case errors.Is(c.Err, ErrNotReplicated):
		return true, c.Err
	case c.Err != nil:
		return true, backendError("confirm", le.lock.Key(), c.Err)
	case c.Reply == int64(renewLost):
		l.renewer.lose(le)
		return false, nil
	case c.Reply != int64(renewRenewed):
		return true, backendError("confirm", le.lock.Key(), unexpected(c.Reply))
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
	calls := []*exchange.Call{{Keys: le.lock.keys, Args: []any{le.heldArg, int64(1)}}}
	l.confirmAll(ctx, calls, replicasWithin(le))
	switch c := calls[0]; {
	case errors.Is(c.Err, ErrNotReplicated):
		return c.Err
	case c.Err != nil:
		return backendError("confirm", le.lock.Key(), c.Err)
	case c.Reply == int64(renewLost):
		l.renewer.lose(le)
		return fmt.Errorf("%w: %q was gone when replicas were to be waited for, as after a failover that forgot it", ErrNotHeld, le.lock.name)
	case c.Reply != int64(renewRenewed):
		return backendError("confirm", le.lock.Key(), unexpected(c.Reply))
	}
	return nil
}

// renewals sends what renews leases: with MinReplicas the ones that count.
func (l *Locker) renewals(batch []*Lease, calls []*exchange.Call) {
	if l.replicas == 0 {
		l.conn.Pipeline(context.Background(), renewScript, calls)
		return
	}
	within := inside.ReplicasWithin
	for _, le := range batch {
		within = min(within, replicasWithin(le))
	}
	l.confirmAll(context.Background(), calls, within)
}

// replicasWithin leaves time to try a renewal again before the lease ends.
func replicasWithin(le *Lease) time.Duration { return min(inside.ReplicasWithin, le.lock.ttl/4) }

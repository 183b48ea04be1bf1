package lock

import (
	"context"
	"fmt"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/operate"
	"github.com/automutex/automutex/internal/wire"
)

// Break takes the lock away from the holder with that token, and grants the slot to the first
// waiter. It returns false if there is no such holder. [Lock.Holders] lists the tokens.
//
// The contexts of the holder's lease end with cause ErrLost. When they end depends on where
// the holder is:
//   - in this Locker: before Break returns;
//   - in another Locker with a subscription: as soon as the message arrives. A Locker has a
//     subscription while one of its callers waits in any line or holds a lease for the policy
//     Replace of package automutex, and ten seconds longer;
//   - in any other Locker: at its next renewal, a third of the lease's TTL later at
//     most, or at its deadline if the lease is not renewed.
//
// Until then the holder may work beside the next one. Break a lock only if its holder is known
// to hang, and let the fence protect what the holder writes. After ErrBackend the lock may be
// broken or not.
func (m *Lock) Break(ctx context.Context, token string) (bool, error) {
	if token == "" {
		return false, fmt.Errorf("lock: %q: Break: the token is empty; Holders returns the tokens, BreakAll breaks all holders", m.name)
	}
	n, err := m.breakUp(ctx, token, wire.BreakSlots, wire.AnyHolder)
	return n > 0, err
}

// BreakAll is [Lock.Break] for every holder, and grants the free slots to waiters. It also
// opens a gate that a hold or a cooldown has closed, but not one that a [Rate] has closed. It
// returns the number of holders it broke, plus one if it opened the gate.
func (m *Lock) BreakAll(ctx context.Context) (int, error) {
	n, err := m.breakUp(ctx, "", wire.BreakSlots, wire.AnyHolder)
	return max(n, 0), err
}

// openGate opens a gate that a hold or a cooldown has closed, and grants free slots to
// waiters. It returns false if there was no such gate. Holders keep their slots. A gate that
// a [Rate] has closed stays closed.
func (m *Lock) openGate(ctx context.Context) (bool, error) {
	n, err := m.breakUp(ctx, "", wire.BreakGate, wire.AnyHolder)
	return n > 0, err
}

// Delete is [Lock.BreakAll], and also deletes the line and the rate's count. Live waiters ask
// again within a second, and form a new line. A parked task loses its place: it runs when
// asynq retries it.
func (m *Lock) Delete(ctx context.Context) error {
	_, err := m.breakUp(ctx, "", wire.BreakKey, wire.AnyHolder)
	return err
}

// deleteFrom is Delete, on the condition that every holder has one of these tokens. If
// another holder has the lock it changes nothing, and the error Is [ErrBusy]: so nobody
// loses the lock who took it after the caller listed the holders. It returns false if Redis
// stores nothing of the lock.
func (m *Lock) deleteFrom(ctx context.Context, tokens ...string) (bool, error) {
	n, err := m.breakUp(ctx, "", wire.BreakKey, wire.KnownHolders(tokens))
	switch {
	case err != nil:
		return false, err
	case n == wire.BreakUnknown:
		return false, fmt.Errorf("lock: %q: not deleted, a holder is none of those that were named: %w", m.name, ErrBusy)
	}
	return n != wire.BreakNothing, nil
}

// breakUp runs the break script. It returns how many holders it broke, plus one if it opened
// the gate; or wire.BreakUnknown or wire.BreakNothing.
func (m *Lock) breakUp(ctx context.Context, token string, what int, known string) (int, error) {
	if err := m.enterControlled(ctx); err != nil {
		return 0, err
	}
	return m.operateBreak(ctx, wire.BreakScript, wire.BreakArgs(m.slots(), token, what, known))
}

// operateBreak is operate for a script that removes holders: it ends those of their leases
// that this Locker holds. The reply is the number of slots or values that the script removed,
// the number of tokens that follow, and these. A negative number says why it removed none.
func (m *Lock) operateBreak(ctx context.Context, s *exchange.Script, args []any) (int, error) {
	reply, err := m.operate(ctx, s, args)
	if err != nil {
		return 0, err
	}
	taken, tokens, err := wire.ParseBreak(reply)
	if err != nil {
		return 0, exchange.Failed(s.Name, m.Key(), err)
	}
	for _, token := range tokens {
		m.locker.renewer.loseBroken(token) // does nothing for a lease of another Locker
	}
	return taken, nil
}

// operate runs a script on the lock's key and returns its reply.
func (m *Lock) operate(ctx context.Context, s *exchange.Script, args []any) (any, error) {
	if m.err != nil {
		return nil, m.err
	}
	return m.locker.runner().Run(ctx, s, m.keys, args)
}

// operateCode is operate for a script whose reply is a number from 0 to most.
func (m *Lock) operateCode(ctx context.Context, s *exchange.Script, args []any, most int64) (int64, error) {
	if m.err != nil {
		return 0, m.err
	}
	return m.locker.runner().Code(ctx, s, m.keys, args, most)
}

func (l *Locker) runner() operate.Runner { return operate.Runner{Life: l.life, Conn: l.conn} }

// walker walks the locks under the Locker's prefix.
func (l *Locker) walker() operate.Walker {
	return operate.Walker{Runner: l.runner(), Client: l.rdb, Prefix: l.prefix, Besides: l.controls.Keys[0]}
}

package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/operate"
	"github.com/automutex/automutex/internal/wire"
)

// Holder is one holder of a lock, as others see it.
type Holder struct {
	// Token identifies the lease; see [Lease.Token].
	Token string
	// Owner is the holder's label ([Options].Owner).
	Owner string
	// Note is the holder's note; empty: none.
	Note string
	// ExpiresIn is the time until the lease's deadline, which a renewal moves.
	ExpiresIn time.Duration
}

// maxHolders bounds what Holders lists.
const maxHolders = operate.MaxHolders

// Locked reports whether [Lock.Available] returns 0. The result may be outdated at once: to
// act on it, take the lock. After an error (ErrBackend) it is false.
func (m *Lock) Locked(ctx context.Context) (bool, error) {
	n, err := m.Available(ctx)
	return n == 0 && err == nil, err
}

// Available returns the number of free slots; 0 while the lock is paused or its gate is
// closed. A holder whose deadline has passed does not count. The result may be outdated at
// once. After an error it is 0.
func (m *Lock) Available(ctx context.Context) (int, error) {
	if err := m.enterControlled(ctx); err != nil {
		return 0, err
	}
	info, err := m.inspect(ctx, 0, "")
	if err != nil || info.Gate.OpensIn > 0 {
		return 0, err
	}
	return max(0, m.slots()-info.Held), nil
}

// Holders returns the holders of the lock, at most 1,000, the earliest deadline first. It
// returns nil if nobody holds the lock.
func (m *Lock) Holders(ctx context.Context) ([]Holder, error) {
	info, err := m.inspect(ctx, maxHolders, "")
	if len(info.Holders) == 0 {
		return nil, err
	}
	holders := make([]Holder, 0, len(info.Holders))
	for _, h := range info.Holders {
		holders = append(holders, Holder{Token: h.Token, Owner: h.Owner, Note: h.Note, ExpiresIn: h.ExpiresIn})
	}
	return holders, err
}

// Waiting returns the number of waiters in line. A waiter whose process died counts for up to
// three seconds. Parked tasks do not count.
func (m *Lock) Waiting(ctx context.Context) (int, error) {
	info, err := m.inspect(ctx, 0, "")
	return info.Waiting, err
}

// inspectAll returns all that Redis stores of the lock, in one exchange. Place is that of the
// handle's own [Note].
func (m *Lock) inspectAll(ctx context.Context) (inside.Info, error) {
	return m.inspect(ctx, maxHolders, m.note)
}

func (m *Lock) inspect(ctx context.Context, most int, note string) (inside.Info, error) {
	ticket := int64(0)
	if m.order != nil && note != "" {
		ticket = m.order.Ticket
	}
	reply, err := m.operate(ctx, wire.InspectScript, wire.InspectArgs(most, note, ticket))
	if err != nil {
		return inside.Info{}, err
	}
	info, err := wire.ParseInspect(m.Key(), reply)
	if err != nil {
		return inside.Info{}, exchange.Failed("inspect", m.Key(), err)
	}
	return info, nil
}

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
// asynq retries it. An ordered key forgets its tasks' places, and that one of them is held or has ended: its tasks run in the
// order in which they come.
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

func (l *Locker) runner() operate.Runner { return operate.Runner{Life: l.life, Conn: l.conn} }

// walker walks the locks under the Locker's prefix.
func (l *Locker) walker() operate.Walker {
	return operate.Walker{Runner: l.runner(), Client: l.rdb, Prefix: l.prefix, Besides: l.controls.Keys[0]}
}

// byKey returns the lock whose Redis key is key, as list and [Lock.Key] return it, for
// operators. If key does not have the form of a lock's key under the Locker's prefix, that
// is the error of every operation.
//
// A key does not say how many may hold the lock, nor whether [Locker.Lead] uses it, which
// ignores a control's limit. So byKey assumes one holder, whatever limit a control sets. Locked
// and Available use that number. If Break frees several slots of a semaphore, it grants one,
// and waiters get the others when they ask again, within a second.
func (l *Locker) byKey(key string) *Lock {
	name, err := operate.ParseKey(l.prefix, key)
	if err != nil {
		return &Lock{locker: l, kind: lockKind{}, err: errors.Join(l.life.Unfit(), err), keys: []string{key}}
	}
	m := l.Mutex(name)
	m.keepsLimit = true
	m.keys = []string{key} // the name stands in it as it is: escaped, or a hash
	return m
}

// listLine returns the first entries of the line, as many as most; see [operate.Runner.Line]. info is what inspect has
// returned.
func (m *Lock) listLine(ctx context.Context, info inside.Info, most int) ([]inside.Waiter, error) {
	if m.err != nil {
		return nil, m.err
	}
	return m.locker.runner().Line(ctx, m.locker.rdb, m.Key(), info, most)
}

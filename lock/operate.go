package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
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
const maxHolders = engine.MaxHolders

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
	if m.err != nil {
		return 0, m.err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := m.locker.engine.Know(ctx, m.Key()); err != nil {
		return 0, err
	}
	info, err := m.inspect(ctx, 0, "")
	if err != nil || info.Gate.OpensIn > 0 {
		return 0, err
	}
	return max(0, m.locker.controls.Slots(m.Key(), m.request.Limit, m.request.Fixed)-info.Held), nil
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

func (m *Lock) inspect(ctx context.Context, most int, note string) (inside.Info, error) {
	if m.err != nil {
		return inside.Info{}, m.err
	}
	nonce := ""
	if m.request.Order != nil {
		nonce = m.request.Order.Nonce
	}
	return m.locker.engine.Inspect(ctx, m.ref(), most, note, nonce)
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
		return false, fmt.Errorf("lock: %q: Break: the token is empty; Holders returns the tokens, BreakAll breaks all holders", m.request.Name)
	}
	n, err := m.breakUp(ctx, token, engine.BreakSlots)
	return n > 0, err
}

// BreakAll is [Lock.Break] for every holder, and grants the free slots to waiters. It also
// opens a gate that a hold or a cooldown has closed, but not one that a [Rate] has closed. It
// returns the number of holders it broke, plus one if it opened the gate.
func (m *Lock) BreakAll(ctx context.Context) (int, error) {
	return m.breakUp(ctx, "", engine.BreakSlots)
}

// openGate opens a gate that a hold or a cooldown has closed, and grants free slots to
// waiters. It returns false if there was no such gate. Holders keep their slots. A gate that
// a [Rate] has closed stays closed.
func (m *Lock) openGate(ctx context.Context) (bool, error) {
	n, err := m.breakUp(ctx, "", engine.BreakGate)
	return n > 0, err
}

// Delete is [Lock.BreakAll], and also deletes the line and the rate's count. Live waiters ask
// again within a second, and form a new line. A parked task loses its place: it runs when
// asynq retries it. An ordered key forgets its tasks' places, and that one of them is held or has ended: its tasks run in the
// order in which they come.
func (m *Lock) Delete(ctx context.Context) error {
	_, err := m.breakUp(ctx, "", engine.BreakKey)
	return err
}

// breakUp removes what how names, and returns how much it was.
func (m *Lock) breakUp(ctx context.Context, token string, how engine.BreakKind) (int, error) {
	if m.err != nil {
		return 0, m.err
	}
	n, _, err := m.locker.engine.Break(ctx, m.ref(), token, how)
	return max(n, 0), err
}

// byKey returns the lock whose main Redis key is key, as list and [Lock.Key] return it, for
// operators. If key does not have the form of a lock's key under the Locker's prefix, that
// is the error of every operation.
//
// A key does not say how many may hold the lock, nor whether [Locker.Lead] uses it, which ignores
// a control's limit. So byKey assumes one holder: if Break frees several slots of a semaphore, it
// grants one, and waiters get the others when they ask again, within a second.
func (l *Locker) byKey(key string) *Lock {
	name, err := engine.ParseKey(l.prefix, key)
	if err != nil {
		return &Lock{locker: l, err: errors.Join(l.life.Unfit(), err), request: engine.Request{Ref: engine.Ref{Key: key, Limit: 1}}}
	}
	m := l.Mutex(name)
	r := &m.request
	r.Key = key // the name stands in it as it is: escaped, or a hash
	r.Fixed = true
	return m
}

// ref is the lock for the calls of operators. They see, and delete, what there may be of an ordered key.
func (m *Lock) ref() engine.Ref {
	r := m.request.Ref
	r.Ordered = !r.Pool
	return r
}

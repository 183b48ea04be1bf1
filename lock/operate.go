package lock

import (
	"context"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
)

// Holder is one holder of a lock, as others see it.
type Holder struct {
	Token     string        // identifies the lease; see [Lease.Token]
	Owner     string        // the holder's label ([Options].Owner)
	Note      string        // the holder's note; empty: none
	ExpiresIn time.Duration // the time until the lease's deadline, which a renewal moves
}

// Locked reports whether [Lock.Available] returns 0. After an error (ErrBackend) it is false.
func (m *Lock) Locked(ctx context.Context) (bool, error) {
	n, err := m.Available(ctx)
	return n == 0 && err == nil, err
}

// Available returns the number of free slots; 0 while the lock is paused or its gate is closed. A holder whose deadline
// has passed does not count. The result may be outdated at once: to act on it, take the lock. After an error it is 0.
func (m *Lock) Available(ctx context.Context) (int, error) {
	h := inside.At(m)
	if h.Err != nil {
		return 0, h.Err
	}
	return h.Engine.Available(ctx, h.Request.Ref)
}

// Holders returns the holders of the lock, at most 1,000, the earliest deadline first. It returns nil if nobody holds
// the lock.
func (m *Lock) Holders(ctx context.Context) ([]Holder, error) {
	info, err := m.inspect(ctx, engine.MaxHolders)
	if len(info.Holders) == 0 {
		return nil, err
	}
	holders := make([]Holder, 0, len(info.Holders))
	for _, h := range info.Holders {
		holders = append(holders, Holder(h))
	}
	return holders, err
}

// Waiting returns the number of waiters in line. A waiter whose process died counts for up to three seconds; behind the
// first 100 until those before it have left. Parked tasks do not count.
func (m *Lock) Waiting(ctx context.Context) (int, error) {
	info, err := m.inspect(ctx, 0)
	return info.Waiting, err
}

func (m *Lock) inspect(ctx context.Context, most int) (engine.Info, error) {
	h := inside.At(m)
	if h.Err != nil {
		return engine.Info{}, h.Err
	}
	return h.Engine.Inspect(ctx, h.Request.Ref, most)
}

// Break takes the lock away from the holder with that token, and grants the slot to the first waiter. It returns false
// if there is no such holder. [Lock.Holders] lists the tokens.
//
// The contexts of the holder's lease end with cause ErrLost: in this Locker before Break returns; in another one as
// soon as a message arrives, if one of its callers has waited for any lock, else at its next renewal, a third of the
// TTL later at most, or at its deadline if the lease is not renewed. Until then the holder may work beside the next
// one. Break a lock only if its holder is known to hang, and let the fence protect what the holder writes. After
// ErrBackend the lock may be broken or not.
func (m *Lock) Break(ctx context.Context, token string) (bool, error) {
	if token == "" {
		return false, fmt.Errorf("lock: %q: Break: the token is empty; Holders returns the tokens, BreakAll breaks all "+
			"holders", m.name())
	}
	n, err := m.breakUp(ctx, engine.BreakHolders, token)
	return n > 0, err
}

// BreakAll is [Lock.Break] for every holder, and grants the free slots to waiters, who keep them. It also opens a gate
// that CloseGate or a cooldown has closed, but not one that a [Rate] has closed. It returns the number of holders it
// broke, also with an error, plus one if it opened the gate.
func (m *Lock) BreakAll(ctx context.Context) (int, error) {
	return m.breakUp(ctx, engine.BreakAll)
}

// Delete is [Lock.BreakAll], and also deletes the line and the rate's count. Live waiters ask again within a second,
// and form a new line. A parked task loses its place: it runs when asynq retries it. An ordered key forgets its tasks'
// places, and that one of them is held or has ended: its tasks run in the order in which they come.
func (m *Lock) Delete(ctx context.Context) error {
	_, err := m.breakUp(ctx, engine.BreakKey)
	return err
}

func (m *Lock) breakUp(ctx context.Context, how engine.BreakKind, tokens ...string) (int, error) {
	h := inside.At(m)
	if h.Err != nil {
		return 0, h.Err
	}
	return h.Engine.Break(ctx, h.Request.Ref, how, tokens...)
}

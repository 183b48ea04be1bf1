package lock

import (
	"context"
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

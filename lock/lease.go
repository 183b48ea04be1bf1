package lock

import (
	"context"
	"time"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
)

// Lease is the right of one holder to a lock, until a deadline. It is renewed in the background until Unlock, MaxHold
// or Locker.Close. A lease whose deadline passes without a renewal is lost, and stays lost. Safe for concurrent use.
type Lease struct{ held }

type held = inside.Of[*engine.Lease]

func (le *Lease) inner() *engine.Lease { return *inside.At(le) }

type leaseKey struct{}

// FromContext returns the lease that [Lock.Do], [With] or [Lease.Bind] bound to ctx; of several, the one bound last. It
// returns nil and false if there is none.
func FromContext(ctx context.Context) (*Lease, bool) {
	le, ok := ctx.Value(leaseKey{}).(*Lease)
	return le, ok
}

// Fence returns a number that grows from holder to holder of a mutex with the option [Fenced]. Send it with each write,
// and have the receiver refuse a number lower than one that it has seen. A semaphore's numbers differ, and order
// nothing: an ask that was sent again gets a later one than who came after it. docs/guarantees.md lists the conditions.
// Fence does no I/O, and works after the lease has ended. ErrNotFenced: the lock was made without Fenced.
func (le *Lease) Fence() (int64, error) { return le.inner().Fence() }

// Token returns the text that identifies this lease. No two leases have the same token.
func (le *Lease) Token() string { return le.inner().Token() }

// Deadline returns the time until which the lease is certainly held, on the local monotonic clock. Each renewal moves
// it.
func (le *Lease) Deadline() time.Time { return le.inner().Deadline() }

// Bind returns a context derived from parent that ends when the lease does: with cause ErrLost if the lease is lost,
// and with context.Canceled if it is released. If the lease has ended already, so has the context.
func (le *Lease) Bind(parent context.Context) context.Context {
	return le.inner().Bind(context.WithValue(parent, leaseKey{}, le))
}

// Held reports whether the lease is still held, by the local clock. It does no I/O.
func (le *Lease) Held() bool { return le.inner().Held() }

// Extend makes the lease last at least d from now, or until its MaxHold, and never shortens it. d is more than 0 and at
// most ten years, and is rounded up to whole milliseconds. Extend also works after ctx has ended.
//
// ErrNotHeld: the lease has ended. ErrBackend: it is not known whether Redis has extended the lease. ErrNotReplicated:
// too few replicas have the new deadline. After either of the last two this process keeps the old deadline, but Redis
// may keep the lock taken for d, or until Unlock.
func (le *Lease) Extend(ctx context.Context, d time.Duration) error { return le.inner().Extend(ctx, d) }

// Unlock releases the lock and ends the lease, whatever it returns:
//
//   - nil: the lock was held until now.
//   - ErrNotHeld: the lease had ended before: it was unlocked or lost. A later holder of the lock is not affected.
//   - ErrBackend: Redis did not answer, or refused. Unlock is tried again in the background until the lease's deadline,
//     at which the slot is free in any case. If the lease was lost before, the error Is ErrNotHeld, too.
//
// Unlock uses only the values of ctx, so it works after ctx has ended.
func (le *Lease) Unlock(ctx context.Context) error {
	_, err := le.Release(ctx)
	return err
}

// Release is [Lease.Unlock], and returns the number of slots that are free now, after waiters got theirs. After
// ErrBackend it is 0.
func (le *Lease) Release(ctx context.Context) (free int, err error) {
	return le.inner().Release(ctx, engine.Ending{})
}

// Cooldown is [Lease.Unlock], and closes the lock's gate for d from now: nobody gets the lock in that time, even if
// slots are free. Other holders go on. Cooldown never makes a gate open earlier. d is rounded up to whole milliseconds;
// more than ten years count as ten. If d is 0 or less, Cooldown is Unlock. After ErrNotHeld the gate is unchanged. The
// cooldown ends d after the call; if the command had to be sent again, up to 5 s later.
func (le *Lease) Cooldown(ctx context.Context, d time.Duration) error {
	_, err := le.inner().Release(ctx, engine.Ending{Cooldown: d})
	return err
}

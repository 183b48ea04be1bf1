package lock

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
)

// claim is a mark beside a lock that reserves its key, long before the lock is taken. The
// producers of package unique use it to enqueue one task for a key. A claim is independent of
// the lock's holders, and its Redis key is in the same Cluster slot. It has a holder, which
// is any text, a deadline by Redis' clock, and an age. Safe for concurrent use.
type claim struct{ m *Lock }

// claim returns the claim beside the lock with that Redis key, as [Lock.Key] returns it.
func (l *Locker) claim(key string) *claim {
	m := l.Semaphore(key, 1)
	m.keys = []string{key + ":claim"}
	return &claim{m}
}

// Key returns the Redis key of the claim.
func (c *claim) Key() string { return c.m.Key() }

// Lock returns a lock for producers that change the claimed task in several steps. Workers
// do not take it.
func (c *claim) Lock(options ...Option) *Lock {
	m := c.m.locker.Semaphore(c.m.name, 1, options...)
	m.keys = []string{c.Key() + ":lock"}
	return m
}

// Take sets the claim for holder, unless another holder has it, and returns the claim that
// stands now: Holder says whose it is. The claim lasts for length, from a millisecond to
// MaxTTL. If instead is not empty, Take also replaces a claim of that holder. With instead
// the same as holder, the holder's own claim begins anew.
//
// After an error the claim may be set or not.
func (c *claim) Take(ctx context.Context, holder, instead string, length time.Duration) (inside.Claimed, error) {
	if holder == "" || length < time.Millisecond || length > inside.MaxTTL {
		return inside.Claimed{}, c.unfit(holder, length)
	}
	reply, err := c.m.operate(ctx, claimTakeScript, []any{holder, instead, length.Milliseconds()})
	if err != nil {
		return inside.Claimed{}, err
	}
	return c.taken(reply, holder)
}

// taken reads a reply of the script claim_take.
func (c *claim) taken(reply any, holder string) (inside.Claimed, error) {
	if reply == int64(0) {
		return inside.Claimed{Holder: holder}, nil
	}
	f := listOf(reply)
	standing := inside.Claimed{Holder: f.text(0), Age: f.ms(1), Confirmed: f.text(2) == "enqueued"}
	if err := f.err(reply); err != nil {
		return inside.Claimed{}, backendError("take", c.Key(), err)
	}
	return standing, nil
}

// TakeFree sets the claim if there is none, with one plain SET. false means that a claim
// stands. It may be the caller's own, since go-redis sends a command again if its reply was
// lost; Take then says whose it is.
func (c *claim) TakeFree(ctx context.Context, holder string, length time.Duration) (bool, error) {
	if holder == "" || length < time.Millisecond || length > inside.MaxTTL {
		return false, c.unfit(holder, length)
	}
	l := c.m.locker
	if c.m.err != nil {
		return false, c.m.err
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if err := l.enter(); err != nil {
		return false, err
	}
	defer l.work.Done()
	set := &pendingSet{Set: exchange.Set{ // in the form that claim.lua knows
		Key:   c.Key(),
		Value: "0 " + strconv.FormatInt(length.Milliseconds(), 10) + " enqueuing " + holder,
		Life:  length + time.Second,
	}}
	taken, err := l.gather.run(ctx, l, set)
	if err != nil {
		return false, backendError("take", c.Key(), err)
	}
	return taken, nil
}

func (c *claim) unfit(holder string, length time.Duration) error {
	return fmt.Errorf("lock: claim %q for %q lasting %s: name a holder, and give it from 1ms to %s", c.Key(), holder, length, inside.MaxTTL)
}

// Keep confirms the claim of holder, and gives it to next, which may be holder itself. The
// claim then lasts for at least length from now; 0 does not change its end. Its age goes on.
// false means that the claim was not holder's any more, and nothing changed.
func (c *claim) Keep(ctx context.Context, holder, next string, length time.Duration) (bool, error) {
	if holder == "" || next == "" || length < 0 || length > inside.MaxTTL {
		return false, fmt.Errorf("lock: claim %q of %q for %q, for another %s: name both, and give it at most %s", c.Key(), holder, next, length, inside.MaxTTL)
	}
	kept, err := c.m.operateCode(ctx, claimKeepScript, []any{holder, next, length.Milliseconds()}, 1)
	return kept == 1, err
}

// Drop deletes the claim of holder. false means that the claim was not holder's.
func (c *claim) Drop(ctx context.Context, holder string) (bool, error) {
	dropped, err := c.m.operateCode(ctx, claimDropScript, []any{holder}, 1)
	return dropped == 1, err
}

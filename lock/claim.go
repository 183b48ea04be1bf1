package lock

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
)

// claim is a mark beside a lock: somebody has spoken for its key, long before
// the lock is taken. The producers of package unique use it to enqueue a task
// for a key once. It has nothing to do with who holds the lock, and lives in the
// same Cluster slot. Claims have a text that says whose they are, a deadline by
// Redis' clock, and an age. Safe for concurrent use.
type claim struct{ m *Lock }

// claim is the claim beside the lock with that Redis key, as [Lock.Key] gives it.
func (l *Locker) claim(key string) *claim {
	m := l.Semaphore(key, 1)
	m.keys = []string{key + ":claim"}
	return &claim{m}
}

// Key is the one Redis key of the claim.
func (c *claim) Key() string { return c.m.Key() }

// Lock is a lock for those who change what the claim stands for in several
// steps. It is none that a worker takes.
func (c *claim) Lock(options ...Option) *Lock {
	m := c.m.locker.Semaphore(c.m.name, 1, options...)
	m.keys = []string{c.Key() + ":lock"}
	return m
}

// Take sets the claim for holder, for at most length (at least a millisecond, at
// most MaxTTL), unless another one stands, and gives what stands now: the
// caller's own (Holder says so), or the other. A claim of instead, where that is
// not empty, does not count: it is taken over. With instead the same as holder a
// claim of one's own begins anew.
//
// On an error it is not known whether the claim was set.
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

// taken reads a reply to claim_take.
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

// TakeFree is Take where no claim stands, at the price of the plainest command
// that Redis has. false: one stands, which may be the caller's own (a command is
// sent again when its answer was lost), and Take tells which.
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
	set := &setFree{Set: exchange.Set{ // in the form that claim.lua knows
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

// Keep confirms a claim, and hands it to next, which may be holder itself. It
// then stands for at least length from now; 0 leaves its end where it was. The
// age stays. false: the claim was not holder's any more, and nothing changed.
func (c *claim) Keep(ctx context.Context, holder, next string, length time.Duration) (bool, error) {
	if holder == "" || next == "" || length < 0 || length > inside.MaxTTL {
		return false, fmt.Errorf("lock: claim %q of %q for %q, for another %s: name both, and give it at most %s", c.Key(), holder, next, length, inside.MaxTTL)
	}
	kept, err := c.m.operateCode(ctx, claimKeepScript, []any{holder, next, length.Milliseconds()}, 1)
	return kept == 1, err
}

// Drop takes holder's claim away. false: it was not holder's.
func (c *claim) Drop(ctx context.Context, holder string) (bool, error) {
	dropped, err := c.m.operateCode(ctx, claimDropScript, []any{holder}, 1)
	return dropped == 1, err
}

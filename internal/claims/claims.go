// Package claims has the marks by which producers enqueue one task for a key.
package claims

import (
	"context"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/operate"
	"github.com/automutex/automutex/internal/wire"
)

// Claim is a mark beside a lock that reserves its key, long before the lock is taken. The
// producers of package unique use it to enqueue one task for a key, and the workers' Guard notes
// in it how far that task is. A claim is independent of the lock's holders, and its Redis key is
// in the same Cluster slot. It has a holder, which is any text, a phase, an age
// and a deadline by Redis' clock. Safe for concurrent use.
type Claim struct {
	run  operate.Runner
	keys []string // exactly one
}

// Of returns the claim beside the lock with that Redis key.
func Of(run operate.Runner, lockKey string) Claim { return Claim{run, []string{Key(lockKey)}} }

// Key returns the Redis key of the claim beside the lock with that key.
func Key(lockKey string) string { return lockKey + ":claim" }

// Key returns the Redis key of the claim.
func (c Claim) Key() string { return c.keys[0] }

// Take sets the claim for holder, unless another holder has it, and returns the claim that
// stands now: Holder says whose it is. The claim lasts for length, from a millisecond to
// MaxTTL. If instead is not empty, Take also replaces a claim of that holder. With instead
// the same as holder, the holder's own claim begins anew.
//
// After an error the claim may be set or not.
func (c Claim) Take(ctx context.Context, holder, instead string, length time.Duration) (inside.Claimed, error) {
	if holder == "" || length < time.Millisecond || length > inside.MaxTTL {
		return inside.Claimed{}, fmt.Errorf("lock: claim %q for %q lasting %s: name a holder, and give it from 1ms to %s", c.Key(), holder, length, inside.MaxTTL)
	}
	reply, err := c.run.Run(ctx, wire.ClaimTakeScript, c.keys, wire.ClaimTakeArgs(holder, instead, length))
	if err != nil {
		return inside.Claimed{}, err
	}
	standing, err := wire.ParseClaimTake(reply, holder)
	if err != nil {
		return inside.Claimed{}, exchange.Failed("take", c.Key(), err)
	}
	return standing, nil
}

// Keep confirms the claim of holder: its task is enqueued. The claim then lasts for at least
// length from now; 0 does not change its deadline. Its age goes on. false means that the claim was not
// holder's any more, and nothing changed.
func (c Claim) Keep(ctx context.Context, holder string, length time.Duration) (bool, error) {
	return c.keep(ctx, holder, holder, length, false)
}

// PassOn gives the claim of holder to next, which is enqueued, unless holder's handler has begun.
// stale says that a worker may have holder's task: a [Claim.Start] of it is refused then for as
// long as the claims of this key stand. The deadline and the age of the claim do not change. false
// means that the claim was neither holder's nor next's, or that the task which has it has begun;
// nothing changed.
func (c Claim) PassOn(ctx context.Context, holder, next string, stale bool) (bool, error) {
	return c.keep(ctx, holder, next, 0, stale)
}

func (c Claim) keep(ctx context.Context, holder, next string, length time.Duration, stale bool) (bool, error) {
	if holder == "" || next == "" || length < 0 || length > inside.MaxTTL {
		return false, fmt.Errorf("lock: claim %q of %q for %q, for another %s: name both, and give it at most %s", c.Key(), holder, next, length, inside.MaxTTL)
	}
	kept, err := c.run.Code(ctx, wire.ClaimKeepScript, c.keys, wire.ClaimKeepArgs(holder, next, length, stale), 1)
	return kept == 1, err
}

// Start notes that the task of holder is in that phase: PhaseWaiting, PhaseBegun or PhaseEnded. ends says that
// the claim ends when its task begins. The claim then lasts for at least length from now, and
// after PhaseEnded for at most length. Start returns false if another task has superseded this one:
// then its handler must not begin, and nothing is noted. It returns true if no claim stands.
func (c Claim) Start(ctx context.Context, holder string, phase inside.Phase, ends bool, length time.Duration) (bool, error) {
	may, err := c.run.Code(ctx, wire.ClaimStartScript, c.keys, wire.ClaimStartArgs(holder, phase, ends, length), 1)
	return may == 1, err
}

// Drop deletes the claim of holder. false means that the claim was not holder's.
func (c Claim) Drop(ctx context.Context, holder string) (bool, error) {
	dropped, err := c.run.Code(ctx, wire.ClaimDropScript, c.keys, wire.ClaimDropArgs(holder), 1)
	return dropped == 1, err
}

package lock

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/wire"
)

// This file is the gate: the earliest time of a lock's next start. While the gate is closed
// nobody gets the lock, however many slots are free. CloseGate, a cooldown and a rate close it, each
// until a time of its own. lua/gate.lua stores these times, and computes the rate by GCRA, the
// generic cell rate algorithm.

// rate is the arguments of Rate as the scripts take them. The zero value is no rate.
type rate struct {
	every int64 // from one start to the next, on average, in us; 0: no rate
	spare int64 // unused time that counts later, in us: (burst - 1) * every
	err   error
}

// maxRatePeriod is the longest period of a [Rate], a year.
const maxRatePeriod = 365 * 24 * time.Hour

// Rate bounds how often the lock is taken: starts times in each period per, evenly spread.
// After a time without starts, up to burst starts may come at once. In any time d the lock is
// taken at most burst + starts*d/per times, by Redis' clock. When the bound is reached the
// lock's gate is closed: TryLock returns a [*BusyError] with Reason [ReasonRate], and Lock
// waits in line until the gate opens.
//
// starts is at least 1, with at most one start a microsecond; a burst of 0 means 1: no two come at
// once, and at most starts + 1 in any period. per is at most a year. The time from one start to the next is rounded up to whole microseconds. All callers
// of a lock should give the same rate; otherwise the rate of the last ask applies. Without the
// option there is no bound.
func Rate(starts int, per time.Duration, burst int) Option {
	r := newRate(starts, per, burst)
	return func(m *Lock) { m.rate = r }
}

// checkRate returns what is wrong with the arguments of [Rate], or nil.
func checkRate(starts int, per time.Duration, burst int) error {
	return newRate(starts, per, burst).err
}

func newRate(starts int, per time.Duration, burst int) (r rate) {
	switch {
	case starts < 1:
		r.err = fmt.Errorf("a rate of %d starts: at least 1; leave the rate out for no bound", starts)
	case per <= 0:
		r.err = fmt.Errorf("a rate per %s: give a period above 0, such as a second", per)
	case per > maxRatePeriod:
		r.err = fmt.Errorf("a rate per %s: at most %s", per, maxRatePeriod)
	case int64(starts) > per.Microseconds():
		r.err = fmt.Errorf("a rate of %d starts per %s: at most one a microsecond%s", starts, per, printable.MeantUnit(per))
	case burst < 0:
		r.err = fmt.Errorf("a rate with a burst of %d: at least 1, which means that no two come at once", burst)
	}
	if r.err != nil {
		return r
	}
	burst = max(burst, 1)
	unit := int64(starts) * int64(time.Microsecond) // no overflow: starts is at most a year's microseconds
	every := (int64(per) + unit - 1) / unit
	if int64(burst) > inside.MaxTTL.Microseconds()/every {
		r.err = fmt.Errorf("a rate of %d starts per %s with a burst of %d: that many take longer than %s; give a smaller burst", starts, per, burst, inside.MaxTTL)
		return r
	}
	r.every, r.spare = every, every*int64(burst-1)
	return r
}

// closeGate closes the gate of the lock for d from now: nobody gets the lock, however many slots
// are free. Holders go on, this one included. A gate that is closed for longer stays so. d
// is more than 0 and at most ten years, and is rounded up to whole milliseconds. The hold
// outlives the lease; [Lock.BreakAll] ends it.
//
// ErrNotHeld: the lease has ended, and the gate is unchanged. ErrBackend: the gate may be
// closed or not. ErrNotReplicated: the gate is closed, but too few replicas know of it, so a
// failover may open it. closeGate works on a ctx that has ended, too.
func (le *Lease) closeGate(ctx context.Context, d time.Duration) error {
	m := le.lock
	if d <= 0 || d > inside.MaxTTL {
		return fmt.Errorf("lock: %q: CloseGate for %s: more than 0, at most %s", m.name, d, inside.MaxTTL)
	}
	if state := m.locker.renewer.stateOf(le); state != leaseHeld {
		return fmt.Errorf("%w: %q: CloseGate on a lease that is over", ErrNotHeld, m.name)
	}
	reply, err := m.locker.conn.RunBounded(toItsEnd(ctx, time.Now()), wire.CloseScript, m.keys, wire.CloseArgs(&le.member, wholeMS(d)))
	if err != nil {
		return exchange.Failed("close the gate", m.Key(), err)
	}
	code, err := wire.CodeOf(reply, wire.RenewRenewed)
	if err != nil {
		return exchange.Failed("close the gate", m.Key(), err)
	}
	if code == wire.RenewLost {
		m.locker.renewer.lose(le)
		return fmt.Errorf("%w: %q was lost before CloseGate", ErrNotHeld, m.name)
	}
	return m.locker.awaitReplicas(context.WithoutCancel(ctx), le)
}

// giveBack is Unlock for work that did not begin: it refunds the start to the lock's [Rate], unless
// others have started since.
func (le *Lease) giveBack(ctx context.Context) error {
	_, err := le.end(ctx, ending{unused: true})
	return err
}

// unusedArgument returns the argument of a release that refunds a start: 1, or 0 if there is
// nothing to refund.
func (le *Lease) unusedArgument() int64 {
	if le.lock.rate.every == 0 || le.startCounts.Load() {
		return 0
	}
	return 1
}

// Cooldown is [Lease.Unlock], and closes the lock's gate for d from now: nobody gets the lock
// in that time, even if slots are free. Other holders go on. Cooldown never makes a gate open
// earlier. d is rounded up to whole milliseconds; more than ten years count as ten. If d is 0
// or less, Cooldown is Unlock. The errors are those of Unlock. After ErrNotHeld the gate is unchanged.
//
// After ErrBackend the release and its cooldown are tried again in the background: several
// times a second until the lease's deadline, and a few times later. The cooldown always ends d
// after the call.
func (le *Lease) Cooldown(ctx context.Context, d time.Duration) error {
	var end time.Time
	if d > 0 {
		end = time.Now().Add(min(d, inside.MaxTTL))
	}
	_, err := le.end(ctx, ending{cooldown: end})
	return err
}

// cooldownArg is the cooldown argument of a release: the time that is left of the lease's
// cooldown when go-redis writes the command. So a release that is sent again later does not
// make the cooldown end later.
type cooldownArg Lease

// MarshalBinary is called by go-redis each time the command is written.
func (a *cooldownArg) MarshalBinary() ([]byte, error) { return []byte(a.String()), nil }

// String is what tracing hooks print.
func (a *cooldownArg) String() string {
	return strconv.FormatInt(wholeMS((*Lease)(a).cooldownLeft()).Milliseconds(), 10)
}

// cooldownArgument returns the cooldown argument of a release: 0 without a cooldown, which
// script.short leaves out.
func (le *Lease) cooldownArgument() any {
	if le.cooldownLeft() == 0 {
		return int64(0)
	}
	return (*cooldownArg)(le)
}

// cooldownLeft returns for how long from now a release must close the gate; 0: not at all.
func (le *Lease) cooldownLeft() time.Duration {
	end := le.cooldownEnd.Load()
	if end == nil {
		return 0
	}
	return max(0, time.Until(*end))
}

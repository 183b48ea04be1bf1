package lock

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inside"
)

// rate is what Rate was given, as the scripts take it. The zero value is no rate.
type rate struct {
	every int64 // from one start to the next, on average, in us; 0: no rate
	spare int64 // how much of that can be saved up, in us
	err   error
}

// maxRatePeriod is the longest period of a [Rate], a year.
const maxRatePeriod = 365 * 24 * time.Hour

// Rate bounds how often the lock is taken: starts times in each per, evenly spread, of
// which up to burst may come at once after a pause. It counts takes by Redis' clock, and
// is kept in the lock's key. What comes too early is busy until the gate opens: TryLock
// answers with Reason [ReasonRate], and Lock waits for it in line.
//
// In any time d there are at most burst + starts*d/per starts. The time from one start to
// the next is rounded up to whole microseconds. All who take the lock give the same rate;
// where they differ, each one's counts from when it asks. starts and burst are at least
// 1, with at most one start a microsecond; per is at most a year. Pools have no
// rate.
func Rate(starts int, per time.Duration, burst int) Option {
	r := newRate(starts, per, burst)
	return func(m *Lock) { m.rate = r }
}

// checkRate says what is wrong with the arguments of [Rate].
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
		r.err = fmt.Errorf("a rate of %d starts per %s: at most one a microsecond", starts, per)
	case burst < 1:
		r.err = fmt.Errorf("a rate with a burst of %d: at least 1, which means that none come at once", burst)
	}
	if r.err != nil {
		return r
	}
	unit := int64(starts) * int64(time.Microsecond) // no overflow: starts is at most a year's microseconds
	every := (int64(per) + unit - 1) / unit
	if int64(burst) > inside.MaxTTL.Microseconds()/every {
		r.err = fmt.Errorf("a rate of %d starts per %s with a burst of %d: that many take longer than %s; give a smaller burst", starts, per, burst, inside.MaxTTL)
		return r
	}
	r.every, r.spare = every, every*int64(burst-1)
	return r
}

// readGate takes apart what stands in a holder's place while the gate is closed:
// "g:<reason> <opens in (us)>". It returns false for what cannot be read.
func (a *answer) readGate() bool {
	text, closed := strings.CutPrefix(a.holder, "g:")
	if !closed {
		return true
	}
	reason, in, _ := strings.Cut(text, " ")
	us, err := strconv.ParseInt(in, 10, 64)
	a.reason, a.gate, a.holder = reason, time.Duration(us)*time.Microsecond, ""
	return err == nil && gateTexts[reason] != "" && us > 0 && us < math.MaxInt64/int64(time.Microsecond)
}

// hold closes the gate of the lock: nobody gets it for d from now, whatever its number
// of slots. Holders go on, this one included. A gate that is closed for longer stays so.
// d is rounded up to whole milliseconds, more than 0, at most [MaxTTL].
//
// ErrNotHeld: the lease is over, and the gate as it was. ErrBackend: not known.
// ErrNotReplicated: closed, but fewer replicas know of it than MinReplicas asks for, so a
// failover may open it. It works on an ended ctx too, and lasts when the lease ends.
// [Lock.BreakAll] ends it.
func (le *Lease) hold(ctx context.Context, d time.Duration) error {
	m := le.lock
	switch {
	case d <= 0 || d > inside.MaxTTL:
		return fmt.Errorf("lock: %q: Hold for %s: more than 0, at most %s", m.name, d, inside.MaxTTL)
	case m.isPool():
		return fmt.Errorf("lock: %q is a pool, which has no gate to close", m.name)
	}
	if state := m.locker.renewer.stateOf(le); state != held {
		return fmt.Errorf("%w: %q: Hold on a lease that is over", ErrNotHeld, m.name)
	}
	reply, err := m.locker.conn.Run(context.WithoutCancel(ctx), holdScript, m.keys, []any{le.heldArg, wholeMS(d).Milliseconds()})
	if err != nil {
		return backendError("hold", m.Key(), err)
	}
	code, err := codeOf(reply, renewRenewed)
	if err != nil {
		return backendError("hold", m.Key(), err)
	}
	if code == renewLost {
		m.locker.renewer.lose(le)
		return fmt.Errorf("%w: %q was lost before the Hold", ErrNotHeld, m.name)
	}
	return m.locker.acknowledged(context.WithoutCancel(ctx), le)
}

// giveBack is Unlock for work that did not begin: where the lock has a [Rate], its start
// does not count.
func (le *Lease) giveBack(ctx context.Context) error {
	_, err := le.end(ctx, ending{unused: true})
	return err
}

// unusedArgument is the argument of a release that gives a start back: the fence of a
// lease that was taken, 1 where that is not known. 0: there is nothing to give back.
func (le *Lease) unusedArgument() int64 {
	if le.lock.rate.every == 0 || le.used.Load() {
		return 0
	}
	return max(1, le.lock.locker.renewer.fenceOf(le))
}

package lock

import (
	"context"
	"strconv"
	"time"

	"github.com/automutex/automutex/internal/inside"
)

// Cooldown is Unlock that closes the gate of the lock until d after now: nobody gets
// the lock before, whatever its number of slots; other holders go on. A gate that is
// closed for longer stays so. d is rounded up to whole milliseconds. d of 0 or less, and
// a lease of a pool, make it a plain Unlock.
//
// After ErrBackend the cooldown is tried again with the release: several times a
// second for as long as the lease would have lasted, then once more. It ends d
// after the call in any case.
func (le *Lease) Cooldown(ctx context.Context, d time.Duration) error {
	var end time.Time
	if d > 0 && !le.lock.isPool() {
		end = time.Now().Add(min(d, inside.MaxTTL))
	}
	_, err := le.end(ctx, ending{cooldown: end})
	return err
}

// cooldownArg is a lease as the cooldown argument of a release: what is left of
// its cooldown when go-redis writes the command. So a release that is sent again
// later does not make the cooldown end later.
type cooldownArg Lease

// MarshalBinary is called by go-redis each time the command is written.
func (a *cooldownArg) MarshalBinary() ([]byte, error) { return []byte(a.String()), nil }

// String is what tracing hooks print.
func (a *cooldownArg) String() string {
	return strconv.FormatInt(wholeMS((*Lease)(a).cooldownLeft()).Milliseconds(), 10)
}

// cooldownArgument is the argument of a release: 0 without a cooldown, which
// script.short leaves out.
func (le *Lease) cooldownArgument() any {
	if le.cooldownLeft() == 0 {
		return int64(0)
	}
	return (*cooldownArg)(le)
}

// cooldownLeft is how long the gate is yet to be closed.
func (le *Lease) cooldownLeft() time.Duration {
	end := le.cooldownEnd.Load()
	if end == nil {
		return 0
	}
	return max(0, time.Until(*end))
}

// wholeMS rounds d up to whole milliseconds, which is what Redis counts in.
func wholeMS(d time.Duration) time.Duration {
	if rest := d % time.Millisecond; rest > 0 && d <= inside.MaxTTL {
		d += time.Millisecond - rest
	}
	return d
}

// cooldownRetry is the pause before a release that failed is sent again for the
// sake of a cooldown.
const cooldownRetry = 250 * time.Millisecond

// releaseToCool sends the release of a lease that is to cool down until it comes
// through, until the lease ends (then the slot may be somebody else's), or until
// Close. err is what the last one before said. Callers are counted in.
func (l *Locker) releaseToCool(le *Lease, err error) {
	timer := time.NewTimer(cooldownRetry)
	defer timer.Stop()
	for err != nil && le.cooldownLeft() > 0 && time.Now().Before(le.Deadline()) {
		select {
		case <-timer.C:
		case <-l.closing.Done():
			return
		}
		_, _, err = le.release(context.Background())
		timer.Reset(cooldownRetry)
	}
}

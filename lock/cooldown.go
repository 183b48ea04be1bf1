package lock

import (
	"context"
	"strconv"
	"time"

	"github.com/automutex/automutex/internal/inside"
)

// Cooldown is [Lease.Unlock], and closes the lock's gate for d from now: nobody gets the lock
// in that time, even if slots are free. Other holders go on. Cooldown never makes a gate open
// earlier. d is rounded up to whole milliseconds; more than ten years count as ten. If d is 0
// or less, Cooldown is Unlock. The errors are those of Unlock.
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

// wholeMS rounds d up to whole milliseconds, which is what Redis counts in.
func wholeMS(d time.Duration) time.Duration {
	if rest := d % time.Millisecond; rest > 0 && d <= inside.MaxTTL {
		d += time.Millisecond - rest
	}
	return d
}

// cooldownRetry is the pause between two releases of a lease with a cooldown.
const cooldownRetry = 250 * time.Millisecond

// releaseToCool repeats the failed release of a lease with a cooldown until it succeeds, the
// cooldown or the lease ends (then another holder may have the slot), or the Locker closes.
// err is the error of the release before. Callers are counted in.
func (l *Locker) releaseToCool(le *Lease, err error) {
	timer := time.NewTimer(cooldownRetry)
	defer timer.Stop()
	for err != nil && le.cooldownLeft() > 0 && time.Now().Before(le.Deadline()) {
		select {
		case <-timer.C:
		case <-l.life.Closing.Done():
			return
		}
		_, _, err = le.release(context.Background())
		timer.Reset(cooldownRetry)
	}
}

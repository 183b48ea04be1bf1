package automutex

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/automutex/automutex/lock"
)

// Rate bounds how often handlers start for one key: Starts times in each Per, evenly spread.
// After a time without starts, up to Burst handlers may start at once. In any time d at most
// Burst + Starts*d/Per handlers start. The zero value is no rate.
//
// For a task that comes too early the key is busy with [ReasonRate]: its policy applies, and
// [BusyError].ExpiresIn is the time until the next start. If a task gets this lock but not
// another that it needs, it does not start and does not count. It counts if it waits for the
// other lock until [Rule].MaxHold has ended this one, and may count in part if many others took
// this lock meanwhile: the rate is then stricter, never looser.
type Rate struct {
	// Starts is how many handlers start in each Per: at least 1, at most one a
	// microsecond.
	Starts int
	// Per is the period: more than 0, at most a year.
	Per time.Duration
	// Burst is how many may start at once. 0 means Starts; 1 means that each start
	// comes at least Per/Starts after the last.
	Burst int
}

// String is "100 per 1m0s, burst 10"; "none" for the zero value.
func (r Rate) String() string {
	if r == (Rate{}) {
		return "none"
	}
	return fmt.Sprintf("%d per %s, burst %d", r.Starts, r.Per, r.burst())
}

func (r Rate) burst() int {
	if r.Burst == 0 {
		return r.Starts
	}
	return r.Burst
}

func (r Rate) check() error {
	switch {
	case r == (Rate{}):
		return nil
	case r.Burst < 0:
		return fmt.Errorf("a Burst of %d is negative; use 0 for as many as Starts", r.Burst)
	case r.Starts == 0 || r.Per == 0:
		return errors.New("it needs both Starts and Per, such as Rate{Starts: 100, Per: time.Minute}")
	}
	return inner.CheckRate(r.Starts, r.Per, r.burst())
}

// option is the rate for package lock; nil, which package lock ignores, for none.
func (r Rate) option() lock.Option {
	if r == (Rate{}) {
		return nil
	}
	return lock.Rate(r.Starts, r.Per, r.burst())
}

// gateDelay returns after how long a task that met a closed gate returns: when the gate
// opens, plus a random time, so that tasks do not return together. The random time is less
// than a quarter of the time until the gate opens; that bound is itself at least 2 s and at
// most 30 s. During a Hold the delay is a second more: the task that made the Hold is first.
func (e *BusyError) gateDelay() time.Duration {
	d := notBefore(e.ExpiresIn)
	if e.Reason == ReasonHold {
		d += time.Second
	}
	spread := min(max(e.ExpiresIn/4, 2*time.Second), 30*time.Second)
	return d + rand.N(spread) //nolint:gosec // jitter, no secret
}

// notBefore is d rounded up so that asynq, which drops fractions of the second in which
// a task is to come back, does not bring it back before d is over.
func notBefore(d time.Duration) time.Duration {
	at := time.Now().Add(d)
	if rest := time.Duration(at.Nanosecond()); rest > 0 {
		d += time.Second - rest
	}
	return d
}

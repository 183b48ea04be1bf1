package decide

import (
	"math/rand/v2"
	"time"
)

// Delay returns how long a task stays away. It is random, so that tasks do not return together. d means
//
//	AtGate    how long the gate is still closed
//	AtResume  how long the pause still lasts; 0: until somebody ends it
//	AtOutage  how long Redis has been away
//	AsAsked   the delay of the RetryAfter
//	AtTurn    after which time its turn would come, roughly
//
// and nothing else.
func Delay(when When, d time.Duration) time.Duration {
	const minute = time.Minute
	switch when {
	case AtGate: // and up to a quarter of that time later, 2 to 30 s
		return wholly(d) + upTo(min(max(d/4, 2*time.Second), 30*time.Second))
	case AtResume:
		if d > 0 && d <= minute {
			return d + upTo(max(5*time.Second, d/2))
		}
		return minute/2 + upTo(minute) // an operator may end it before
	case AtOutage:
		d = min(max(time.Second, d), 30*time.Second)
		return min(d/2+upTo(d/2)+time.Second/2, 30*time.Second)
	case AsAsked:
		return wholly(d)
	case AtTurn: // if no process wakes it; at most 5 to 10 minutes: below parked_for of Lua
		return min(d+upTo(max(1, d/4)), 10*minute-upTo(5*minute))
	}
	return time.Second + upTo(4*time.Second)
}

func upTo(d time.Duration) time.Duration { return rand.N(d) } //nolint:gosec // jitter, no secret

// wholly is d rounded up so that asynq, which drops fractions of the second in which a task is to come back, does not
// bring it back before d is over.
func wholly(d time.Duration) time.Duration {
	if rest := time.Duration(time.Now().Add(d).Nanosecond()); rest > 0 {
		d += time.Second - rest
	}
	return d
}

package decide

import (
	"math/rand/v2"
	"time"
)

// Delay returns how long a task stays away. It is random, so that tasks do not return together. left is the time until the gate opens or
// the pause ends (0: it has no end), that of a RetryAfter, or about when its turn would come; for AtOutage it is how long that lasts already.
func Delay(when When, left time.Duration) time.Duration {
	const minute = time.Minute
	switch when {
	case AtGate: // and up to a quarter of that time later
		return wholly(left) + upTo(min(max(left/4, 2*time.Second), 30*time.Second))
	case AtResume:
		if left > 0 && left <= minute {
			return left + upTo(max(5*time.Second, left/2))
		}
		return minute/2 + upTo(minute) // an operator may end it before
	case AtOutage:
		d := min(max(time.Second, left), 30*time.Second)
		return min(d/2+upTo(d/2)+time.Second/2, 30*time.Second)
	case AsAsked:
		return wholly(left)
	case AtTurn: // if no process wakes it
		return min(left+upTo(left/4), 10*minute-upTo(5*minute))
	case Unsaid, Soon:
	}
	return time.Second + upTo(4*time.Second)
}

func upTo(d time.Duration) time.Duration { return rand.N(d) } //nolint:gosec // jitter, no secret

// wholly is d rounded up so that asynq, which drops fractions of the second in which a task is to come back, does not bring it back before
// d is over.
func wholly(d time.Duration) time.Duration {
	if rest := time.Duration(time.Now().Add(d).Nanosecond()); rest > 0 {
		d += time.Second - rest
	}
	return d
}

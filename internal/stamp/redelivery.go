package stamp

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
)

// redeliveryDelay bounds asynq's wait before it redelivers a Client's task whose last attempt was cut, or an ordered
// task whose worker died: marks of done tasks last five minutes.
const redeliveryDelay = 30 * time.Second

// isCut reports whether err is what asynq itself passes for an attempt that has no result. asynq gives these as they
// are, where a handler may wrap one.
func isCut(err error) bool {
	return err == asynq.ErrLeaseExpired || err == context.DeadlineExceeded || err == context.Canceled //nolint:errorlint // as above
}

// CapRedelivery bounds the delay of a task by redeliveryDelay where that is for it. n attempts were spent before.
func CapRedelivery(delay time.Duration, n int, err error, t *asynq.Task) time.Duration {
	if errors.Is(err, asynq.ErrLeaseExpired) && isOrdered(t) || isCut(err) && IsLast(t, n) {
		return min(delay, redeliveryDelay)
	}
	return delay
}

func isOrdered(t *asynq.Task) bool { f := in(t); return len(f) == 7 && f[4] != "" }

// Cuts counts last attempts, by their callers' count, that a context or a death has ended. IsFailure, which asynq asks
// next, and without the task, takes one whatever the program's own says: else asynq delivers the task again for ever.
// Of two at once the other one may be taken.
type Cuts struct{ n atomic.Int64 }

// Add counts one that ended with err.
func (c *Cuts) Add(last bool, err error) {
	if last && isCut(err) {
		c.n.Add(1)
	}
}

// Take reports whether err may be of a counted one, and takes that.
func (c *Cuts) Take(err error) bool {
	for n := c.n.Load(); isCut(err) && n > 0; n = c.n.Load() {
		if c.n.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

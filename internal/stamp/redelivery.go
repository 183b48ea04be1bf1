package stamp

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"
)

// redeliveryDelay bounds asynq's wait before it redelivers a Client's task whose last attempt was cut, or an ordered
// task whose worker died: marks of done tasks last five minutes.
const redeliveryDelay = 30 * time.Second

// IsCut reports whether err is what asynq itself passes for an attempt that has no result. asynq gives these as they
// are, where a handler may wrap one.
func IsCut(err error) bool {
	return err == asynq.ErrLeaseExpired || err == context.DeadlineExceeded || err == context.Canceled //nolint:errorlint // as above
}

// CapRedelivery shortens the delay of a task of a Client whose last attempt was cut, or of an ordered task whose worker
// died. n attempts were spent before.
func CapRedelivery(delay time.Duration, n int, err error, t *asynq.Task) time.Duration {
	died := errors.Is(err, asynq.ErrLeaseExpired)
	if died && Ordered(t) || IsCut(err) && IsLast(t, n) {
		return min(delay, redeliveryDelay)
	}
	return delay
}

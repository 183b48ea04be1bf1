package automutex

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/hibiken/asynq"
)

// The reserved attempt: a Client tells asynq one retry more than its caller asked for (internal/stamp), and the Guard
// has the task archived when those of the caller are spent. What has no result here (runtime.Goexit, a process that
// dies, a context that ends) asynq counts, and delivers the task once more, see stamp.CapRedelivery.

// isLast reports whether the caller's attempts end with this one.
func (f *facts) isLast() bool { return f.last || f.reserved && f.retried >= f.stamp.Most }

// LastAttempt reports whether asynq archives the task of the handler whose context is ctx if the handler fails; of an
// ErrorHandler, whether that was its last attempt; in a task within a task, what it is in the outer one. A task of a
// [Client] has one retry more by asynq.GetMaxRetry than it was enqueued with; LastAttempt goes by what was asked for.
func LastAttempt(ctx context.Context) bool {
	if last, is := ctx.Value(lastAttemptKey{}).(bool); is {
		return last
	}
	if f := running(ctx); f != nil {
		for f.outer != nil {
			f = f.outer
		}
		return f.isLast()
	}
	retried, ok := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	return ok && retried >= most
}

type lastAttemptKey struct{} // finds, in the context of an ErrorHandler, what LastAttempt says

// attempt runs the handler. Of a reserved attempt it ends a panic here, and logs it as asynq does.
func (f *facts) attempt(ctx context.Context, next asynq.Handler) (err error) {
	if f.worker != nil {
		f.worker.worksNow()
	}
	if f.reserved && f.isLast() {
		defer func() {
			if p := recover(); p != nil {
				f.guard.log.Error("automutex: the handler panicked on the task's last attempt",
					f.about(nil, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))...)
				err = fmt.Errorf("panic: %v", p)
			}
		}()
	}
	return next.ProcessTask(ctx, f.task)
}

// spends reports whether what the handler returned spends the last attempt that the caller asked for, though not
// asynq's: not if it is the answer of another Guard.
func (f *facts) spends(err error) bool {
	return f.reserved && f.isLast() && !errors.As(err, new(*verdict))
}

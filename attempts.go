package automutex

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/stamp"
)

// The reserved attempt, see Client. A task of an ordered rule keeps in Redis, with its place, which attempt has
// begun. For any other task a mark beside its lock says so, and only from the last attempt on.

// beginMarkLife is how long that mark lasts. asynq waits for some days at most before it runs a task again.
const beginMarkLife = 30 * 24 * time.Hour

// readStamp reads the task's stamp. A stamp that does not fit what asynq was told is that of another task.
func (d *delivery) readStamp() {
	var ok bool
	maxRetry, _ := asynq.GetMaxRetry(d.ctx)
	if d.stamp, ok = stamp.Of(d.task.Headers(), d.note); ok {
		d.reserved = maxRetry == d.stamp.Most+1
	}
}

// keepsBegun reports whether the task's place in order says which attempt has begun.
func (d *delivery) keepsBegun(targets []target) bool {
	for _, t := range targets {
		if d.inOrder(t) {
			return true
		}
	}
	return false
}

// begunMark is the mark that an attempt of this task has begun, beside the lock of its first target.
func (d *delivery) begunMark(targets []target) string { return targets[0].key + ":begun:" + d.note }

// refuseSpent ends a task whose attempts are spent: asynq delivers it again after its last one has begun and not
// returned. An operator's later run does run.
func (d *delivery) refuseSpent() (refused bool) {
	targets := d.targets
	if !d.reserved || d.retried <= d.stamp.Most || len(targets) == 0 || d.keepsBegun(targets) {
		return false
	}
	// The mark passes to this refusal before it is removed. If the script is sent twice, the second copy finds it passed, and not gone, which would
	// mean that no attempt has begun. Another delivery has another name, so the mark does not refuse an operator's run.
	mark, began, refusal := inner.Claim(d.guard.locker, d.begunMark(targets)), strconv.Itoa(d.retried), "refused "+stamp.NewNonce()
	var err error
	for range confirmTries {
		if refused, err = mark.PassOn(d.roundTripContext(), began, refusal, false); err == nil {
			break
		}
	}
	if err != nil {
		d.guard.log.Debug("automutex: Redis could not be asked whether a task's last attempt has begun; it runs", "task", d.note, "error", err)
	}
	if refused {
		d.dropMark(mark, refusal)
	}
	return refused
}

// guardAttempts wraps the handler of a task with a reserved attempt: it ends the task when its attempts are spent.
// For other tasks it returns next.
func (d *delivery) guardAttempts(next asynq.Handler) asynq.Handler {
	if !d.reserved {
		return next
	}
	targets := d.targets
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		last := d.retried >= d.stamp.Most
		marks := last && len(targets) > 0 && !d.keepsBegun(targets)
		if marks {
			d.markBegun(targets)
		}
		err := next.ProcessTask(ctx, task)
		if d.ctx.Err() != nil {
			return err // asynq has stored its own decision already
		}
		if last && endsTask(err) {
			err = archive{err}
		}
		if marks {
			d.unmarkBegun(targets)
		}
		return err
	})
}

// endsTask reports whether asynq archives a task for the handler's error on the last attempt. It does not ask
// asynq.Config.IsFailure then. An error by which a Guard returns the task is none that the caller knows of.
func endsTask(err error) bool {
	return err != nil && !errors.Is(err, asynq.SkipRetry) && !errors.Is(err, asynq.RevokeTask) && wantsRetryAfter(err) == nil && !errors.As(err, new(*returnedTask))
}

// markBegun notes that this attempt begins. If Redis does not answer, the handler may start once more than the
// caller asked for, should its worker die.
func (d *delivery) markBegun(targets []target) {
	mark, now := inner.Claim(d.guard.locker, d.begunMark(targets)), strconv.Itoa(d.retried+1)
	standing, err := mark.Take(d.roundTripContext(), now, "", beginMarkLife)
	if err == nil && standing.Holder != now {
		_, err = mark.Take(d.roundTripContext(), now, standing.Holder, beginMarkLife)
	}
	if err != nil {
		d.guard.log.Debug("automutex: it could not be stored that a task's last attempt begins", "task", d.note, "error", err)
	}
}

func (d *delivery) unmarkBegun(targets []target) {
	d.dropMark(inner.Claim(d.guard.locker, d.begunMark(targets)), strconv.Itoa(d.retried+1))
}

func (d *delivery) dropMark(mark claims.Claim, holder string) {
	if _, err := mark.Drop(context.WithoutCancel(d.ctx), holder); err != nil {
		d.guard.log.Debug("automutex: the mark of a task's last attempt could not be removed; it expires", "task", d.note, "error", err)
	}
}

package automutex

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/stamp"
)

// The reserved attempt, see Client. A task of an ordered rule keeps in Redis, with its place, which attempt has
// begun. For any other task a mark beside its lock says so, and only from the last attempt on.

// beginMarkLife is how long that mark lasts while the handler runs, and if it does not return. asynq waits for some
// days at most before it runs a task again.
const beginMarkLife = 30 * 24 * time.Hour

// endMarkLife is how long the mark lasts after the task has ended. If asynq cannot store the end, its recoverer finds
// the task after a minute or two, and ServerConfig has it delivered within redeliveryDelay then.
const endMarkLife = 5 * time.Minute

// needsNoLock reports whether the task runs without any lock: its Optional fields are missing, its Key returns NoLock, or no
// key can be made for a rule with Allow. Then nothing in Redis would tell that its last attempt has begun. A rule that never
// leaves a task without its lock is not asked.
func (c *Client) needsNoLock(ctx context.Context, p *pattern, task *asynq.Task) (none bool) {
	for _, rule := range p.rules {
		if !rule.Optional && rule.Key == nil && rule.Busy.kind != policyAllow {
			return false
		}
	}
	defer func() {
		if recover() != nil { // of a Key, LimitOf or Decode; the worker meets and reports it
			none = false
		}
	}()
	none = true
	targets := c.rules.targetsNeeded(ctx, task, c.prefix, func(rule *compiledRule, err error) {
		none = none && rule.Busy.kind == policyAllow && whyNoKey(err) != decide.KeyLater
	})
	return none && len(targets) == 0
}

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

// marksBegun reports whether a mark says that this task's last attempt, or the one after it, has begun. It is only needed from there on.
func (d *delivery) marksBegun() bool {
	return d.reserved && d.retried >= d.stamp.Most && len(d.targets) > 0 && !d.keepsBegun(d.targets)
}

// begunMark is that mark, beside the lock of the task's first target, and holder what stands in it once this attempt has begun.
func (d *delivery) begunMark() (mark claims.Claim, holder string) {
	return inner.Claim(d.guard.locker, d.targets[0].key+":begun:"+d.note), strconv.Itoa(d.retried + 1)
}

// errUnnoted is errSpent for a task whose mark also stays after its handler has returned.
var errUnnoted = fmt.Errorf("%w; or it did return, and asynq could not store that", errSpent)

// refuseSpent ends a task whose attempts are spent: asynq delivers it again after its last one has begun, and
// has not returned or asynq could not store its end. An operator's later run does run.
func (d *delivery) refuseSpent() (refused bool) {
	if !d.marksBegun() || d.retried == d.stamp.Most {
		return false
	}
	// The mark passes to this refusal before it is removed. If the script is sent twice, the second copy finds it passed, and not gone, which would
	// mean that no attempt has begun. Another delivery has another name, so the mark does not refuse an operator's run.
	mark, _ := d.begunMark()
	began, refusal := strconv.Itoa(d.retried), "refused "+stamp.NewNonce()
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
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		marks := d.marksBegun()
		if marks {
			d.markBegun()
		}
		err := next.ProcessTask(ctx, task)
		if d.ctx.Err() != nil {
			return err // asynq has stored its own decision already
		}
		comesBack := wantsRetryAfter(err) != nil || errors.As(err, new(*returnedTask))
		if d.retried >= d.stamp.Most && !comesBack && endsTask(err) {
			err = archive{err}
		}
		switch {
		case marks && comesBack:
			d.dropMark(d.begunMark())
		case marks:
			// asynq has not stored the end yet. If it cannot, it delivers the task again, which the mark refuses.
			d.keepBegun()
		}
		return err
	})
}

// endsTask reports whether asynq archives a task for the handler's error on the last attempt. It does not ask
// asynq.Config.IsFailure then. An error by which a Guard returns the task is none that the caller knows of.
func endsTask(err error) bool {
	return err != nil && !errors.Is(err, asynq.SkipRetry) && !errors.Is(err, asynq.RevokeTask)
}

// markBegun notes that this attempt begins. If Redis does not answer, the handler may start once more than the
// caller asked for, should its worker die.
func (d *delivery) markBegun() {
	mark, now := d.begunMark()
	// The mark of this attempt's earlier run, which an operator's run finds, begins anew.
	standing, err := mark.Take(d.roundTripContext(), now, now, beginMarkLife)
	if err == nil && standing.Holder != now {
		_, err = mark.Take(d.roundTripContext(), now, standing.Holder, beginMarkLife)
	}
	if err != nil {
		d.guard.log.Debug("automutex: it could not be stored that a task's last attempt begins", "task", d.note, "error", err)
	}
}

// keepBegun has the mark of this attempt, which has ended the task, last for endMarkLife from now.
func (d *delivery) keepBegun() {
	mark, now := d.begunMark()
	if _, err := mark.Take(context.WithoutCancel(d.ctx), now, now, endMarkLife); err != nil {
		d.guard.log.Debug("automutex: it could not be stored that a task's last attempt has ended; its mark stays longer", "task", d.note, "error", err)
	}
}

// spendUnrun removes the mark of this attempt, which a policy spends before its handler has begun: the mark is that of
// an earlier run of the task, or of a task with the same ID, and must not refuse the next delivery.
func (d *delivery) spendUnrun() {
	if d.marksBegun() {
		d.dropMark(d.begunMark())
	}
}

func (d *delivery) dropMark(mark claims.Claim, holder string) {
	if _, err := mark.Drop(context.WithoutCancel(d.ctx), holder); err != nil {
		d.guard.log.Debug("automutex: the mark of a task's last attempt could not be removed; it expires", "task", d.note, "error", err)
	}
}

// isCutLast reports whether err is that of a cut of the task's last attempt, n attempts having been spent before: the next
// delivery is refused, while the mark of the attempt stands. asynq gives the errors of a cut as they are, and a BusyError
// wraps one.
func isCutLast(n int, err error, t *asynq.Task) bool {
	cut := err == asynq.ErrLeaseExpired || err == context.DeadlineExceeded || err == context.Canceled //nolint:errorlint // as above
	return cut && t != nil && stamp.IsLast(t.Headers(), n)
}

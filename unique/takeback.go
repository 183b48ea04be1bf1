package unique

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/lock"
)

// A deletion whose reply is lost is sent again by go-redis, and answers "not found"
// the second time: the same answer as for a task that a worker has run and removed.
// What follows decides what such an answer means for the old task and for the new one.

var (
	// errMoved: the task is not in the state that it was seen in.
	errMoved = errors.New("the task has moved on")

	// errGone: the deletion failed, and the task is not there.
	errGone = fmt.Errorf("%w: it is gone", errMoved)

	// errUnknown: whether the deletion happened cannot be found out.
	errUnknown = errors.New("Redis does not tell whether the task was deleted")

	// errUnsettled: the new task was archived so as to be deleted, and then was not found.
	errUnsettled = errors.New("the new task was taken back, or an operator ran it in that moment: Redis' reply was lost; " +
		"enqueue again if the task must run")
)

// resendAfter is the least time after which go-redis sends a command again by
// default.
const resendAfter = 8 * time.Millisecond

// removeSuperseded deletes the old task, whose place the new one takes. An old task that
// is gone has run, or this deletion removed it and the reply was lost: under UntilDone
// and UntilStart the new one takes its place either way.
//
// In the window of For an old task that has run must not be followed by the new one.
// Where the deletion itself may have removed it, found is true: no accepted task is
// lost, at the price of a second run when the old task ended in that very moment.
func (req *request) removeSuperseded(ctx context.Context, old *asynq.TaskInfo) (found bool, err error) {
	sent := time.Now()
	found, err = req.removeWaiting(ctx, old)
	if errors.Is(err, errGone) {
		return true, nil
	}
	if req.rule.Until.kind == untilWindow && err == nil && !found && time.Since(sent) >= resendAfter {
		return true, nil
	}
	return found, err
}

// removeWaiting deletes a task that had not started when it was seen. The caller holds the
// key's lock. found is false if there was no such task. The errors are errMoved, errGone,
// errUnknown, or Redis' own if the task still exists.
func (req *request) removeWaiting(ctx context.Context, old *asynq.TaskInfo) (found bool, err error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx) // another producer may hold the key's lock
	}
	err = req.client.inspector.DeleteTask(old.Queue, old.ID)
	if err == nil || isNotFound(err) {
		return err == nil, nil
	}
	ran := isActive(err) // it may be back already, in the state that it was in: it ran and failed
	now, looked := req.look(old.Queue, old.ID)
	switch {
	case looked != nil:
		return false, errors.Join(errUnknown, err, looked)
	case now == nil && !ran:
		return false, errGone
	case ran || now.State != old.State:
		return false, errMoved
	}
	return false, err
}

// undo takes the new task back when the old one could not be superseded; err says why
// not. info is the new task, nil when it is not known to be there. The result is the new
// task, when it has run or runs, or an error, or neither: look again.
func (req *request) undo(ctx context.Context, next string, info *asynq.TaskInfo, err error) (*asynq.TaskInfo, error) {
	if errors.Is(context.Cause(ctx), lock.ErrLost) {
		// Another producer may hold the key's lock, and may have made the new task its own:
		// leave things as a producer does that dies here.
		return nil, errors.Join(err, context.Cause(ctx))
	}
	taken, failed := req.takeBack(next)
	switch {
	case failed != nil && errors.Is(err, errMoved):
		return nil, failed
	case failed != nil:
		return nil, errors.Join(err, failed)
	case !taken && info != nil:
		return info, nil // an operator ran it, or this producer was so slow that it ran by itself
	case errors.Is(err, errMoved):
		return nil, nil //nolint:nilnil // look again
	}
	return nil, err
}

// takeBack removes the new task before it runs. taken is false when a worker runs the
// task, or has run it, or when there is none.
//
// The task is archived first. An archived task does not run and stays where it is, so
// that an ArchiveTask which is sent twice finds it again, and "not found" means that the
// task ended before. Only after that it is deleted. A rule with KeepArchived has no use
// of that: a producer that died between the two would block the key for good. There
// "not found" is an error, since its meaning is not known.
func (req *request) takeBack(next string) (taken bool, err error) {
	queue, inspector := req.rule.Queue, req.client.inspector
	if !req.rule.KeepArchived {
		err := inspector.ArchiveTask(queue, next)
		if isNotFound(err) {
			return false, nil
		}
		if err != nil {
			now, looked := req.look(queue, next)
			switch {
			case looked != nil:
				return false, errors.Join(errMayRun, err, looked)
			case now == nil || started(now) || now.State == asynq.TaskStateCompleted:
				return false, nil
			case now.State != asynq.TaskStateArchived:
				return false, errors.Join(errMayRun, err)
			}
		}
	}
	err = inspector.DeleteTask(queue, next)
	if err == nil {
		return true, nil
	}
	now, looked := req.look(queue, next)
	switch {
	case looked != nil:
		return false, errors.Join(errMayRun, err, looked)
	case now == nil && isActive(err), now != nil && (started(now) || now.State == asynq.TaskStateCompleted):
		return false, nil
	case now == nil:
		return false, errUnsettled
	}
	return false, errors.Join(errMayRun, err)
}

// errMayRun: the new task is still there.
var errMayRun = errors.New("the new task could not be taken back; it may run")

// isNotFound tells whether asynq's Inspector found no such task.
func isNotFound(err error) bool {
	return errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound)
}

// isActive tells whether asynq's Inspector refused because a worker has the task, which
// it says in a text only.
func isActive(err error) bool { return strings.Contains(err.Error(), "active state") }

package unique

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/decide"
)

// selfRunDelay is when a new task runs by itself if its producer died before it deleted the
// old task and ran the new one. A producer that lives is done by then.
const selfRunDelay = grace

// supersede has the new task take the place of one that has not begun (unique.Replace and
// unique.Postpone, not the Guard's policy Replace). It returns nil, nil if the situation changed; the
// caller looks again. errBeaten means that another producer is about to supersede the same task.
//
// The steps: enqueue the new task with a later start, pass the claim on, delete the old one, run the new one. Passing on the
// claim decides: a Guard that begins the old task before refuses the new one, and one that comes
// later drops the old one, also if it waits in a worker, where asynq cannot delete it.
//
// The ID of the new task follows from that of the old one (successor). So of several producers one
// enqueues, and the others find what a producer that died has left.
func (req *request) supersede(ctx context.Context, found existing) (*asynq.TaskInfo, error) {
	old := found.info
	if err := req.clearBefore(ctx, found); err != nil {
		return nil, err
	}
	at := old.NextProcessAt // of a scheduled task; the others have no time of their own
	if req.rule.Duplicate.kind == decide.Postpone {
		at = wholeSecond(time.Now().Add(min(req.rule.Duplicate.delay, req.rule.MaxPostpone-found.claim.Age)))
		if old.State == asynq.TaskStateScheduled && at.Before(old.NextProcessAt) {
			at = old.NextProcessAt
		}
	}
	next := successor(old.ID)
	when, run := req.start(old, at)
	info, err := req.enqueue(ctx, next, when...)
	if err != nil {
		seen, looked := req.look(req.rule.Queue, next)
		switch {
		case looked != nil:
			return nil, errors.Join(err, looked)
		case seen != nil && req.sameContent(seen):
			info = seen // our own, and only the reply was lost; or one with the same content
		case errors.Is(err, asynq.ErrTaskIDConflict):
			return nil, errBeaten
		default:
			return nil, err
		}
	}
	passed, err := req.passOn(ctx, found, next)
	if err != nil {
		return nil, err // the next call finds both tasks, and which one has the claim
	}
	if !passed {
		return req.takeBack(next, info)
	}
	if run {
		if err := req.client.inspector.RunTask(req.rule.Queue, next); err == nil {
			info.State, info.NextProcessAt = asynq.TaskStatePending, time.Now()
		} // otherwise it runs by itself, after selfRunDelay
	}
	return info, nil
}

// start returns the options for the start of a task that supersedes old and is due at that time, and
// whether it is to be run as soon as old is deleted.
func (req *request) start(old *asynq.TaskInfo, at time.Time) (when []asynq.Option, run bool) {
	switch now := time.Now(); {
	case old.State == asynq.TaskStateAggregating && req.rule.Duplicate.kind == decide.Replace:
		// The task's group decides when it runs. A start time would take it out of the group.
		return nil, false
	case at.After(now) && (old.State == asynq.TaskStateScheduled || req.rule.Duplicate.kind == decide.Postpone):
		return []asynq.Option{asynq.ProcessAt(at)}, false
	}
	return []asynq.Option{asynq.ProcessIn(selfRunDelay)}, true
}

// passOn passes the claim on to the task next, and deletes the old task. false means that the old
// task has begun, or that the claim is not its own any more.
func (req *request) passOn(ctx context.Context, found existing, next string) (bool, error) {
	c, ctx := inner.Claim(req.client.locker, req.key), context.WithoutCancel(ctx)
	inWorker := found.info.State == asynq.TaskStateActive
	passed, err := c.PassOn(ctx, found.claim.Holder, req.holder(next), inWorker)
	if err != nil || !passed {
		return false, err
	}
	switch err := req.remove(found.id); {
	case err == nil, inWorker && isActive(err):
	case isActive(err): // a worker has it by now
		_, err = c.PassOn(ctx, found.claim.Holder, req.holder(next), true)
		return true, err
	default:
		return true, err
	}
	return true, nil
}

// clearBefore deletes what a producer that died has left: the task that found's own has superseded.
func (req *request) clearBefore(ctx context.Context, found existing) error {
	before := predecessor(found.id)
	if before == "" {
		return nil
	}
	err := req.remove(before)
	if isActive(err) {
		_, err = inner.Claim(req.client.locker, req.key).PassOn(ctx, req.holder(before), found.claim.Holder, true)
	}
	return err
}

// errBeaten: another producer has enqueued the task that is to supersede the same one.
var errBeaten = errors.New("another producer supersedes the same task")

// helpAfter is how long a producer waits for another one that supersedes the same task, before it
// takes that one for dead and finishes its work.
const helpAfter = time.Second

// finishFor does for another producer what is left to do once it has enqueued its task.
func (req *request) finishFor(ctx context.Context, found existing) error {
	next := successor(found.id)
	passed, err := req.passOn(ctx, found, next)
	if err == nil && !passed {
		_, err = req.discard(next)
	}
	return err
}

// takeBack removes the new task, which could not take the place of the old one. It returns nil, nil
// if the caller is to look again. Under UntilStart the new task may run: the old one has begun, so
// nothing was in its way.
func (req *request) takeBack(next string, info *asynq.TaskInfo) (*asynq.TaskInfo, error) {
	begun, err := req.discard(next)
	if err != nil {
		return nil, errors.Join(errMayRun, err)
	}
	if begun && req.rule.Until.kind == decide.UntilStart {
		return info, nil
	}
	return nil, nil //nolint:nilnil // look again
}

// errMayRun: the new task is still there.
var errMayRun = errors.New("the new task could not be taken back; it may run")

// successor returns the ID of the task that supersedes the task with this ID: that with the next
// number in its series. predecessor returns the ID of the task that this one has superseded, or "".
func successor(id string) string {
	series, number := splitID(id)
	return series + strconv.Itoa(number+1)
}

func predecessor(id string) string {
	series, number := splitID(id)
	if number <= 0 {
		return ""
	}
	return series + strconv.Itoa(number-1)
}

// splitID splits an ID of internal/claim.
func splitID(id string) (series string, number int) {
	i := strings.LastIndexByte(id, '.') + 1
	number, _ = strconv.Atoi(id[i:])
	return id[:i], number
}

// wholeSecond rounds t up to whole seconds, since asynq drops fractions of a second.
func wholeSecond(t time.Time) time.Time {
	if whole := t.Truncate(time.Second); whole.Before(t) {
		return whole.Add(time.Second)
	}
	return t
}

// isActive tells whether asynq's Inspector refused because a worker has the task, which
// it says in a text only.
func isActive(err error) bool { return err != nil && strings.Contains(err.Error(), "active state") }

// isListless tells whether asynq's Inspector refused because the task is in none of its lists, which it says in a text only.
func isListless(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "not found in list") || strings.Contains(err.Error(), "not found in zset"))
}

func ignoreActive(err error) error {
	if isActive(err) {
		return nil
	}
	return err
}

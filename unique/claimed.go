package unique

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/claim"
	"github.com/automutex/automutex/lock"
)

// byClaim is UntilStart and For with Reject or Join: claim, then enqueue. The
// claim says which task it stands for; what that means is found out by looking
// at the task, so that nothing blocks the key but a task or the window of For.
func (o *order) byClaim(ctx context.Context) (*asynq.TaskInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	id, instead, again := o.newID(), "", ""
	for range tries {
		o.client.begin(id)
		standing, err := o.take(ctx, id, instead)
		if err == nil && standing.Holder == o.holder(id) {
			info, err := o.enqueueClaimed(ctx, id)
			o.client.end(id)
			return info, err
		}
		o.client.end(id)
		if err != nil {
			return nil, err
		}
		info, gone, err := o.judge(ctx, standing)
		switch {
		case err != nil:
			return nil, err
		case gone:
			instead = standing.Holder
		case info == nil && again != standing.Holder:
			again = standing.Holder // it may have started and ended since the claim was seen: then that is gone
		case info == nil:
			return o.duplicate(o.unseen(standing))
		default:
			return o.duplicate(info)
		}
	}
	return nil, errChanging
}

// take takes the claim for a new task. An answer that was lost may have taken
// it: then there will be no task.
func (o *order) take(ctx context.Context, id, instead string) (standing lock.Claimed, err error) {
	length := claimLife
	if o.rule.Until.kind == untilOver {
		length = o.rule.Until.window
	}
	if instead == "" && o.rule.Duplicate.kind != duplicatePostpone { // which wants to know the time of the first call
		var taken bool
		if taken, err = o.claim().TakeFree(ctx, o.holder(id), length); taken {
			return lock.Claimed{Holder: o.holder(id)}, nil
		}
	}
	if err == nil {
		standing, err = o.claim().Take(ctx, o.holder(id), instead, length)
	}
	if errors.Is(err, lock.ErrBackend) {
		_, dropped := o.claim().Drop(context.WithoutCancel(ctx), o.holder(id))
		return standing, errors.Join(err, dropped)
	}
	return standing, err
}

// judge says what a claim stands for: a task that is in the way, nothing any
// more, or neither: a task that is not there but may be coming, or one that is
// not there while the window of For lasts.
func (o *order) judge(ctx context.Context, standing lock.Claimed) (info *asynq.TaskInfo, gone bool, err error) {
	queue, id, ok := claim.Task(standing.Holder)
	if !ok {
		return nil, true, nil // none of ours
	}
	settled := o.client.settled(id) // before the look, or the task might come between the two
	if info, err = o.look(queue, id); err != nil {
		return nil, false, err
	}
	window := o.rule.Until.kind == untilOver
	switch {
	case window && info != nil && !standing.Confirmed:
		// Its producer died before it could say so.
		_, err = o.claim().Keep(ctx, standing.Holder, standing.Holder, 0)
		return info, false, err
	case window && standing.Confirmed:
		return info, false, nil
	case info == nil:
		return nil, standing.Confirmed || settled || standing.Age >= o.client.grace, nil
	case ended(info) && !o.rule.KeepArchived:
		return info, true, nil
	}
	return info, false, nil
}

// unseen describes a task that has a claim and is not there.
func (o *order) unseen(standing lock.Claimed) *asynq.TaskInfo {
	queue, id, _ := claim.Task(standing.Holder)
	info := &asynq.TaskInfo{ID: id, Queue: queue, Type: o.task.Type(), State: asynq.TaskStatePending}
	if standing.Confirmed {
		info.State = asynq.TaskStateCompleted
	}
	return info
}

// enqueueClaimed enqueues the task that has just taken the claim. When that
// fails the claim is dropped, unless the task may be there all the same: then
// the claim is right, or is found to be nobody's by the next call.
func (o *order) enqueueClaimed(ctx context.Context, id string, more ...asynq.Option) (*asynq.TaskInfo, error) {
	info, err := o.enqueue(ctx, id, more...)
	if err != nil {
		seen, looked := o.look(o.rule.Queue, id)
		switch {
		case looked != nil:
			return nil, errors.Join(err, looked)
		case seen != nil:
			info = seen // the answer was lost, the task was not
		case errors.Is(err, asynq.ErrTaskIDConflict):
			// Nobody else has this ID: the command was sent twice, and the task
			// has ended since the first.
			info = o.unseen(lock.Claimed{Holder: o.holder(id)})
		default:
			_, dropped := o.claim().Drop(context.WithoutCancel(ctx), o.holder(id))
			return nil, errors.Join(err, dropped)
		}
	}
	o.confirm(ctx, id, info)
	return info, nil
}

// farAhead is when a claim that lasts claimLife has to be told of a task's time.
const farAhead = 24 * time.Hour

// confirm tells the claim what it has to know of the enqueued task: for a window
// that there was one, and for a task that is scheduled far ahead how long that
// is. The task is enqueued whatever comes of it: without, the claim may end
// early, after the grace or claimLife, which is worth no error.
func (o *order) confirm(ctx context.Context, id string, info *asynq.TaskInfo) {
	length := time.Duration(0)
	if ahead := time.Until(info.NextProcessAt); ahead > farAhead && o.rule.Until.kind != untilOver {
		length = min(ahead+claimLife, lock.MaxTTL)
	}
	if length > 0 || o.rule.Until.kind == untilOver {
		_, _ = o.claim().Keep(context.WithoutCancel(ctx), o.holder(id), o.holder(id), length)
	}
}

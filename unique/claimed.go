package unique

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// byClaim is UntilStart and For with Reject or Join: claim, then enqueue. The
// claim says which task it stands for; what that means is found out by looking
// at the task, so that nothing blocks the key but a task or the window of For.
//
// A claim whose task is not there may be that of a producer whose enqueue is under way.
// That task is no duplicate yet: when the enqueue fails nobody has the update. So the
// call waits until the task is there or the claim is not, for patience at most.
func (o *order) byClaim(ctx context.Context) (*asynq.TaskInfo, error) {
	id, instead, again := o.newID(), "", ""
	looks := o.client.retries()
	for changed := 0; changed < tries; {
		info, standing, err := o.claimAndEnqueue(ctx, id, instead)
		if info != nil || err != nil {
			return info, err
		}
		state, info, err := o.judge(ctx, standing)
		switch {
		case err != nil:
			return nil, err
		case state == claimOver:
			instead = standing.Holder
			changed++
		case state == claimInTheWay:
			return o.duplicate(info)
		case again != standing.Holder:
			again = standing.Holder // it may have started and ended since the claim was seen: then that is gone
			changed++
		case looks.over():
			return nil, &underwayError{standing, o.client.grace}
		default:
			if err := looks.pause(ctx); err != nil {
				return nil, err
			}
		}
	}
	return nil, errChanging
}

// claimAndEnqueue takes the claim, and enqueues the task if it got it; else the result
// is the claim that stands.
func (o *order) claimAndEnqueue(ctx context.Context, id, instead string) (*asynq.TaskInfo, inside.Claimed, error) {
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	o.client.begin(id)
	defer o.client.end(id)
	standing, err := o.take(ctx, id, instead)
	if err != nil || standing.Holder != o.holder(id) {
		return nil, standing, err
	}
	info, err := o.enqueueClaimed(ctx, id)
	return info, standing, err
}

// take takes the claim for a new task. An answer that was lost may have taken
// it: then there will be no task.
func (o *order) take(ctx context.Context, id, instead string) (standing inside.Claimed, err error) {
	length := claimLife
	if o.rule.Until.kind == untilOver {
		length = o.rule.Until.window
	}
	if instead == "" && o.rule.Duplicate.kind != duplicatePostpone { // which wants to know the time of the first call
		var taken bool
		if taken, err = inner.Claim(o.client.locker, o.key).TakeFree(ctx, o.holder(id), length); taken {
			return inside.Claimed{Holder: o.holder(id)}, nil
		}
	}
	if err == nil {
		standing, err = inner.Claim(o.client.locker, o.key).Take(ctx, o.holder(id), instead, length)
	}
	if errors.Is(err, lock.ErrBackend) {
		_, dropped := inner.Claim(o.client.locker, o.key).Drop(context.WithoutCancel(ctx), o.holder(id))
		return standing, errors.Join(err, dropped)
	}
	return standing, err
}

// underwayError: a claim stands, and its task is not there.
type underwayError struct {
	claim inside.Claimed
	grace time.Duration // what the claim stands for at the longest without a task
}

func (e *underwayError) Error() string {
	return fmt.Sprintf("another producer took the key %s ago, and its task %s is not in Redis: its enqueue is still under way, or failed, "+
		"or the task was deleted; try again, the key is free in %s at the latest",
		e.claim.Age.Round(time.Millisecond), e.claim.Holder, (e.grace - e.claim.Age).Round(time.Millisecond))
}

// claimState is what a claim stands for.
type claimState uint8

const (
	claimOver     claimState = iota // nothing any more
	claimInTheWay                   // a task, or the rest of the window of For
	claimUnderway                   // a task that is not there and may be coming
)

// judge says what a claim stands for. info is the task in the way.
func (o *order) judge(ctx context.Context, standing inside.Claimed) (state claimState, info *asynq.TaskInfo, err error) {
	queue, id, ok := tasknote.Parse(standing.Holder)
	if !ok {
		return claimOver, nil, nil // none of ours
	}
	settled := o.client.settled(id) // before the look, or the task might come between the two
	if info, err = o.look(queue, id); err != nil {
		return claimOver, nil, err
	}
	window := o.rule.Until.kind == untilOver
	switch {
	case window && info != nil && !standing.Confirmed:
		// Its producer died before it could say so.
		_, err = inner.Claim(o.client.locker, o.key).Keep(ctx, standing.Holder, standing.Holder, 0)
		return claimInTheWay, info, err
	case window && standing.Confirmed && info == nil:
		return claimInTheWay, o.unseen(standing), nil
	case window && standing.Confirmed:
		return claimInTheWay, info, nil
	case info == nil && (standing.Confirmed || settled || standing.Age >= o.client.grace):
		return claimOver, nil, nil
	case info == nil:
		return claimUnderway, nil, nil
	case ended(info) && !o.rule.KeepArchived:
		return claimOver, nil, nil
	}
	return claimInTheWay, info, nil
}

// unseen describes a task that has a claim and is not there.
func (o *order) unseen(standing inside.Claimed) *asynq.TaskInfo {
	queue, id, _ := tasknote.Parse(standing.Holder)
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
			info = o.unseen(inside.Claimed{Holder: o.holder(id)})
		default:
			_, dropped := inner.Claim(o.client.locker, o.key).Drop(context.WithoutCancel(ctx), o.holder(id))
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
		length = min(ahead+claimLife, inside.MaxTTL)
	}
	if length > 0 || o.rule.Until.kind == untilOver {
		_, _ = inner.Claim(o.client.locker, o.key).Keep(context.WithoutCancel(ctx), o.holder(id), o.holder(id), length)
	}
}

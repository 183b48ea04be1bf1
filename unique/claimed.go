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

// byClaim implements UntilStart and For with Reject or Join: take the claim, then enqueue.
// The claim names its task. byClaim looks at that task, so that only a task or the window of
// For blocks the key.
//
// A claim without a task may be that of a producer whose enqueue is under way. That task is
// no duplicate yet: if the enqueue fails, no task carries the update. So byClaim waits until
// the task exists or the claim is gone, for patience at most.
func (req *request) byClaim(ctx context.Context) (*asynq.TaskInfo, error) {
	id, instead, seenHolder := req.newID(), "", ""
	poll := req.client.newPolling()
	for changed := 0; changed < tries; {
		info, standing, err := req.claimAndEnqueue(ctx, id, instead)
		if info != nil || err != nil {
			return info, err
		}
		state, info, err := req.stateOf(ctx, standing)
		switch {
		case err != nil:
			return nil, err
		case state == claimOver:
			instead = standing.Holder
			changed++
		case state == claimInTheWay:
			return req.duplicate(info)
		case seenHolder != standing.Holder:
			// Look once more: the task may have started and ended since the claim was read, and
			// then the claim is gone.
			seenHolder = standing.Holder
			changed++
		case poll.isOver():
			return nil, &underwayError{standing, req.client.grace}
		default:
			if err := poll.sleep(ctx); err != nil {
				return nil, err
			}
		}
	}
	return nil, errChanging
}

// claimAndEnqueue takes the claim and enqueues the task. If another claim stands, it returns
// that claim and no task.
func (req *request) claimAndEnqueue(ctx context.Context, id, instead string) (*asynq.TaskInfo, inside.Claimed, error) {
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	req.client.begin(id)
	defer req.client.end(id)
	standing, err := req.take(ctx, id, instead)
	if err != nil || standing.Holder != req.holder(id) {
		return nil, standing, err
	}
	info, err := req.enqueueClaimed(ctx, id)
	return info, standing, err
}

// take takes the claim for a new task. If Redis' reply was lost, the claim may have been
// taken for a task that will never exist, so take drops it.
func (req *request) take(ctx context.Context, id, instead string) (standing inside.Claimed, err error) {
	length := claimLife
	if req.rule.Until.kind == untilWindow {
		length = req.rule.Until.window
	}
	if instead == "" && req.rule.Duplicate.kind != duplicatePostpone { // which needs the claim's age
		var taken bool
		if taken, err = inner.Claim(req.client.locker, req.key).TakeFree(ctx, req.holder(id), length); taken {
			return inside.Claimed{Holder: req.holder(id)}, nil
		}
	}
	if err == nil {
		standing, err = inner.Claim(req.client.locker, req.key).Take(ctx, req.holder(id), instead, length)
	}
	if errors.Is(err, lock.ErrBackend) {
		_, dropped := inner.Claim(req.client.locker, req.key).Drop(context.WithoutCancel(ctx), req.holder(id))
		return standing, errors.Join(err, dropped)
	}
	return standing, err
}

// underwayError says that a claim stands and its task does not exist.
type underwayError struct {
	claim inside.Claimed
	grace time.Duration // how long the claim blocks the key without a task
}

func (e *underwayError) Error() string {
	return fmt.Sprintf("another producer took the key %s ago, and its task %s is not in Redis: its enqueue is still under way, or failed, "+
		"or the task was deleted; try again, the key is free in %s at the latest",
		e.claim.Age.Round(time.Millisecond), e.claim.Holder, (e.grace - e.claim.Age).Round(time.Millisecond))
}

// claimState is what a claim stands for.
type claimState uint8

const (
	claimOver     claimState = iota // nothing: it may be taken over
	claimInTheWay                   // a task, or the rest of the window of For
	claimUnderway                   // a task whose enqueue may be under way
)

// stateOf returns what a claim stands for. info is the task in the way.
func (req *request) stateOf(ctx context.Context, standing inside.Claimed) (state claimState, info *asynq.TaskInfo, err error) {
	queue, id, ok := tasknote.Parse(standing.Holder)
	if !ok {
		return claimOver, nil, nil // no claim of package unique
	}
	settled := req.client.settled(id) // before the look at the task: its enqueue might end between the two
	if info, err = req.look(queue, id); err != nil {
		return claimOver, nil, err
	}
	window := req.rule.Until.kind == untilWindow
	switch {
	case window && info != nil && !standing.Confirmed:
		// The task's producer died before it confirmed the claim: hand the claim to the task,
		// and confirm it.
		_, err = inner.Claim(req.client.locker, req.key).Keep(ctx, standing.Holder, standing.Holder, 0)
		return claimInTheWay, info, err
	case window && standing.Confirmed && info == nil:
		return claimInTheWay, req.unseen(standing), nil
	case window && standing.Confirmed:
		return claimInTheWay, info, nil
	case info == nil && (standing.Confirmed || settled || standing.Age >= req.client.grace):
		return claimOver, nil, nil
	case info == nil:
		return claimUnderway, nil, nil
	case ended(info) && !req.rule.KeepArchived:
		return claimOver, nil, nil
	}
	return claimInTheWay, info, nil
}

// unseen describes a task that has a claim and does not exist.
func (req *request) unseen(standing inside.Claimed) *asynq.TaskInfo {
	queue, id, _ := tasknote.Parse(standing.Holder)
	info := &asynq.TaskInfo{ID: id, Queue: queue, Type: req.task.Type(), State: asynq.TaskStatePending}
	if standing.Confirmed {
		info.State = asynq.TaskStateCompleted
	}
	return info
}

// enqueueClaimed enqueues the task whose claim was just taken. If that fails, it drops the
// claim, unless the task may exist all the same: then the claim is right, or the next call
// finds that it has no task.
func (req *request) enqueueClaimed(ctx context.Context, id string, more ...asynq.Option) (*asynq.TaskInfo, error) {
	info, err := req.enqueue(ctx, id, more...)
	if err != nil {
		seen, looked := req.look(req.rule.Queue, id)
		switch {
		case looked != nil:
			return nil, errors.Join(err, looked)
		case seen != nil:
			info = seen // only the reply was lost
		case errors.Is(err, asynq.ErrTaskIDConflict):
			// No other task has this ID: go-redis sent the command twice, and the task has
			// ended since the first.
			info = req.unseen(inside.Claimed{Holder: req.holder(id)})
		default:
			_, dropped := inner.Claim(req.client.locker, req.key).Drop(context.WithoutCancel(ctx), req.holder(id))
			return nil, errors.Join(err, dropped)
		}
	}
	req.confirm(ctx, id, info)
	return info, nil
}

// farAhead is how far ahead a task must be scheduled for confirm to prolong its claim.
const farAhead = 24 * time.Hour

// confirm confirms the claim of a window, and prolongs the claim of a task that is scheduled
// far ahead. The task is enqueued already, so confirm returns no error: without it the claim
// may end early, after client.grace or claimLife.
func (req *request) confirm(ctx context.Context, id string, info *asynq.TaskInfo) {
	length := time.Duration(0)
	if ahead := time.Until(info.NextProcessAt); ahead > farAhead && req.rule.Until.kind != untilWindow {
		length = min(ahead+claimLife, inside.MaxTTL)
	}
	if length > 0 || req.rule.Until.kind == untilWindow {
		// Hand the claim to the task, and confirm it.
		_, _ = inner.Claim(req.client.locker, req.key).Keep(context.WithoutCancel(ctx), req.holder(id), req.holder(id), length)
	}
}

package unique

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/tasknote"
)

// selfRunDelay is when a new task runs by itself if its producer died before it deleted the
// old task and ran the new one. A producer that lives is done by then.
const selfRunDelay = grace

// supersede implements unique.Replace and unique.Postpone (not the Guard's policy Replace).
//
// asynq changes the payload of a scheduled task in one step. Any other task is replaced in
// several steps, see swap: enqueue the new task with a later start, delete the old one, hand
// the claim on, run the new one. After a crash at any point the key still has a task. The
// ID of the new task follows from that of the old one (successor), so the next producer
// finds both and deletes one.
//
// All steps hold the key's lock (withKeyLock), so one producer at a time is in here for a
// key.
//
// A claim without a task may be that of a producer whose enqueue is under way after it lost
// the key's lock. Then supersede releases the lock and looks again, for patience at most, as
// byClaim does.
func (req *request) supersede(ctx context.Context) (*asynq.TaskInfo, error) {
	id := req.key
	if req.rule.Until.kind != untilDone {
		id = req.newID()
		req.client.begin(id) // settled reports false for id until end
		defer req.client.end(id)
	}
	for poll := req.client.newPolling(); ; {
		info, err := req.withKeyLock(ctx, func(ctx context.Context) (*asynq.TaskInfo, error) { return req.supersedeLocked(ctx, id) })
		var underway *underwayError
		if !errors.As(err, &underway) || poll.isOver() {
			return info, err
		}
		if err := poll.sleep(ctx); err != nil {
			return nil, err
		}
	}
}

// supersedeLocked is supersede under the key's lock. If the key has no task, the new task
// gets the ID id.
func (req *request) supersedeLocked(ctx context.Context, id string) (*asynq.TaskInfo, error) {
	seenHolder := ""
	for range tries {
		s, err := req.surveyAndClaim(ctx, id)
		if errors.Is(err, errMoved) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var info *asynq.TaskInfo
		switch {
		case s.inTheWay != nil && s.holder != seenHolder:
			// Look once more: the task may have started since the claim was read, and then the
			// claim is gone.
			seenHolder = s.holder
			continue
		case s.inTheWay != nil:
			return req.duplicate(s.inTheWay)
		case s.underway != nil:
			return nil, s.underway
		case len(s.waiting) == 0:
			info, err = req.enqueueFirst(ctx, id, s)
		case len(s.waiting) > 1:
			// A producer died in swap. Delete either task; the next turn of this loop
			// supersedes the other one.
			_, err = req.removeWaiting(ctx, s.waiting[0])
		default:
			info, err = req.supersedeTask(ctx, s)
		}
		if info != nil || err != nil && !errors.Is(err, errMoved) {
			return info, err
		}
	}
	return nil, errChanging
}

// scene is what surveyAndClaim found for a key.
type scene struct {
	holder   string            // of the claim, which may be the new task's own; empty under UntilDone
	age      time.Duration     // of the claim
	waiting  []*asynq.TaskInfo // tasks that have not started: none, one, or two after a crash
	inTheWay *asynq.TaskInfo   // a task that must not be superseded: it has started, or a window or KeepArchived keeps it
	underway *underwayError    // the claim has no task, and an enqueue may still be under way
	deadline time.Time         // for the enqueue of the task whose claim surveyAndClaim took
}

// surveyAndClaim finds the tasks and the claim of the key. It has two side effects: if no
// claim stands, it takes the claim for id; under UntilDone without KeepArchived it deletes
// ended tasks.
func (req *request) surveyAndClaim(ctx context.Context, id string) (s scene, err error) {
	queue, window := req.rule.Queue, false
	var past *asynq.TaskInfo        // a task that has ended; in the way unless another one waits
	absent := (*underwayError)(nil) // s.underway if no task is found
	if req.rule.Until.kind != untilDone {
		s.deadline = time.Now().Add(enqueueTimeout)
		standing, err := req.take(ctx, id, "")
		if err != nil {
			return s, err
		}
		s.holder, s.age = standing.Holder, standing.Age
		if s.holder == req.holder(id) {
			return s, nil // this call took the claim, so no task has this ID yet
		}
		var ok bool
		if queue, id, ok = tasknote.Parse(standing.Holder); !ok {
			return s, nil
		}
		if window = req.rule.Until.kind == untilWindow; window && standing.Confirmed {
			past = req.unseen(standing)
		}
		// Decide this before the look at the task: its enqueue might end between the two.
		if !standing.Confirmed && !req.client.settled(id) && standing.Age < req.client.grace {
			absent = &underwayError{standing, req.client.grace}
		}
	}
	for _, id := range []string{id, successor(id)} {
		info, err := req.look(queue, id)
		if info != nil {
			absent = nil
		}
		switch {
		case err != nil:
			return s, err
		case info == nil:
		case !ended(info) && started(info):
			s.inTheWay = info
			return s, nil
		case !ended(info):
			s.waiting = append(s.waiting, info)
		case req.rule.KeepArchived || window:
			past = info
		case req.rule.Until.kind == untilDone:
			if _, err := req.removeWaiting(ctx, info); err != nil {
				return s, err
			}
		}
	}
	if len(s.waiting) == 0 {
		s.inTheWay, s.underway = past, absent
	}
	return s, nil
}

// enqueueFirst enqueues the task of a key that has none. It returns nil, nil if the situation
// changed; the caller looks again.
func (req *request) enqueueFirst(ctx context.Context, id string, s scene) (*asynq.TaskInfo, error) {
	postpone := req.rule.Duplicate.kind == duplicatePostpone
	var when []asynq.Option
	if postpone {
		when = append(when, asynq.ProcessAt(wholeSecond(time.Now().Add(req.rule.Duplicate.delay))))
	}
	if req.rule.Until.kind != untilDone {
		// Other producers wait for this enqueue until the claim is client.grace old.
		ctx, cancel := context.WithDeadline(ctx, s.deadline)
		defer cancel()
		if s.holder != req.holder(id) {
			standing, err := req.take(ctx, id, s.holder)
			if err != nil || standing.Holder != req.holder(id) {
				return nil, err // another producer has the claim: look again
			}
		}
		return req.enqueueClaimed(ctx, id, when...)
	}
	if postpone {
		if _, err := req.postponedFor(ctx, true); err != nil {
			return nil, err
		}
	}
	info, err := req.enqueue(ctx, id, when...)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		info, err = req.look(req.rule.Queue, id)
		if info != nil && !req.sameContent(info) {
			return nil, nil //nolint:nilnil // a producer that lost the key's lock enqueued it: look again
		}
		return info, err // our own, sent twice by go-redis, or one with the same content
	}
	if err != nil && postpone {
		// No task is postponed, so drop the start time. If the task was enqueued all the
		// same, its MaxPostpone begins with the next call.
		_, dropped := inner.Claim(req.client.locker, req.key).Drop(context.WithoutCancel(ctx), req.holder(id))
		err = errors.Join(err, dropped)
	}
	return info, err
}

// postponedFor returns, under UntilDone and Postpone, how long ago the first of the calls was
// that Postpone has put off. No claim tells that under UntilDone, so postponedFor keeps the
// time of the first call as the age of a claim. restart makes now that time.
func (req *request) postponedFor(ctx context.Context, restart bool) (time.Duration, error) {
	holder, instead := req.holder(req.key), ""
	if restart {
		instead = holder // Take begins a claim of one's own anew
	}
	first, err := inner.Claim(req.client.locker, req.key).Take(ctx, holder, instead, req.rule.MaxPostpone+req.rule.Duplicate.delay)
	return first.Age, err
}

// supersedeTask replaces the one task that waits. It returns nil, nil if that task does not
// wait any more; the caller looks again.
func (req *request) supersedeTask(ctx context.Context, s scene) (*asynq.TaskInfo, error) {
	old := s.waiting[0]
	if own := req.holder(old.ID); s.holder != "" && s.holder != own {
		// A producer died before it handed the claim on: hand the claim to the task, and
		// confirm it.
		if _, err := inner.Claim(req.client.locker, req.key).Keep(ctx, s.holder, own, 0); err != nil {
			return nil, err
		}
		s.holder = own
	}
	at := old.NextProcessAt // of a scheduled task; the others have no time of their own
	if req.rule.Duplicate.kind == duplicatePostpone {
		age := s.age
		if req.rule.Until.kind == untilDone {
			var err error
			if age, err = req.postponedFor(ctx, false); err != nil {
				return nil, err
			}
		}
		at = time.Now().Add(min(req.rule.Duplicate.delay, req.rule.MaxPostpone-age))
		if at = wholeSecond(at); old.State == asynq.TaskStateScheduled && at.Before(old.NextProcessAt) {
			at = old.NextProcessAt
		}
	}
	if old.State == asynq.TaskStateScheduled && at.Equal(old.NextProcessAt) && req.sameButPayload(old) {
		return req.update(old)
	}
	return req.swap(ctx, s, at)
}

// sameButPayload reports whether a task has this request's type and headers.
func (req *request) sameButPayload(old *asynq.TaskInfo) bool {
	return old.Type == req.task.Type() && maps.Equal(old.Headers, req.task.Headers())
}

// sameContent reports whether a task has this request's type, headers and payload.
func (req *request) sameContent(old *asynq.TaskInfo) bool {
	return req.sameButPayload(old) && bytes.Equal(old.Payload, req.task.Payload())
}

// update changes the payload of a scheduled task in one step. It returns nil, nil if the task
// is not scheduled any more; the caller looks again.
func (req *request) update(old *asynq.TaskInfo) (*asynq.TaskInfo, error) {
	if err := req.client.inspector.UpdateTaskPayload(old.Queue, old.ID, req.task.Payload()); err != nil {
		now, looked := req.look(old.Queue, old.ID)
		if looked == nil && (now == nil || now.State != old.State) {
			return nil, nil //nolint:nilnil // look again
		}
		return nil, errors.Join(err, looked)
	}
	info := *old
	info.Payload = slices.Clone(req.task.Payload())
	return &info, nil
}

// swap enqueues the new task, deletes the old one, hands the claim on and runs the new one.
// It returns nil, nil if the situation changed; the caller looks again.
func (req *request) swap(ctx context.Context, s scene, at time.Time) (*asynq.TaskInfo, error) {
	old := s.waiting[0]
	next := successor(old.ID)
	var when []asynq.Option
	run := false // run the new task once the old one is deleted
	switch now := time.Now(); {
	case old.State == asynq.TaskStateAggregating && req.rule.Duplicate.kind == duplicateReplace:
		// The task's group decides when it runs. A start time would take it out of the group.
	case at.After(now) && (old.State == asynq.TaskStateScheduled || req.rule.Duplicate.kind == duplicatePostpone):
		// Not before its time, and in a second at the earliest: the old task must be deleted
		// first. So the new task may be due up to two seconds late.
		if soonest := wholeSecond(now.Add(time.Second)); at.Before(soonest) {
			at = soonest
		}
		when = append(when, asynq.ProcessAt(at))
	default:
		// Run it after the old task is deleted. It runs by itself if this producer dies before.
		when = append(when, asynq.ProcessIn(selfRunDelay))
		run = true
	}
	info, err := req.enqueue(ctx, next, when...)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		info, err = req.look(req.rule.Queue, next)
		switch {
		case err != nil || info == nil:
		case ended(info):
			return nil, req.remove(req.rule.Queue, next) // left by a producer that died in swap; look again
		case !req.sameContent(info):
			return nil, nil //nolint:nilnil // a producer that lost the key's lock enqueued it: look again
		} // otherwise our own, sent twice by go-redis, or one with the same content
	}
	found := false
	if err == nil {
		found, err = req.removeSuperseded(ctx, old)
	}
	switch {
	case errors.Is(err, errUnknown):
		return nil, err // the old task may be deleted, so keep the new one: it runs by itself
	case err != nil || info == nil || !found && req.rule.Until.kind == untilWindow:
		// The old task stays, or has run in the window of For. No caller was told of the new
		// task, and it has not run: take it back.
		return req.undo(ctx, next, info, err)
	}
	req.handOn(ctx, s.holder, next)
	if run {
		if err := req.client.inspector.RunTask(req.rule.Queue, next); err == nil {
			info.State, info.NextProcessAt = asynq.TaskStatePending, time.Now()
		} // otherwise it runs by itself, after selfRunDelay
	}
	return info, nil
}

// handOn hands the claim to the new task. If the old task has started after all and has
// dropped its claim, handOn takes a new claim. If Redis fails, the claim names a task that
// does not exist, and the next producer looks for that task's successor.
func (req *request) handOn(ctx context.Context, holder, next string) {
	if req.rule.Until.kind == untilDone {
		return
	}
	length := time.Duration(0)
	if req.rule.Until.kind == untilStart {
		length = claimLife
	}
	ctx = context.WithoutCancel(ctx)
	// Hand the claim to the task, and confirm it.
	if kept, err := inner.Claim(req.client.locker, req.key).Keep(ctx, holder, req.holder(next), length); err == nil && !kept {
		_, _ = req.take(ctx, next, "")
	}
}

// successor returns the ID of the task that replaces the task with this ID. It increments
// the number at the end of the ID. Under UntilDone it is the other one of two IDs: the key,
// and the key with ":other".
func successor(id string) string {
	const other = ":other"
	if rest, ok := strings.CutSuffix(id, other); ok {
		return rest
	}
	if i := strings.LastIndexByte(id, '.'); i > strings.LastIndexByte(id, '}') {
		if n, err := strconv.Atoi(id[i+1:]); err == nil {
			return id[:i+1] + strconv.Itoa(n+1)
		}
	}
	return id + other
}

// wholeSecond rounds t up to whole seconds, since asynq drops fractions of a second.
func wholeSecond(t time.Time) time.Time {
	if whole := t.Truncate(time.Second); whole.Before(t) {
		return whole.Add(time.Second)
	}
	return t
}

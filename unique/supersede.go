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

// supersede is Replace and Postpone. asynq changes the payload of a scheduled
// task in one step; for all else the new task has to be enqueued and the old one
// deleted, and a producer may die between any two commands. So the new one comes
// first, under an ID that follows from the old one's and at a time when it does
// not run yet: whatever is missing after that, the key has a task, and the next
// producer finds both and deletes the one that is too many.
//
// All of it is alone: of the producers one at a time is in here for a key.
//
// A claim whose task is not there may be that of a producer whose enqueue is under way,
// after its lock ended. Then the call gives the lock back and looks again, for patience
// at most, as byClaim does.
func (o *order) supersede(ctx context.Context) (*asynq.TaskInfo, error) {
	id := o.key
	if o.rule.Until.kind != untilDone {
		id = o.newID()
		o.client.begin(id) // until no enqueue of it is under way
		defer o.client.end(id)
	}
	for again := o.client.retries(); ; {
		info, err := o.alone(ctx, func(ctx context.Context) (*asynq.TaskInfo, error) { return o.supersedeAlone(ctx, id) })
		var under *underwayError
		if !errors.As(err, &under) || again.over() {
			return info, err
		}
		if err := again.pause(ctx); err != nil {
			return nil, err
		}
	}
}

// supersedeAlone is supersede while no other producer is in alone. id is that of a first
// task.
func (o *order) supersedeAlone(ctx context.Context, id string) (*asynq.TaskInfo, error) {
	again := ""
	for range tries {
		s, err := o.survey(ctx, id)
		if errors.Is(err, errMoved) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var info *asynq.TaskInfo
		switch {
		case s.inTheWay != nil && s.holder != again:
			again = s.holder // it may have started since the claim was seen: then that is gone
			continue
		case s.inTheWay != nil:
			return o.duplicate(s.inTheWay)
		case s.underway != nil:
			return nil, s.underway
		case len(s.waiting) == 0:
			info, err = o.first(ctx, id, s)
		case len(s.waiting) > 1:
			// A producer died in here. Either may go: what is left is
			// superseded in its turn.
			_, err = o.removeWaiting(ctx, s.waiting[0])
		default:
			info, err = o.supersedeTask(ctx, s)
		}
		if info != nil || err != nil && !errors.Is(err, errMoved) {
			return info, err
		}
	}
	return nil, errChanging
}

// scene is what stands for a key.
type scene struct {
	holder   string            // of the claim, which may be the new task's own; empty under UntilDone
	age      time.Duration     // of the claim
	waiting  []*asynq.TaskInfo // tasks that have not started: none, one, or two after a crash
	inTheWay *asynq.TaskInfo   // one that is not to be superseded
	underway *underwayError    // the claim's task is not there, and may be coming
	deadline time.Time         // of the enqueue of a task whose claim was taken now
}

// survey finds out, and takes the claim for the task with that ID where there is
// none. Under UntilDone it makes room.
func (o *order) survey(ctx context.Context, id string) (s scene, err error) {
	queue, window := o.rule.Queue, false
	var past *asynq.TaskInfo        // one that has ended, and counts unless another one waits
	absent := (*underwayError)(nil) // what it means that there is no task
	if o.rule.Until.kind != untilDone {
		s.deadline = time.Now().Add(enqueueTimeout)
		standing, err := o.take(ctx, id, "")
		if err != nil {
			return s, err
		}
		s.holder, s.age = standing.Holder, standing.Age
		if s.holder == o.holder(id) {
			return s, nil // no task has this ID yet
		}
		var ok bool
		if queue, id, ok = tasknote.Parse(standing.Holder); !ok {
			return s, nil
		}
		if window = o.rule.Until.kind == untilOver; window && standing.Confirmed {
			past = o.unseen(standing)
		}
		// Before the look, or the task might come between the two.
		if !standing.Confirmed && !o.client.settled(id) && standing.Age < o.client.grace {
			absent = &underwayError{standing, o.client.grace}
		}
	}
	for _, id := range []string{id, successor(id)} {
		info, err := o.look(queue, id)
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
		case o.rule.KeepArchived || window:
			past = info
		case o.rule.Until.kind == untilDone:
			if _, err := o.removeWaiting(ctx, info); err != nil {
				return s, err
			}
		}
	}
	if len(s.waiting) == 0 {
		s.inTheWay, s.underway = past, absent
	}
	return s, nil
}

// first enqueues the first task for a key.
func (o *order) first(ctx context.Context, id string, s scene) (*asynq.TaskInfo, error) {
	postpone := o.rule.Duplicate.kind == duplicatePostpone
	var when []asynq.Option
	if postpone {
		when = append(when, asynq.ProcessAt(wholeSecond(time.Now().Add(o.rule.Duplicate.delay))))
	}
	if o.rule.Until.kind != untilDone {
		// The grace counts on that: others wait for the enqueue no longer.
		ctx, cancel := context.WithDeadline(ctx, s.deadline)
		defer cancel()
		if s.holder != o.holder(id) {
			standing, err := o.take(ctx, id, s.holder)
			if err != nil || standing.Holder != o.holder(id) {
				return nil, err // another's: look again
			}
		}
		return o.enqueueClaimed(ctx, id, when...)
	}
	if postpone {
		if _, err := o.since(ctx, o.holder(id)); err != nil {
			return nil, err
		}
	}
	info, err := o.enqueue(ctx, id, when...)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		info, err = o.look(o.rule.Queue, id)
		if info != nil && !o.same(info) {
			return nil, nil //nolint:nilnil // of a producer whose lock ended meanwhile: look again
		}
		return info, err // ours, sent twice, or one that says the same
	}
	if err != nil && postpone {
		// Nothing is put off. Should the task be there all the same, its time to be
		// put off begins with the next call.
		_, dropped := inner.Claim(o.client.locker, o.key).Drop(context.WithoutCancel(ctx), o.holder(id))
		err = errors.Join(err, dropped)
	}
	return info, err
}

// since is how long ago the first of the calls was that Postpone has put off
// under UntilDone, where no claim tells: it is kept as one. instead of the
// holder itself begins anew.
func (o *order) since(ctx context.Context, instead string) (time.Duration, error) {
	standing, err := inner.Claim(o.client.locker, o.key).Take(ctx, o.holder(o.key), instead, o.rule.MaxPostpone+o.rule.Duplicate.delay)
	return standing.Age, err
}

// supersedeTask puts the new task in the place of the one that waits; nil
// without an error when that one does not wait any more.
func (o *order) supersedeTask(ctx context.Context, s scene) (*asynq.TaskInfo, error) {
	old := s.waiting[0]
	if own := o.holder(old.ID); s.holder != "" && s.holder != own {
		// A producer died before it could hand the claim on.
		if _, err := inner.Claim(o.client.locker, o.key).Keep(ctx, s.holder, own, 0); err != nil {
			return nil, err
		}
		s.holder = own
	}
	at := old.NextProcessAt // of a scheduled task; the others have no time of their own
	if o.rule.Duplicate.kind == duplicatePostpone {
		age := s.age
		if o.rule.Until.kind == untilDone {
			var err error
			if age, err = o.since(ctx, ""); err != nil {
				return nil, err
			}
		}
		at = time.Now().Add(min(o.rule.Duplicate.delay, o.rule.MaxPostpone-age))
		if at = wholeSecond(at); old.State == asynq.TaskStateScheduled && at.Before(old.NextProcessAt) {
			at = old.NextProcessAt
		}
	}
	if old.State == asynq.TaskStateScheduled && at.Equal(old.NextProcessAt) && o.alike(old) {
		return o.update(old)
	}
	return o.exchange(ctx, s, at)
}

// alike: nothing but the payload differs.
func (o *order) alike(old *asynq.TaskInfo) bool {
	return old.Type == o.task.Type() && maps.Equal(old.Headers, o.task.Headers())
}

// same: nothing that this call would enqueue differs.
func (o *order) same(old *asynq.TaskInfo) bool {
	return o.alike(old) && bytes.Equal(old.Payload, o.task.Payload())
}

// update changes the payload of a scheduled task where it is.
func (o *order) update(old *asynq.TaskInfo) (*asynq.TaskInfo, error) {
	if err := o.client.inspector.UpdateTaskPayload(old.Queue, old.ID, o.task.Payload()); err != nil {
		now, looked := o.look(old.Queue, old.ID)
		if looked == nil && (now == nil || now.State != old.State) {
			return nil, nil //nolint:nilnil // it is not scheduled any more: look again
		}
		return nil, errors.Join(err, looked)
	}
	info := *old
	info.Payload = slices.Clone(o.task.Payload())
	return &info, nil
}

// exchange enqueues the new task, deletes the old one, hands the claim on and
// lets the new one run.
func (o *order) exchange(ctx context.Context, s scene, at time.Time) (*asynq.TaskInfo, error) {
	old := s.waiting[0]
	next := successor(old.ID)
	var when []asynq.Option
	run := false // at once, when the old one is gone
	switch now := time.Now(); {
	case old.State == asynq.TaskStateAggregating && o.rule.Duplicate.kind == duplicateReplace:
		// Its group decides when; a scheduled task would lose its group.
	case at.After(now) && (old.State == asynq.TaskStateScheduled || o.rule.Duplicate.kind == duplicatePostpone):
		// Never before its time, and with a second at least to delete the old one: so
		// it may be due up to two seconds late.
		if soonest := wholeSecond(now.Add(time.Second)); at.Before(soonest) {
			at = soonest
		}
		when = append(when, asynq.ProcessAt(at))
	default:
		// Not before the old one is gone; by itself if we die before we say so.
		when = append(when, asynq.ProcessIn(grace))
		run = true
	}
	info, err := o.enqueue(ctx, next, when...)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		info, err = o.look(o.rule.Queue, next)
		switch {
		case err != nil || info == nil:
		case ended(info):
			return nil, o.remove(o.rule.Queue, next) // of a producer that died in here; look again
		case !o.same(info):
			return nil, nil //nolint:nilnil // of a producer whose lock ended meanwhile: look again
		} // else ours, sent twice, or one that says the same
	}
	found := false
	if err == nil {
		found, err = o.removeSuperseded(ctx, old)
	}
	switch {
	case errors.Is(err, errUnknown):
		return nil, err // the old one may be gone, so the new one stays: it runs by itself
	case err != nil || info == nil || !found && o.rule.Until.kind == untilOver:
		// The old one stays, or has run in the window of For. What there may be of
		// the new one was promised to nobody, and has not run.
		return o.undo(ctx, next, info, err)
	}
	o.handOn(ctx, s.holder, next)
	if run {
		if err := o.client.inspector.RunTask(o.rule.Queue, next); err == nil {
			info.State, info.NextProcessAt = asynq.TaskStatePending, time.Now()
		} // else it runs by itself, after the grace
	}
	return info, nil
}

// handOn gives the claim to the new task, or makes one where the old one has
// started after all and its claim is gone. Where that fails the claim names a
// task that is gone, and the next producer looks for its successor.
func (o *order) handOn(ctx context.Context, holder, next string) {
	if o.rule.Until.kind == untilDone {
		return
	}
	length := time.Duration(0)
	if o.rule.Until.kind == untilStart {
		length = claimLife
	}
	ctx = context.WithoutCancel(ctx)
	if kept, err := inner.Claim(o.client.locker, o.key).Keep(ctx, holder, o.holder(next), length); err == nil && !kept {
		_, _ = o.take(ctx, next, "")
	}
}

// successor is the ID of the task that takes the place of the one with this ID:
// one more in the last number, or under UntilDone the other one of two.
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

// wholeSecond rounds up: asynq drops fractions of a second.
func wholeSecond(t time.Time) time.Time {
	if whole := t.Truncate(time.Second); whole.Before(t) {
		return whole.Add(time.Second)
	}
	return t
}

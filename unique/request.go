package unique

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/mark"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// request is one Enqueue call for a task that a rule matches. It belongs to the caller's
// goroutine.
//
// The claim decides: whose task the key is, and whether its handler has begun. It changes in one
// step, so no order of the steps of producers and workers leaves two accepted tasks. Under UntilDone
// with Reject or Join the claim is the ID of the task, and asynq refuses the second one.
type request struct {
	client *Client
	rule   *rule
	key    string
	id     string // of the new task, if it supersedes none
	task   *asynq.Task
	opts   []asynq.Option
}

// errChanging means that the existing task changed between each look and what the call did then.
var errChanging = fmt.Errorf("%w: the task in the way changes faster than it can be looked at, or the asynq.Inspector looks at another database than the client; try again", ErrEnqueueUnderWay)

// run takes the claim and enqueues the task, or does what decide.Admit says of what stands there.
func (req *request) run(ctx context.Context) (*asynq.TaskInfo, error) {
	instead, id := "", ""
	poll := req.client.newPolling()
	seen := poll.began // when this call first saw the task of that id
	for changed := 0; ; {
		info, found, err := req.try(ctx, instead)
		if info != nil || err != nil {
			return info, err
		}
		if instead = ""; found.id != id {
			id, seen = found.id, time.Now()
		}
		switch decide.Admit(req.facts(found)) {
		case decide.Enqueue:
			changed++
			if instead = found.claim.Holder; !req.rule.hasClaim() && found.info != nil {
				info, err = req.replaceEnded(ctx)
			}
		case decide.Refuse:
			return nil, req.duplicate(found)
		case decide.JoinIt:
			return found.info, nil
		case decide.Supersede:
			switch info, err = req.supersede(ctx, found); {
			case !errors.Is(err, errBeaten):
				changed++
			case time.Since(seen) >= min(helpAfter, req.client.patience):
				changed++
				err = req.finishFor(ctx, found)
			case poll.isOver():
				err = errChanging
			default:
				err = poll.sleep(ctx)
			}
		case decide.LookAgain:
			switch {
			case found.info == nil && poll.isOver():
				return nil, &underWayError{found.claim, req.client.grace}
			case found.info != nil && time.Since(seen) >= min(pickUpTime, req.client.patience):
				return nil, req.duplicate(found) // its worker has no Guard, so its handler runs
			case poll.isOver():
				return nil, errChanging
			}
			err = poll.sleep(ctx)
		}
		if info == nil && err == nil && changed > tries {
			if poll.isOver() {
				return nil, errChanging
			}
			err = poll.sleep(ctx)
		}
		if info != nil || err != nil {
			return info, err
		}
	}
}

// existing is what stands for the key: a claim, and its task as asynq has it.
type existing struct {
	claim     mark.Standing // without a Holder: none. Under UntilDone with Reject or Join: the task's ID.
	queue, id string
	info      *asynq.TaskInfo // nil: asynq does not have the task
}

// try takes the claim, also instead of that holder, and enqueues the task. It returns no task if
// another claim stands, or has just ended.
func (req *request) try(ctx context.Context, instead string) (*asynq.TaskInfo, existing, error) {
	// Other producers wait for this enqueue until the claim is client.grace old.
	bound, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	if !req.rule.hasClaim() {
		info, err := req.enqueue(ctx, req.id)
		full := errors.Is(err, automutex.ErrFull) // in order, and asynq was not asked
		if !full && !errors.Is(err, asynq.ErrTaskIDConflict) {
			return info, existing{}, err
		}
		found := existing{queue: req.rule.Queue, id: req.id}
		seen, looked := req.look(found.queue, found.id)
		switch {
		case full && seen == nil, looked != nil:
			return nil, existing{}, errors.Join(err, looked)
		case isLost(seen):
			return nil, existing{}, lostError(found.queue, found.id)
		case seen != nil:
			found.info, found.claim = seen, mark.Standing{Holder: req.holder(req.id), Phase: mark.Enqueued}
		}
		return nil, found, nil
	}
	standing, err := req.take(bound, instead)
	if err != nil {
		return nil, existing{}, err
	}
	if standing.Holder == req.holder(req.id) {
		info, err := req.enqueueClaimed(bound, instead)
		return info, existing{}, err
	}
	found := existing{claim: standing}
	var ok bool
	if found.queue, found.id, ok = tasknote.Parse(standing.Holder); !ok {
		return nil, found, nil // no claim of package unique: no such task exists
	}
	if found.info, err = req.look(found.queue, found.id); err == nil && found.info != nil && standing.Phase == mark.Enqueuing {
		// Its producer died before it confirmed the claim, or is about to.
		_, err = inner.Claim(req.client.locker, req.key).Keep(ctx, standing.Holder, 0)
	}
	return nil, found, err
}

// take takes the claim for the new task. If Redis' reply was lost, the claim may have been taken for
// a task that will never exist, so take drops it.
func (req *request) take(ctx context.Context, instead string) (mark.Standing, error) {
	c := inner.Claim(req.client.locker, req.key)
	standing, err := c.Take(ctx, req.holder(req.id), instead, req.rule.claimLength())
	if errors.Is(err, lock.ErrBackend) {
		_, dropped := c.Drop(context.WithoutCancel(ctx), req.holder(req.id))
		return standing, errors.Join(err, dropped)
	}
	return standing, err
}

// enqueueClaimed enqueues the task whose claim was just taken, and confirms the claim. If the enqueue
// fails, it drops the claim, unless the task may exist all the same: then the claim is right, or the
// next call finds that it has no task.
func (req *request) enqueueClaimed(ctx context.Context, instead string) (*asynq.TaskInfo, error) {
	if _, id, ok := tasknote.Parse(instead); ok && req.rule.Duplicate.supersedes() {
		// A producer may have died before its task took the place of the old one. Now that the claim
		// is no more the old one's, that task is never accepted any more.
		if _, err := req.discard(successor(id)); err != nil {
			return nil, err
		}
	}
	var when []asynq.Option
	if req.rule.Duplicate.kind == decide.Postpone {
		when = append(when, asynq.ProcessAt(wholeSecond(time.Now().Add(req.rule.Duplicate.delay))))
	}
	info, err := req.enqueue(ctx, req.id, when...)
	if err != nil {
		seen, looked := req.look(req.rule.Queue, req.id)
		switch {
		case looked != nil:
			return nil, errors.Join(err, looked)
		case seen != nil:
			info = seen // only the reply was lost
		case errors.Is(err, asynq.ErrTaskIDConflict):
			// No other task has this ID: go-redis sent the command twice, and the task has
			// ended since the first.
			info = &asynq.TaskInfo{ID: req.id, Queue: req.rule.Queue, Type: req.task.Type(), State: asynq.TaskStatePending}
		default:
			_, dropped := inner.Claim(req.client.locker, req.key).Drop(context.WithoutCancel(ctx), req.holder(req.id))
			return nil, errors.Join(err, dropped)
		}
	}
	req.confirm(ctx, info)
	return info, nil
}

// farAhead is how far ahead the end of a task must be for confirm to prolong its claim.
const farAhead = 24 * time.Hour

// confirm notes in the claim that the task is enqueued. From then on a task that asynq does not have
// has ended, however it ended, and its claim with it. A claim lasts longer for a task that is
// scheduled far ahead. The task is enqueued already, so confirm returns no error: without it the
// claim may block the key for client.grace after the task's end.
func (req *request) confirm(ctx context.Context, info *asynq.TaskInfo) {
	length := time.Duration(0)
	if req.rule.Until.kind != decide.ForTime {
		ahead := max(time.Until(info.NextProcessAt), 0)
		if req.rule.KeepArchived {
			ahead += info.Retention
		}
		if ahead > farAhead {
			length = min(ahead+req.rule.claimLength(), inside.MaxTTL)
		}
	}
	_, _ = inner.Claim(req.client.locker, req.key).Keep(context.WithoutCancel(ctx), req.holder(req.id), length)
}

// facts returns what decide.Admit decides by.
func (req *request) facts(found existing) decide.Existing {
	e := decide.Existing{
		Until: req.rule.Until.kind, Duplicate: req.rule.Duplicate.kind, Keep: req.rule.KeepArchived, Begun: found.claim.Phase == mark.Begun,
	}
	if past := req.rule.Duplicate.kind == decide.Postpone && found.claim.Age >= req.rule.MaxPostpone; past && found.info != nil &&
		(found.info.State != asynq.TaskStateScheduled || !found.info.NextProcessAt.After(time.Now())) {
		e.Begun = true // it is due: another one in its place would go to the end of the queue, at each call
	}
	switch {
	case found.id == "":
		e.Claim = decide.Settled
	case found.claim.Holder == "":
		e.Claim = decide.NoClaim
	case found.claim.Phase != mark.Enqueuing:
		e.Claim = decide.Confirmed
	case found.claim.Age >= req.client.grace:
		e.Claim = decide.Settled
	default:
		e.Claim = decide.Fresh
	}
	switch {
	case found.info == nil, isLost(found.info):
		e.Task = decide.Absent
	case found.info.State == asynq.TaskStateArchived, found.info.State == asynq.TaskStateCompleted:
		e.Task = decide.Ended
	case found.info.State == asynq.TaskStateActive && found.claim.Phase != mark.Waiting:
		e.Task = decide.Active
	default:
		e.Task = decide.Waits
	}
	return e
}

// duplicate returns the error for a task that blocks the key.
func (req *request) duplicate(found existing) *DuplicateError {
	e := &DuplicateError{Rule: req.rule.Task, Key: req.key, ID: found.id, Queue: found.queue, State: asynq.TaskStateCompleted, Gone: found.info == nil}
	if found.info != nil {
		e.State = found.info.State
	}
	return e
}

// replaceEnded deletes the ended task whose ID is the key, and enqueues the new one. It returns nil,
// nil if the situation changed; the caller looks again. It holds the key's lock, so no other producer
// enqueues a task between the look and the deletion. It does not keep an operator from running the
// ended task in that moment.
func (req *request) replaceEnded(ctx context.Context) (*asynq.TaskInfo, error) {
	return req.withKeyLock(ctx, func(ctx context.Context) (*asynq.TaskInfo, error) {
		found, err := req.look(req.rule.Queue, req.id)
		if err != nil || found == nil || found.State != asynq.TaskStateArchived && found.State != asynq.TaskStateCompleted {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := req.client.inspector.DeleteTask(req.rule.Queue, req.id); isListless(err) {
			return nil, lostError(req.rule.Queue, req.id)
		} else if err != nil && !errors.Is(err, asynq.ErrTaskNotFound) {
			return nil, err
		}
		info, err := req.enqueue(ctx, req.id)
		if errors.Is(err, asynq.ErrTaskIDConflict) {
			return nil, nil // another producer enqueued first: look again
		}
		return info, err
	})
}

// withKeyLock runs f while this producer holds the claim's own lock, which is not the lock
// that tasks take. f reads, decides and writes in several steps. f's context ends when that
// lock is lost.
//
// Producers poll for the lock. A line would cost each of them a subscription, and the lock
// is held rarely, for a few round trips. If a producer died holding it, callers poll until
// its TTL ends.
func (req *request) withKeyLock(ctx context.Context, f func(context.Context) (*asynq.TaskInfo, error)) (*asynq.TaskInfo, error) {
	keyLock := inner.ClaimLock(req.client.locker, req.key, lock.TTL(req.client.changeTTL))
	for poll := req.client.newPolling(); ; {
		lease, err := keyLock.TryLock(ctx)
		if err == nil {
			defer lease.Unlock(ctx) //nolint:errcheck // the lease ends at its TTL; f's context told f if it was lost
			bound := lease.Bind(ctx)
			info, err := f(bound)
			if err != nil && bound.Err() != nil && ctx.Err() == nil {
				err = errors.Join(err, context.Cause(bound)) // the lock was lost, which ended the round trips
			}
			return info, err
		}
		if !errors.Is(err, lock.ErrBusy) {
			return nil, err
		}
		if poll.isOver() {
			return nil, fmt.Errorf("%w: it has held this key's lock for %s: %w", ErrEnqueueUnderWay, req.client.patience, err)
		}
		if err := poll.sleep(ctx); err != nil {
			return nil, err
		}
	}
}

// enqueue enqueues the task in asynq under an ID. asynq uses the last of conflicting
// options, so more overrides the caller's options.
func (req *request) enqueue(ctx context.Context, id string, more ...asynq.Option) (*asynq.TaskInfo, error) {
	opts := slices.Concat(req.opts, []asynq.Option{asynq.Queue(req.rule.Queue), asynq.TaskID(id)}, more)
	info, err := req.client.enqueuer.EnqueueContext(inside.WithOnce(ctx, req.rule.fitsOrder), req.task, opts...)
	if err == nil {
		req.client.learn(info)
	}
	return info, err
}

// learn finds out whether rdb is on asynq's Redis: then it has the task that was just enqueued, unless a worker is done with it
// already. So a Client looks again after its next tasks, a few times.
func (c *Client) learn(info *asynq.TaskInfo) {
	c.enqueued.Store(info.Queue, true)
	if c.rdb == nil || c.shared.Load() || c.looks.Add(1) > 10 {
		return
	}
	if kept, _ := blocked.IsKept(c.rdb, info.Queue, info.ID); kept { // after an error nothing is known
		c.shared.Store(true)
	}
}

// look returns a task as asynq has it now, or nil if there is none. If asynq does not list the queue, there is none only if rdb is on
// asynq's Redis, or if this Client has enqueued nothing in that queue yet: its first task has asynq list the queue.
func (req *request) look(queue, id string) (*asynq.TaskInfo, error) {
	c := req.client
	_, enqueued := c.enqueued.Load(queue) // before the look: the queue may be listed meanwhile
	info, gone, err := blocked.Find(c.inspector, c.rdb, queue, id)
	if errors.Is(err, asynq.ErrQueueNotFound) && !errors.Is(err, blocked.ErrElsewhere) {
		if gone = !enqueued || c.shared.Load(); !gone {
			return nil, fmt.Errorf("whether task %q of queue %q exists is not known: %w; is the asynq.Inspector on the Redis and the database of the client? "+
				"If somebody has deleted the queue, redis-cli SADD asynq:queues '%s' lists it again", id, queue, err, queue)
		}
	}
	if gone {
		return nil, nil //nolint:nilnil // documented: nil means no task
	}
	return info, err
}

// isLost reports whether a task is in none of asynq's lists, so that it never runs.
func isLost(info *asynq.TaskInfo) bool {
	return info != nil && info.NextProcessAt.IsZero() && (info.State == asynq.TaskStateScheduled || info.State == asynq.TaskStateRetry)
}

// remove deletes a task of the rule's queue. It returns nil if there is none, or if asynq has lost it. asynq refuses to delete
// a task that a worker has.
func (req *request) remove(id string) error {
	err := req.client.inspector.DeleteTask(req.rule.Queue, id)
	if errors.Is(err, asynq.ErrTaskNotFound) || isListless(err) {
		return nil
	}
	return err
}

// discard deletes a task that was to take the place of another one and did not. What a worker has or has
// had was accepted meanwhile, and its claim has ended since: discard leaves it there, and returns true.
func (req *request) discard(id string) (begun bool, err error) {
	left, err := req.look(req.rule.Queue, id)
	if err != nil || left == nil {
		return false, err
	}
	switch left.State {
	case asynq.TaskStateScheduled, asynq.TaskStateAggregating, asynq.TaskStatePending:
		if left.LastErr != "" {
			return true, nil
		}
		err = req.remove(id)
		return isActive(err), ignoreActive(err)
	}
	return true, nil
}

// holder returns the claim value (queue/id) for a task ID.
func (req *request) holder(id string) string { return tasknote.Of(req.rule.Queue, id) }

// sameContent reports whether a task has this request's type and payload.
func (req *request) sameContent(old *asynq.TaskInfo) bool {
	return old.Type == req.task.Type() && bytes.Equal(old.Payload, req.task.Payload())
}

// newID makes the ID of the new task.
func (c *Client) newID(r *rule, key string) string {
	if !r.hasClaim() {
		return mark.TaskID(key)
	}
	return mark.ID(key, r.kind(), c.nonce())
}

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
	case err == nil && inWorker: // it parked in between, and no worker will note its end
		_, err = c.Start(ctx, found.claim.Holder, mark.Ended, req.rule.kind().EndsAtStart(), claimLife)
		return true, err
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

// polling paces a loop that looks at Redis until the client's patience is over.
type polling struct {
	began    time.Time
	patience time.Duration
	next     time.Duration // the mean of the next sleep
}

func (c *Client) newPolling() *polling {
	return &polling{time.Now(), c.patience, time.Millisecond}
}

// isOver reports whether the patience is over.
func (p *polling) isOver() bool { return time.Since(p.began) >= p.patience }

// sleep sleeps, each time about twice as long as before and at most about 50 ms. It returns
// ctx's error if ctx ends first.
func (p *polling) sleep(ctx context.Context) error {
	pause := p.next/2 + rand.N(p.next) //nolint:gosec // jitter, no secret
	p.next = min(2*p.next, 50*time.Millisecond)
	select {
	case <-time.After(pause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

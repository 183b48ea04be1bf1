package unique

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// request is one Enqueue call for a task that a rule matches. It belongs to the caller's goroutine.
//
// The claim decides: whose task the key is, and whether its handler has begun. A call takes the claim, enqueues the
// task and confirms the claim. To supersede a task it announces the new one in the claim of the old one: then the
// confirmation, or the Guard that begins one of the two, decides in one step which one is accepted, and the other one
// never begins. Under UntilDone with Reject or Join the claim is the ID of the task, and asynq refuses the second one.
type request struct {
	client *Client
	rule   *rule
	key    string
	id     string // of the new task
	task   *asynq.Task
	opts   []asynq.Option
}

// errChanging means that the existing task changed between each look and what the call did then.
var errChanging = fmt.Errorf("%w: the task in the way changes faster than it can be looked at, or the "+
	"asynq.Inspector looks at another database than the client; try again", ErrEnqueueUnderWay)

// run takes the claim and enqueues the task, or does what decide.Admit says of what stands there.
func (req *request) run(ctx context.Context) (*asynq.TaskInfo, error) {
	var old existing // what the new task takes the place of
	began, wait, id := time.Now(), time.Millisecond, ""
	seen := began // when this call first saw the task of that id
	for changed := 0; ; {
		info, found, err := req.try(ctx, old)
		if info != nil || err != nil {
			return info, err
		}
		if old = (existing{}); found.id != id {
			id, seen = found.id, time.Now()
		}
		over := errChanging // the error when the call has no patience left
		switch action := decide.Admit(req.facts(found)); action {
		case decide.Refuse:
			return nil, req.duplicate(found)
		case decide.JoinIt:
			return found.info, nil
		case decide.LookAgain:
			if found.info == nil {
				over = req.underWay(found.claim)
			} else if time.Since(seen) >= min(pickUpTime, req.client.patience) {
				return nil, req.duplicate(found) // its worker has no Guard, so its handler runs
			}
		case decide.Enqueue, decide.Supersede:
			old, old.supersedes = found, action == decide.Supersede
			if !req.rule.hasClaim() && found.info != nil {
				info, err = req.replaceEnded(ctx)
			}
			changed++
			var busy *engine.Busy
			switch {
			case errors.As(err, &busy):
				over = fmt.Errorf("%w: %s has held this key's lock for %s", ErrEnqueueUnderWay, busy.Who().Owner,
					req.client.patience)
			case info != nil || err != nil:
				return info, err
			case changed <= tries:
				continue
			}
		}
		if time.Since(began) >= req.client.patience {
			return nil, over
		}
		if wait, err = pause(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// underWay returns the error for a claim that stands and whose task does not exist.
func (req *request) underWay(claim claims.Standing) error {
	age, left := claim.Age.Round(time.Millisecond), (req.client.grace - claim.Age).Round(time.Millisecond)
	return fmt.Errorf("%w: it took the key %s ago, and its task %s is not in Redis yet; try again, the key is free in "+
		"%s at the latest", ErrEnqueueUnderWay, age, claim.Holder, left)
}

// existing is what stands for the key: a claim, and its task as asynq has it.
type existing struct {
	claim      claims.Standing // without a Holder: none. Under UntilDone with Reject or Join: the task's ID.
	queue, id  string
	info       *asynq.TaskInfo // nil: asynq does not have the task
	supersedes bool            // the new task takes its place while it lives
}

// try takes the claim, also that of old, and enqueues the task. It returns no task if another claim stands, or has just
// ended.
func (req *request) try(ctx context.Context, old existing) (*asynq.TaskInfo, existing, error) {
	// Other producers wait for this enqueue until the claim is client.grace old.
	bound, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	if !req.rule.hasClaim() {
		info, err := req.enqueue(ctx)
		full := errors.Is(err, automutex.ErrFull) // in order, and asynq was not asked
		if !full && !errors.Is(err, asynq.ErrTaskIDConflict) {
			return info, existing{}, err
		}
		found := existing{queue: req.rule.Queue, id: req.id}
		seen, looked := req.look(found.queue, found.id)
		switch {
		case full && (seen == nil || isEnded(seen) && !req.rule.KeepArchived), looked != nil:
			return nil, existing{}, errors.Join(err, looked)
		case isLost(seen):
			return nil, existing{}, lostError(found.queue, found.id)
		case seen != nil:
			found.info, found.claim = seen, claims.Standing{Holder: req.holder(), Phase: claims.Enqueued}
		}
		return nil, found, nil
	}
	standing, err := req.take(bound, old)
	if err != nil {
		return nil, existing{}, err
	}
	if standing.Holder == req.holder() || standing.Newer == req.holder() {
		info, err := req.enqueueClaimed(bound, old)
		return info, existing{}, err
	}
	underWay := standing.Newer != "" && standing.NewerAge < req.client.grace
	if underWay { // as if it had the claim: it is waited for
		standing = claims.Standing{Holder: standing.Newer, Age: standing.NewerAge, Phase: claims.Enqueuing}
	}
	found := existing{claim: standing}
	var ok bool
	if found.queue, found.id, ok = tasknote.Parse(standing.Holder); !ok || underWay {
		return nil, found, nil // or no claim of package unique: no such task exists
	}
	if found.info, err = req.look(found.queue, found.id); err == nil && found.info != nil &&
		standing.Phase == claims.Enqueuing {
		// Its producer died before it confirmed the claim, or is about to.
		_, err = req.claim().Keep(ctx, standing.Holder, 0)
	}
	return nil, found, err
}

func (req *request) claim() claims.Claim { return req.client.engine.Claim(req.key) }

// take takes the claim for the new task, or announces the task in the claim of the one that it supersedes. If Redis'
// reply was lost, that may have happened for a task that will never exist, so take undoes it.
func (req *request) take(ctx context.Context, old existing) (standing claims.Standing, err error) {
	if old.supersedes {
		standing, err = req.claim().Supersede(ctx, req.holder(), old.claim)
	} else {
		standing, err = req.claim().Take(ctx, req.holder(), old.claim.Holder, req.rule.claimLength())
	}
	if errors.Is(err, lock.ErrBackend) {
		_, dropped := req.claim().Drop(context.WithoutCancel(ctx), req.holder())
		return standing, errors.Join(err, dropped)
	}
	return standing, err
}

// enqueueClaimed enqueues the task whose claim was just taken, and confirms the claim. If the enqueue fails, it undoes
// the take, unless the task may exist all the same: then the claim is right, or the next call finds that it has no
// task.
func (req *request) enqueueClaimed(ctx context.Context, old existing) (*asynq.TaskInfo, error) {
	info, err := req.enqueue(ctx, req.start(old)...)
	if err != nil {
		seen, looked := req.look(req.rule.Queue, req.id)
		switch {
		case looked != nil:
			return nil, errors.Join(err, looked)
		case seen != nil:
			info = seen // only the reply was lost
		case errors.Is(err, asynq.ErrTaskIDConflict):
			// No other task has this ID: go-redis sent the command twice, and the task has ended since the first.
			info = &asynq.TaskInfo{ID: req.id, Queue: req.rule.Queue, Type: req.task.Type(), State: asynq.TaskStatePending}
		default:
			_, dropped := req.claim().Drop(context.WithoutCancel(ctx), req.holder())
			return nil, errors.Join(err, dropped)
		}
	}
	ctx = context.WithoutCancel(ctx)
	standing, err := req.confirm(ctx, info)
	switch {
	case !old.supersedes:
		// it is accepted; without the confirmation the claim may block the key for client.grace after its end
		_ = req.clean(ctx, standing.Stale)
		return info, nil
	case err != nil:
		return nil, err // the next call finds both tasks, and which one has the claim
	case standing.Holder != req.holder() && standing.Holder != "": // without one the window of For has ended
		return req.takeBack(ctx, info)
	}
	return info, req.clean(ctx, standing.Stale)
}

// start returns the option that says when the new task starts.
func (req *request) start(old existing) []asynq.Option {
	var at time.Time
	switch postpones := req.rule.Duplicate.kind == decide.Postpone; {
	case !old.supersedes && !postpones:
		return nil
	case postpones && !old.supersedes:
		at = wholeSecond(time.Now().Add(req.rule.Duplicate.delay))
	case postpones:
		at = wholeSecond(time.Now().Add(min(req.rule.Duplicate.delay, req.rule.MaxPostpone-old.claim.Age)))
	case old.info.State == asynq.TaskStateAggregating:
		return nil // the task's group decides; a start time would take it out of the group
	}
	if old.supersedes && old.info.State == asynq.TaskStateScheduled && at.Before(old.info.NextProcessAt) {
		at = old.info.NextProcessAt
	}
	return []asynq.Option{asynq.ProcessAt(at)} // at once, if that is past
}

// confirm has the claim say that the task is enqueued. From then on a task that asynq does not have has ended, however
// it ended, and its claim with it. The claim of a scheduled task lasts longer.
func (req *request) confirm(ctx context.Context, info *asynq.TaskInfo) (claims.Standing, error) {
	length := time.Duration(0)
	if req.rule.Until.kind != decide.ForTime {
		ahead := max(0, time.Until(info.NextProcessAt))
		length = min(min(ahead, inside.MaxTTL)+min(info.Retention, inside.MaxTTL)+req.rule.claimLength(), inside.MaxTTL)
	}
	return req.claim().Keep(ctx, req.holder(), length)
}

// takeBack deletes the new task, which did not take the place of the old one: that has begun, or other producers took
// this one for dead. It returns nil, nil if the caller is to look again. Under UntilStart a task that a worker has had
// was accepted, and its start has ended the claim.
func (req *request) takeBack(ctx context.Context, info *asynq.TaskInfo) (*asynq.TaskInfo, error) {
	if req.rule.Until.kind == decide.UntilStart {
		left, err := req.look(req.rule.Queue, req.id)
		if err != nil {
			return nil, err
		}
		if left == nil || left.LastErr != "" || left.State == asynq.TaskStateActive ||
			left.State == asynq.TaskStateCompleted {
			return info, nil
		}
	}
	err := req.clean(ctx, []string{req.holder()})
	req.id = newID(req.rule, req.key) // the claim may go on to refuse the old one
	return nil, err
}

// clean deletes tasks that were superseded. One that a worker has stays: asynq does not delete it, and the worker's
// Guard drops it and writes that in the claim.
func (req *request) clean(ctx context.Context, stale []string) error {
	for _, holder := range stale {
		_, id, _ := tasknote.Parse(holder)
		err := req.client.inspector.DeleteTask(req.rule.Queue, id)
		if isActive(err) {
			continue
		}
		if err == nil || errors.Is(err, asynq.ErrTaskNotFound) || isListless(err) {
			_, err = req.claim().Start(ctx, holder, claims.Ended, req.rule.kind().EndsAtStart(), claimLife)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// facts returns what decide.Admit decides by.
func (req *request) facts(found existing) decide.Existing {
	e := decide.Existing{
		Until: req.rule.Until.kind, Duplicate: req.rule.Duplicate.kind, Keep: req.rule.KeepArchived,
		Begun: found.claim.Phase == claims.Begun,
	}
	_, kind, claimed := claims.Parse(found.id, req.client.engine.Options().Prefix)
	if claimed && req.rule.Duplicate.supersedes() && (kind != req.rule.kind() || found.queue != req.rule.Queue) {
		e.Begun = true // its rule was another one then, and it may know of no task in its place
	}
	past := req.rule.Duplicate.kind == decide.Postpone && found.claim.Age >= req.rule.MaxPostpone
	if info := found.info; past && info != nil &&
		(info.State != asynq.TaskStateScheduled || !info.NextProcessAt.After(time.Now())) {
		e.Begun = true // it is due: another one in its place would go to the end of the queue, at each call
	}
	switch {
	case found.id == "":
		e.Claim = decide.Settled
	case found.claim.Holder == "":
		e.Claim = decide.NoClaim
	case found.claim.Phase != claims.Enqueuing:
		e.Claim = decide.Confirmed
	case found.claim.Age >= req.client.grace:
		e.Claim = decide.Settled
	default:
		e.Claim = decide.Fresh
	}
	switch {
	case found.info == nil, isLost(found.info):
		e.Task = decide.Absent
	case isEnded(found.info):
		e.Task = decide.Ended
	case found.info.State == asynq.TaskStateActive && found.claim.Phase != claims.Waiting:
		e.Task = decide.Active
	default:
		e.Task = decide.Waits
	}
	return e
}

// duplicate returns the error for a task that blocks the key.
func (req *request) duplicate(found existing) *DuplicateError {
	e := &DuplicateError{Rule: req.rule.Task, Key: req.key, ID: found.id, Queue: found.queue,
		State: asynq.TaskStateCompleted, Gone: found.info == nil}
	if found.info != nil {
		e.State = found.info.State
	}
	return e
}

// replaceEnded deletes the ended task whose ID is the key, and enqueues the new one. It returns nil, nil if the
// situation changed; the caller looks again. It holds the claim's own lock, which is not the lock that tasks take, so
// no other producer enqueues a task between the look and the deletion. It does not keep an operator from running the
// ended task in that moment.
//
// Producers poll for the lock, which is held rarely, for a few round trips: a line would cost each a subscription.
func (req *request) replaceEnded(ctx context.Context) (*asynq.TaskInfo, error) {
	lease, err := req.client.engine.Take(ctx, &engine.Request{
		Ref: engine.Ref{Key: claims.Key(req.key) + ":lock", Limit: 1}, Name: req.key, TTL: req.client.changeTTL,
	})
	if busy := (*engine.Busy)(nil); errors.As(err, &busy) && busy.Cause != nil {
		err = busy.Cause
	}
	if err != nil {
		return nil, err
	}
	defer lease.Release(ctx, engine.Ending{}) //nolint:errcheck // the lease ends at its TTL; the context says if it was lost
	bound := lease.Bind(ctx)
	found, err := req.look(req.rule.Queue, req.id)
	if err != nil || found == nil || !isEnded(found) {
		return nil, err
	}
	if bound.Err() != nil {
		return nil, context.Cause(bound)
	}
	if err := req.client.inspector.DeleteTask(req.rule.Queue, req.id); isListless(err) {
		return nil, lostError(req.rule.Queue, req.id)
	} else if err != nil && !errors.Is(err, asynq.ErrTaskNotFound) {
		return nil, err
	}
	info, err := req.enqueue(bound)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		return nil, nil //nolint:nilnil // another producer enqueued first: look again
	}
	return info, err
}

// enqueue enqueues the task in asynq. asynq uses the last of conflicting options, so more overrides the caller's
// options.
func (req *request) enqueue(ctx context.Context, more ...asynq.Option) (*asynq.TaskInfo, error) {
	opts := slices.Concat(req.opts, []asynq.Option{asynq.Queue(req.rule.Queue), asynq.TaskID(req.id)}, more)
	info, err := req.client.enqueuer.EnqueueContext(inside.WithOnce(ctx, req.rule.fitsOrder), req.task, opts...)
	if err == nil {
		req.client.learn(info)
	}
	return info, err
}

// learn finds out whether rdb is on asynq's Redis: then it has the task that was just enqueued, unless a worker is done
// with it already. So a Client looks again after its next tasks, a few times.
func (c *Client) learn(info *asynq.TaskInfo) {
	c.enqueued.Store(info.Queue, true)
	if c.rdb == nil || c.shared.Load() || c.looks.Add(1) > 10 {
		return
	}
	if kept, _ := blocked.IsKept(c.rdb, info.Queue, info.ID); kept { // after an error nothing is known
		c.shared.Store(true)
	}
}

// look returns a task as asynq has it now, or nil if there is none. If asynq does not list the queue, there is none
// only if rdb is on asynq's Redis, or if this Client has enqueued nothing in that queue yet: its first task has asynq
// list the queue.
func (req *request) look(queue, id string) (*asynq.TaskInfo, error) {
	c := req.client
	_, enqueued := c.enqueued.Load(queue) // before the look: the queue may be listed meanwhile
	info, gone, err := blocked.Find(c.inspector, c.rdb, queue, id)
	if errors.Is(err, asynq.ErrQueueNotFound) && !errors.Is(err, blocked.ErrElsewhere) {
		if gone = !enqueued || c.shared.Load(); !gone {
			return nil, fmt.Errorf("whether task %q of queue %q exists is not known: %w; is the asynq.Inspector on the Redis "+
				"and the database of the client? If somebody has deleted the queue, redis-cli SADD asynq:queues '%s' lists it "+
				"again", id, queue, err, queue)
		}
	}
	if gone {
		return nil, nil //nolint:nilnil // documented: nil means no task
	}
	return info, err
}

func isEnded(info *asynq.TaskInfo) bool {
	return info.State == asynq.TaskStateArchived || info.State == asynq.TaskStateCompleted
}

// isLost reports whether a task is in none of asynq's lists, so that it never runs.
func isLost(info *asynq.TaskInfo) bool {
	return info != nil && info.NextProcessAt.IsZero() &&
		(info.State == asynq.TaskStateScheduled || info.State == asynq.TaskStateRetry)
}

// holder returns the claim value (queue/id) of the new task.
func (req *request) holder() string { return tasknote.Of(req.rule.Queue, req.id) }

// newID makes the ID of a new task.
func newID(r *rule, key string) string {
	if !r.hasClaim() {
		return claims.TaskID(key)
	}
	return claims.ID(key, r.kind(), strings.ToLower(rand.Text()[:16]))
}

// wholeSecond rounds t up to whole seconds, since asynq drops fractions of a second.
func wholeSecond(t time.Time) time.Time { return t.Add(time.Second - 1).Truncate(time.Second) }

// isActive tells whether asynq's Inspector refused because a worker has the task, which it says in a text only.
func isActive(err error) bool { return err != nil && strings.Contains(err.Error(), "active state") }

// isListless tells, as isActive does, whether it refused because the task is in none of asynq's lists.
func isListless(err error) bool {
	return err != nil &&
		(strings.Contains(err.Error(), "not found in list") || strings.Contains(err.Error(), "not found in zset"))
}

// pause sleeps for about that long, and returns how long the next pause is: twice as long, at most about 50 ms. It
// returns ctx's error if ctx ends first.
func pause(ctx context.Context, mean time.Duration) (next time.Duration, err error) {
	select {
	case <-time.After(mean/2 + mathrand.N(mean)): //nolint:gosec // jitter, no secret
		return min(2*mean, 50*time.Millisecond), nil
	case <-ctx.Done():
		return mean, ctx.Err()
	}
}

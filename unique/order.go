package unique

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/claim"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// order is one call of Enqueue for a task that has a rule. It belongs to the
// caller's goroutine.
type order struct {
	client *Client
	rule   *rule
	key    string
	task   *asynq.Task
	opts   []asynq.Option
}

// errChanging: the task in the way is another one, or in another state, each
// time it is looked at.
var errChanging = errors.New("the task in the way changes faster than it can be looked at; try again")

// enqueue hands the task to asynq under an ID, further options last: of
// conflicting ones asynq takes the last.
func (o *order) enqueue(ctx context.Context, id string, more ...asynq.Option) (*asynq.TaskInfo, error) {
	opts := slices.Concat(o.opts, []asynq.Option{asynq.Queue(o.rule.Queue), asynq.TaskID(id)}, more)
	return o.client.asynq.EnqueueContext(ctx, o.task, opts...)
}

// look gives a task as it is; nil when there is none.
func (o *order) look(queue, id string) (*asynq.TaskInfo, error) {
	info, err := o.client.inspector.GetTaskInfo(queue, id)
	if isNotFound(err) {
		return nil, nil //nolint:nilnil // none is an answer
	}
	return info, err
}

// remove deletes a task; none to delete is fine. asynq refuses an active one.
func (o *order) remove(queue, id string) error {
	err := o.client.inspector.DeleteTask(queue, id)
	if isNotFound(err) {
		return nil
	}
	return err
}

// ended: the task will not run again unless somebody says so.
func ended(info *asynq.TaskInfo) bool {
	return info.State == asynq.TaskStateArchived || info.State == asynq.TaskStateCompleted
}

// started: the task's handler has it, or had. A task whose handler failed has an
// attempt counted, or only its error where the server's IsFailure says that the
// error is no failure. One that a Guard handed back before its handler began has the
// Guard's error and no attempt.
//
// A task that asynq put back into its queue when a server was shut down has neither:
// nothing in asynq tells that its handler had begun.
func started(info *asynq.TaskInfo) bool {
	return info.State == asynq.TaskStateActive || info.Retried > 0 || info.LastErr != "" && !claim.HandedBack(info.LastErr)
}

// duplicate answers for a task that is in the way.
func (o *order) duplicate(info *asynq.TaskInfo) (*asynq.TaskInfo, error) {
	kept := o.rule.KeepArchived && ended(info)
	if o.rule.Duplicate.kind == duplicateJoin && !kept {
		return info, nil
	}
	return nil, &DuplicateError{
		Rule: o.rule.Task, Key: o.key, ID: info.ID, Queue: info.Queue, State: info.State,
		Alike: info.ID == o.key && o.same(info),
	}
}

// holder is what a claim of the task with that ID says.
func (o *order) holder(id string) string { return tasknote.Of(o.rule.Queue, id) }

// alone runs f while no other producer is in an alone of this key: for what
// reads, decides and writes in several steps. The context that f gets ends when
// that is no longer so.
//
// The lock is polled for, not waited for in line: it is held for some round
// trips by one producer in a while, and a line would have every producer keep a
// subscription. A producer that died in there is waited out.
func (o *order) alone(ctx context.Context, f func(context.Context) (*asynq.TaskInfo, error)) (*asynq.TaskInfo, error) {
	m := inner.Claim(o.client.locker, o.key).Lock(lock.TTL(o.client.changeTTL))
	for again := o.client.retries(); ; {
		lease, err := m.TryLock(ctx)
		if err == nil {
			defer lease.Unlock(ctx) //nolint:errcheck // it ends by itself; f's context has told what that means
			bound := lease.Bind(ctx)
			info, err := f(bound)
			if err != nil && bound.Err() != nil && ctx.Err() == nil {
				err = errors.Join(err, context.Cause(bound)) // why the exchanges ended
			}
			return info, err
		}
		if !errors.Is(err, lock.ErrBusy) {
			return nil, err
		}
		if again.over() {
			return nil, fmt.Errorf("another producer has been at it for %s: %w", o.client.patience, err)
		}
		if err := again.pause(ctx); err != nil {
			return nil, err
		}
	}
}

// retries paces a call that looks again and again, for the client's patience.
type retries struct {
	until time.Time
	next  time.Duration // about how long the next pause is
}

func (c *Client) retries() *retries {
	return &retries{time.Now().Add(c.patience), time.Millisecond}
}

// over reports whether the patience is over.
func (r *retries) over() bool { return time.Now().After(r.until) }

// pause waits a while, each time longer, or until ctx ends; then it returns ctx's error.
func (r *retries) pause(ctx context.Context) error {
	timer := time.NewTimer(r.next/2 + rand.N(r.next)) //nolint:gosec // jitter, no secret
	r.next = min(2*r.next, 50*time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// byID is UntilDone: the ID of the task is its key, so that asynq itself keeps a
// second one out, in the enqueue itself.
func (o *order) byID(ctx context.Context) (*asynq.TaskInfo, error) {
	for range tries {
		info, err := o.enqueue(ctx, o.key)
		if !errors.Is(err, asynq.ErrTaskIDConflict) {
			return info, err
		}
		standing, err := o.look(o.rule.Queue, o.key)
		switch {
		case err != nil:
			return nil, err
		case standing == nil:
			continue // it has ended just now
		case !ended(standing) || o.rule.KeepArchived:
			return o.duplicate(standing)
		}
		if info, err = o.makeRoom(ctx); info != nil || err != nil {
			return info, err
		}
	}
	return nil, errChanging
}

// makeRoom deletes the ended task that has the ID and enqueues the new one; nil
// without an error when there is none any more. Alone, so that no other producer
// has put a new one there between the look and the deletion. (An operator who
// runs the ended task again in that moment is not kept out.)
func (o *order) makeRoom(ctx context.Context) (*asynq.TaskInfo, error) {
	return o.alone(ctx, func(ctx context.Context) (*asynq.TaskInfo, error) {
		standing, err := o.look(o.rule.Queue, o.key)
		if err != nil || standing == nil || !ended(standing) {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := o.remove(o.rule.Queue, o.key); err != nil {
			return nil, err
		}
		info, err := o.enqueue(ctx, o.key)
		if errors.Is(err, asynq.ErrTaskIDConflict) {
			return nil, nil // another one was quicker: look again
		}
		return info, err
	})
}

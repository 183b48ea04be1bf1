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

// request is one Enqueue call for a task that a rule matches. It belongs to the caller's
// goroutine.
type request struct {
	client *Client
	rule   *rule
	key    string
	task   *asynq.Task
	opts   []asynq.Option
}

// errChanging means that the existing task changed on every one of `tries` looks.
var errChanging = errors.New("the task in the way changes faster than it can be looked at; try again")

// enqueue enqueues the task in asynq under an ID. asynq uses the last of conflicting
// options, so more overrides the caller's options.
func (req *request) enqueue(ctx context.Context, id string, more ...asynq.Option) (*asynq.TaskInfo, error) {
	opts := slices.Concat(req.opts, []asynq.Option{asynq.Queue(req.rule.Queue), asynq.TaskID(id)}, more)
	return req.client.asynq.EnqueueContext(ctx, req.task, opts...)
}

// look returns a task as asynq has it now, or nil if there is none.
func (req *request) look(queue, id string) (*asynq.TaskInfo, error) {
	info, err := req.client.inspector.GetTaskInfo(queue, id)
	if isNotFound(err) {
		return nil, nil //nolint:nilnil // documented: nil means no task
	}
	return info, err
}

// remove deletes a task. It returns nil if there is none. asynq refuses to delete an active
// task.
func (req *request) remove(queue, id string) error {
	err := req.client.inspector.DeleteTask(queue, id)
	if isNotFound(err) {
		return nil
	}
	return err
}

// ended reports whether asynq has archived or completed the task. Only an operator can run
// such a task again.
func ended(info *asynq.TaskInfo) bool {
	return info.State == asynq.TaskStateArchived || info.State == asynq.TaskStateCompleted
}

// started reports whether the task's handler has begun, as far as asynq tells: the task is
// active, or has a spent attempt or an error of its handler. The error counts alone because
// a server's IsFailure may say that an error spends no attempt. The error with which a Guard
// returned the task before its handler began does not count.
//
// started misses a handler that began and was stopped by a server's shutdown: asynq requeues
// its task without a trace.
func started(info *asynq.TaskInfo) bool {
	return info.State == asynq.TaskStateActive || info.Retried > 0 || info.LastErr != "" && !claim.IsReturn(info.LastErr)
}

// duplicate returns the result of a request whose key has a task already: the task's info
// under Join, otherwise a *DuplicateError. No request joins a task that KeepArchived keeps.
func (req *request) duplicate(info *asynq.TaskInfo) (*asynq.TaskInfo, error) {
	keptArchived := req.rule.KeepArchived && ended(info)
	if req.rule.Duplicate.kind == duplicateJoin && !keptArchived {
		return info, nil
	}
	return nil, &DuplicateError{
		Rule: req.rule.Task, Key: req.key, ID: info.ID, Queue: info.Queue, State: info.State,
		Alike: info.ID == req.key && req.sameContent(info),
	}
}

// holder returns the claim value (queue/id) for a task ID.
func (req *request) holder(id string) string { return tasknote.Of(req.rule.Queue, id) }

// withKeyLock runs f while this producer holds the claim's own lock, which is not the lock
// that tasks take. f reads, decides and writes in several steps. f's context ends when that
// lock is lost.
//
// Producers poll for the lock. A line would cost each of them a subscription, and the lock
// is held rarely, for a few round trips. If a producer died holding it, callers poll until
// its TTL ends.
func (req *request) withKeyLock(ctx context.Context, f func(context.Context) (*asynq.TaskInfo, error)) (*asynq.TaskInfo, error) {
	keyLock := inner.Claim(req.client.locker, req.key).Lock(lock.TTL(req.client.changeTTL))
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
			return nil, fmt.Errorf("another producer has held this key's lock for %s: %w", req.client.patience, err)
		}
		if err := poll.sleep(ctx); err != nil {
			return nil, err
		}
	}
}

// polling paces a loop that looks at Redis until the client's patience is over.
type polling struct {
	until time.Time
	next  time.Duration // the mean of the next sleep
}

func (c *Client) newPolling() *polling {
	return &polling{time.Now().Add(c.patience), time.Millisecond}
}

// isOver reports whether the patience is over.
func (p *polling) isOver() bool { return time.Now().After(p.until) }

// sleep sleeps, each time about twice as long as before and at most about 50 ms. It returns
// ctx's error if ctx ends first.
func (p *polling) sleep(ctx context.Context) error {
	timer := time.NewTimer(p.next/2 + rand.N(p.next)) //nolint:gosec // jitter, no secret
	p.next = min(2*p.next, 50*time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enqueueByID enqueues under UntilDone. The task ID is the key, so asynq refuses a second
// task.
func (req *request) enqueueByID(ctx context.Context) (*asynq.TaskInfo, error) {
	for range tries {
		info, err := req.enqueue(ctx, req.key)
		if !errors.Is(err, asynq.ErrTaskIDConflict) {
			return info, err
		}
		existing, err := req.look(req.rule.Queue, req.key)
		switch {
		case err != nil:
			return nil, err
		case existing == nil:
			continue // the task ended after the enqueue was refused
		case !ended(existing) || req.rule.KeepArchived:
			return req.duplicate(existing)
		}
		if info, err = req.replaceEnded(ctx); info != nil || err != nil {
			return info, err
		}
	}
	return nil, errChanging
}

// replaceEnded replaces an ended task with the new one. It returns nil, nil if the situation
// changed; the caller looks again. It holds the key's lock, so no other producer enqueues a
// task between the look and the deletion. It does not keep an operator from running the
// ended task in that moment.
func (req *request) replaceEnded(ctx context.Context) (*asynq.TaskInfo, error) {
	return req.withKeyLock(ctx, func(ctx context.Context) (*asynq.TaskInfo, error) {
		existing, err := req.look(req.rule.Queue, req.key)
		if err != nil || existing == nil || !ended(existing) {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := req.remove(req.rule.Queue, req.key); err != nil {
			return nil, err
		}
		info, err := req.enqueue(ctx, req.key)
		if errors.Is(err, asynq.ErrTaskIDConflict) {
			return nil, nil // another producer enqueued first: look again
		}
		return info, err
	})
}

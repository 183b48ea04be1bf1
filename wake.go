package automutex

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/tasknote"
)

// retryWrittenIn is how long wakeParked waits until asynq has moved a task that parked a
// moment ago to retry.
const retryWrittenIn = 4 * time.Millisecond

// wakeParked wakes a parked task: it has asynq run the task. It is the [inside.Caller] that
// package lock calls when the task's turn comes.
//
// RunTask also runs completed, scheduled and archived tasks, so wakeParked first checks that
// the task is still parked. No other Guard wakes the task before the deadline of ctx, and
// wakeParked begins no RunTask after it. Between the check and RunTask an operator or
// asynq's own retry may change the task, and go-redis may send RunTask twice: then a task
// may run again, which asynq's "at least once" allows.
func (g *Guard) wakeParked(ctx context.Context, key, note string) inside.Fate {
	if item, ordered := inner.OrderItem(note); ordered {
		return g.wakeInOrder(ctx, key, item)
	}
	queue, id, ok := tasknote.Parse(note)
	if !ok {
		return inside.FateGone
	}
	if g.paused.isPaused(queue, g.inspector) {
		return inside.FateLater
	}
	var failed error
	for backoff := 500 * time.Microsecond; backoff <= retryWrittenIn; backoff *= 2 {
		info, err := g.inspector.GetTaskInfo(queue, id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound):
			return inside.FateGone
		case err != nil:
			g.log.Debug("automutex: a parked task could not be looked at; it is tried again", "key", key, "task", note, "error", err)
			return inside.FateUnsure
		case info.State == asynq.TaskStatePending:
			return inside.FateComing
		case (info.State == asynq.TaskStateRetry || info.State == asynq.TaskStateAggregating) && strings.Contains(info.LastErr, blocked.ParkedOn(key)):
			// Aggregating: a task of a group that was run by hand. asynq puts it back into its group when its
			// retry is due, and nobody may look into that group again.
			if by, bounded := ctx.Deadline(); bounded && time.Now().After(by) {
				return inside.FateUnsure
			}
			// RunTask has no typed errors, so the state is read again.
			if failed = g.inspector.RunTask(queue, id); failed == nil {
				g.moveToFront(ctx, queue, id)
				return inside.FateComing
			}
		case info.State != asynq.TaskStateActive:
			return inside.FateGone // an operator ran, archived or deleted the task
		}
		// Active: asynq has not moved the task to retry yet, or the task runs again already.
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
		}
	}
	if failed != nil {
		g.log.Debug("automutex: a parked task could not be run; it is tried again", "key", key, "task", note, "error", failed)
	}
	return inside.FateUnsure
}

// frontLua moves a task to the end of asynq's pending list from which servers take.
// RunTask has just put the task at the other end, so LREM finds it at once.
var frontLua = redis.NewScript(`
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 1 then
  redis.call('RPUSH', KEYS[1], ARGV[1])
end
return 0`)

func (g *Guard) moveToFront(ctx context.Context, queue, id string) {
	if g.frontClient == nil {
		return
	}
	if err := frontLua.Run(ctx, g.frontClient, []string{"asynq:{" + queue + "}:pending"}, id).Err(); err != nil {
		g.log.Debug("automutex: a parked task could not be moved to the front; it runs after what is pending", "queue", queue, "task", id, "error", err)
	}
}

// pausedQueues remembers for a second which queues are paused.
type pausedQueues struct {
	mu    sync.Mutex // guards known; not held across I/O
	known map[string]pausedQueue
}

type pausedQueue struct {
	paused bool
	asked  time.Time
}

// pausedFor is how long the answer for a queue is used.
const pausedFor = time.Second

func (p *pausedQueues) isPaused(queue string, inspector *asynq.Inspector) bool {
	p.mu.Lock()
	q, found := p.known[queue]
	if found && time.Since(q.asked) < pausedFor {
		p.mu.Unlock()
		return q.paused
	}
	if p.known == nil {
		p.known = make(map[string]pausedQueue)
	}
	if found { // this caller asks, the others meanwhile use the old answer
		p.known[queue] = pausedQueue{q.paused, time.Now()}
	}
	p.mu.Unlock()

	info, err := inspector.GetQueueInfo(queue)
	q = pausedQueue{err == nil && info.Paused, time.Now()} // after an error wakeParked goes on, and looks at the task
	p.mu.Lock()
	p.known[queue] = q
	p.mu.Unlock()
	return q.paused
}

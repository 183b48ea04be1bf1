package automutex

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// This file is the policy Park: when a parked task comes back by itself, and how it is woken. wait.go has the wait in
// the worker, and who gives way.

// Bounds of parkDelay, the time after which a parked task returns if no process wakes it.
const (
	minParkDelay = 5 * time.Second
	maxParkDelay = 10 * time.Minute
)

// parkClients returns what Park needs: the Inspector that wakes tasks, its Redis as far as that is known, and the
// client that moves tasks to the front of their queue. All are nil where they are not needed.
func parkClients(rdb lock.Client, cfg Config) (inspector *asynq.Inspector, inspected, front redis.UniversalClient, err error) {
	i := slices.IndexFunc(cfg.Rules, func(r Rule) bool { return r.Busy == Park })
	if i < 0 {
		return nil, nil, nil, nil
	}
	inspector, inspected, err = inspectorFor(rdb, cfg, fmt.Sprintf("the policy park of Rules[%d], which is that of a rule without Busy; "+
		"give one, or a redis.UniversalClient as the client, or set Busy to automutex.Retry", i))
	if err != nil || !cfg.WakeAtFront {
		return inspector, inspected, nil, err
	}
	front, universal := rdb.(redis.UniversalClient)
	if !universal {
		return nil, nil, nil, configError("WakeAtFront", "needs a redis.UniversalClient, not a %T", rdb)
	}
	return inspector, inspected, front, nil
}

// inspectorFor returns cfg.Inspector, whose Redis is not known, or an Inspector made from rdb. what says in an error
// what needs one.
func inspectorFor(rdb lock.Client, cfg Config, what string) (*asynq.Inspector, redis.UniversalClient, error) {
	if cfg.Inspector != nil {
		return cfg.Inspector, nil, nil
	}
	client, universal := rdb.(redis.UniversalClient)
	if !universal {
		return nil, nil, configError("Inspector", "is nil, and none can be made from a %T for %s", rdb, what)
	}
	return asynq.NewInspectorFromRedisClient(client), client, nil
}

// park returns the task to asynq, which runs it after parkDelay, unless a process wakes it before. Redis keeps its place in line.
func (d *delivery) park(t target, busy *BusyError) error {
	delay := busy.parkDelay()
	d.checkInspector()
	d.observe(Event{Kind: EventParked, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Delay: delay, Busy: busy})
	return d.comeBackIn(delay, busy)
}

// parkDelay returns after how long a parked task returns if no process wakes it: about when its turn would come if the
// holder's process had died, and each task before it held the key for a second.
//
// It is at most 5 to 10 minutes, at random, so that tasks do not return together. Behind an archived task of an ordered
// key it is that at once: to run or skip that task wakes the next one.
func (e *BusyError) parkDelay() time.Duration {
	place := min(e.Place, 1e6)
	longest := maxParkDelay - rand.N(maxParkDelay/2) //nolint:gosec // jitter, no secret
	if e.Reason == ReasonArchived {
		return longest
	}
	wait := max(e.ExpiresIn, minParkDelay) + time.Duration(place)*time.Second
	return min(wait+rand.N(wait/4), longest) //nolint:gosec // jitter, no secret
}

// inspectorHint says what to do about an Inspector that sees no task.
const inspectorHint = "are the locks on another Redis, or in another database, than asynq? Give the Guard a client of that database, or set Config.Inspector to an asynq.Inspector there"

// checkInspector warns once if the Inspector does not see the task that parks, which asynq has: the locks are on another
// Redis or database than asynq. One goroutine asks at a time, until one got an answer. It ends with the timeouts of the
// Inspector's client; Close waits for it.
func (d *delivery) checkInspector() {
	g := d.guard
	if !g.inspectorAsked.CompareAndSwap(false, true) || !g.enter() { // after Close nobody has to know
		return
	}
	go func() {
		defer g.leave()
		_, _, err := blocked.Find(g.inspector, g.asynqRedis, d.queue, d.id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
			g.blind.Store(true)
			g.warnOnce("inspector", "Config.Inspector does not see the tasks of this server, so parked tasks are not woken and return late, and a key in order stands when its next task is deleted; "+
				inspectorHint, "queue", d.queue, "task", d.note)
		case err != nil:
			g.inspectorAsked.Store(false)
		}
	}()
}

// retryWrittenIn is how long wake waits until asynq has moved a task that parked a moment ago to retry.
const retryWrittenIn = 4 * time.Millisecond

// wakeParked has asynq run a parked task. It is the [engine.Caller] that the engine calls when the task's turn comes.
func (g *Guard) wakeParked(ctx context.Context, key, note string) engine.Fate {
	if item, ordered := engine.ParseItem(note); ordered {
		return g.wakeInOrder(ctx, key, item)
	}
	queue, _, ok := tasknote.Parse(note)
	if !ok {
		return engine.FateGone
	}
	if g.isPaused(queue) {
		return engine.FateLater
	}
	return g.wake(ctx, note, func(info *asynq.TaskInfo, gone bool, err error) (engine.Fate, next) {
		switch {
		case gone:
			return engine.FateGone, answer
		case err != nil:
			return engine.FateUnsure, answer
		}
		fate := engine.FateComing
		if isOverdue(info) {
			fate = engine.FateGone // asynq ends it before it comes to the Middleware
		}
		switch {
		case info.State == asynq.TaskStatePending:
			return fate, answer
		case (info.State == asynq.TaskStateRetry || info.State == asynq.TaskStateAggregating) && strings.Contains(info.LastErr, blocked.ParkedOn(key)):
			// Aggregating: a task of a group that was run by hand. asynq puts it back into its group when its
			// retry is due, and nobody may look into that group again.
			return fate, runIt
		case info.State != asynq.TaskStateActive:
			return engine.FateGone, answer // an operator ran, archived or deleted the task
		}
		return engine.FateUnsure, lookAgain
	})
}

// isOverdue reports whether the Deadline of a task has passed, so that asynq does not run it.
func isOverdue(info *asynq.TaskInfo) bool {
	return !info.Deadline.IsZero() && time.Now().After(info.Deadline)
}

// next is what follows from a look at a task.
type next uint8

const (
	answer    next = iota
	runIt          // have asynq run the task
	lookAgain      // it is active: asynq has not moved it to retry yet, or it runs again already
)

// wake looks at a task, and has asynq run it if look says so.
//
// RunTask also runs completed, scheduled and archived tasks, so look first checks that the task is still parked. No other
// Guard wakes the task before the deadline of ctx, and wake begins no RunTask after it. If the task changes between the
// check and RunTask, or go-redis sends that twice, it may run again, which asynq's "at least once" allows.
func (g *Guard) wake(ctx context.Context, note string, look func(*asynq.TaskInfo, bool, error) (engine.Fate, next)) engine.Fate {
	queue, id, _ := tasknote.Parse(note)
	for backoff := 500 * time.Microsecond; backoff <= retryWrittenIn; backoff *= 2 {
		info, gone, err := blocked.Find(g.inspector, g.asynqRedis, queue, id)
		fate, then := look(info, gone, err)
		switch by, bounded := ctx.Deadline(); {
		case then == answer:
			return fate
		case then == runIt && bounded && time.Now().After(by):
			return engine.FateUnsure
		case then == runIt && g.inspector.RunTask(queue, id) == nil: // it has no typed errors, so after one the state is read again
			g.moveToFront(ctx, queue, id)
			return fate
		}
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
		}
	}
	return engine.FateUnsure
}

// frontLua moves a task to the end of asynq's pending list from which servers take.
// RunTask has just put the task at the other end, so LREM finds it at once.
var frontLua = redis.NewScript(`
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 1 then
  redis.call('RPUSH', KEYS[1], ARGV[1])
end
return 0`)

// moveToFront moves it. After an error the task runs after what is pending.
func (g *Guard) moveToFront(ctx context.Context, queue, id string) {
	if g.frontClient != nil {
		_ = frontLua.Run(ctx, g.frontClient, []string{"asynq:{" + queue + "}:pending"}, id).Err()
	}
}

// pausedQueue is whether a queue is paused, as asynq said. That is used for pausedFor: the question costs Redis much.
type pausedQueue struct {
	paused bool
	asked  time.Time
}

const pausedFor = time.Second

func (g *Guard) isPaused(queue string) bool {
	known, _ := g.paused.Load(queue)
	q, _ := known.(pausedQueue)
	if time.Since(q.asked) >= pausedFor {
		g.paused.Store(queue, pausedQueue{q.paused, time.Now()}) // this caller asks, the others meanwhile use the old answer
		info, err := g.inspector.GetQueueInfo(queue)             // after an error the caller goes on, and looks at the task
		q = pausedQueue{err == nil && info.Paused, time.Now()}
		g.paused.Store(queue, q)
	}
	return q.paused
}

package blocked

import (
	"cmp"
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/tasknote"
)

// Tasks are asynq's tasks, for who looks at them and wakes those that are parked. Safe for concurrent use.
type Tasks struct {
	Inspector *asynq.Inspector
	Redis     redis.UniversalClient // asynq's; nil: not known
	Front     redis.UniversalClient // a client of asynq's Redis, if woken tasks go to the front of their queue; else nil
	Blind     atomic.Bool           // the Inspector was found not to see the tasks of this server

	paused sync.Map // by queue: pausedQueue
}

// Find is the function Find.
func (t *Tasks) Find(queue, id string) (info *asynq.TaskInfo, gone bool, err error) {
	return Find(t.Inspector, t.Redis, queue, id)
}

// Sighted returns the Inspector, or nil if that does not see this server's tasks.
func (t *Tasks) Sighted() *asynq.Inspector {
	if t.Blind.Load() {
		return nil
	}
	return t.Inspector
}

// WakeParked has asynq run a task that is parked on key, and in no order.
func (t *Tasks) WakeParked(ctx context.Context, key, note string) engine.Fate {
	queue, _, ok := tasknote.Parse(note)
	switch {
	case !ok:
		return engine.FateGone
	case t.isPaused(queue):
		return engine.FateLater
	}
	return t.wake(ctx, note, func(info *asynq.TaskInfo, gone bool, err error) (engine.Fate, next) {
		switch {
		case gone:
			return engine.FateMissing, answer
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
		case isParked(info, key, note):
			return fate, runIt
		case info.State != asynq.TaskStateActive:
			return engine.FateGone, answer // an operator ran, archived or deleted the task
		}
		return engine.FateUnsure, lookAgain
	})
}

// OrderedKey is an ordered key.
type OrderedKey struct {
	Engine *engine.Engine
	Key    engine.Ref
	Holds  bool // a task that asynq archives holds the key

	// WakeInOrder needs both. Archived is called when a task is found archived, and holds the key; Stands in each minute
	// in which the key stands: "its next task " and why say it.
	Archived func(*asynq.TaskInfo)
	Stands   func(why string)
}

// WakeInOrder handles a task that the engine names: a parked task of an ordered key whose turn is near, or a head that
// keeps others waiting and should have come.
func (t *Tasks) WakeInOrder(ctx context.Context, k OrderedKey, item engine.OrderItem) engine.Fate {
	queue, _, ok := tasknote.Parse(item.Note)
	if !ok || t.isPaused(queue) {
		return engine.FateUnsure
	}
	return t.wake(ctx, item.Note, func(info *asynq.TaskInfo, missing bool, err error) (engine.Fate, next) {
		if err == nil {
			t.Blind.Store(false)
		}
		act, after := k.follows(info, missing && !t.Blind.Load(), err, item)
		switch {
		case act == lookFailed:
			return engine.FateUnsure, answer
		case act == lookWake:
			return engine.FateComing, runIt
		case item.Call && act == engine.ActPresent && info.State == asynq.TaskStatePending:
			return engine.FateComing, answer
		case item.Call && act == engine.ActPresent && info.State == asynq.TaskStateActive:
			return engine.FateUnsure, lookAgain
		}
		failed := k.Engine.Act(ctx, k.Key, act, item, after) // if it cannot be stored, the task is looked for again
		switch {
		case failed == nil && act == engine.ActArchived:
			k.Archived(info)
		case failed == nil && (act == engine.ActGone || act == engine.ActLeft):
			return engine.FateGone, answer
		case act == engine.ActPresent && info.State == asynq.TaskStateActive:
			us, _ := strconv.ParseInt(item.Seen, 10, 64)
			head := engine.Head{State: item.State, Since: time.UnixMicro(cmp.Or(us, item.Ticket))}
			if why := Why(Seen{Head: head, Info: info}); why != "" {
				k.Stands(why)
			}
		}
		return engine.FateUnsure, answer
	})
}

// Look is one look at a task in order, for a producer. It wakes nobody. After an error the task counts as being there.
// answered is false if the error is asynq's.
func (t *Tasks) Look(ctx context.Context, k OrderedKey, item engine.OrderItem) (answered bool, err error) {
	queue, id, _ := tasknote.Parse(item.Note)
	info, missing, err := t.Find(queue, id)
	act, after := k.follows(info, missing, err, item)
	switch act {
	case lookFailed:
		return false, err
	case lookWake:
		act = engine.ActPresent
	}
	return true, k.Engine.Act(ctx, k.Key, act, item, after)
}

// What a look may find besides an act.
const (
	lookFailed engine.OrderAct = ""     // asynq's Redis does not answer
	lookWake   engine.OrderAct = "wake" // the task is parked: have asynq run it
)

// follows judges a look at a task of the key. after is how long the task stays away by itself.
func (k OrderedKey) follows(
	info *asynq.TaskInfo, missing bool, err error, item engine.OrderItem,
) (act engine.OrderAct, after time.Duration) {
	switch {
	case missing:
		return engine.ActGone, 0
	case err != nil:
		return lookFailed, 0
	case isOther(info, k.Key.Key, item.Note, item.Nonce):
		return engine.ActGone, 0 // another task with the same ID
	}
	state := info.State
	if isOverdue(info) && state != asynq.TaskStateActive && state != asynq.TaskStateCompleted {
		state = asynq.TaskStateArchived // as good as: asynq fails it unrun, however many attempts it has left
	}
	switch state {
	case asynq.TaskStateArchived:
		if k.Holds {
			return engine.ActArchived, 0
		}
		return engine.ActLeft, 0
	case asynq.TaskStateCompleted:
		return engine.ActLeft, 0
	case asynq.TaskStateRetry, asynq.TaskStateScheduled:
		if isParked(info, k.Key.Key, item.Note) {
			return lookWake, 0
		}
		return engine.ActPresent, max(0, time.Until(info.NextProcessAt)) + time.Second
	}
	return engine.ActPresent, 0
}

// isOverdue: the Deadline has passed, so asynq does not run the task.
func isOverdue(info *asynq.TaskInfo) bool {
	return !info.Deadline.IsZero() && time.Now().After(info.Deadline)
}

type next uint8

const (
	answer    next = iota
	runIt          // have asynq run the task
	lookAgain      // it is active: asynq has not moved it to retry yet, or it runs again already
)

// retryWrittenIn is how long wake waits until asynq has moved a task that parked a moment ago to retry.
const retryWrittenIn = 4 * time.Millisecond

// wake looks at a task, and has asynq run it if judge says so.
//
// RunTask also runs completed, scheduled and archived tasks, so judge first checks that the task is still parked. No
// other Guard wakes the task before the deadline of ctx, and wake begins no RunTask after it. If the task changes
// between the check and RunTask, or go-redis sends that twice, it may run again.
func (t *Tasks) wake(
	ctx context.Context, note string, judge func(*asynq.TaskInfo, bool, error) (engine.Fate, next),
) engine.Fate {
	queue, id, _ := tasknote.Parse(note)
	for backoff := 500 * time.Microsecond; backoff <= retryWrittenIn; backoff *= 2 {
		fate, then := judge(t.Find(queue, id))
		switch by, bounded := ctx.Deadline(); {
		case then == answer:
			return fate
		case then == runIt && bounded && time.Now().After(by):
			return engine.FateUnsure
		case then == runIt && t.Inspector.RunTask(queue, id) == nil:
			// it has no typed errors, so after one the state is read again
			if t.Front != nil { // after an error the task runs after what is pending
				_ = frontLua.Run(ctx, t.Front, []string{"asynq:{" + queue + "}:pending"}, id).Err()
			}
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
var frontLua = redis.NewScript(`
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 1 then
  redis.call('RPUSH', KEYS[1], ARGV[1])
end
return 0`)

// pausedQueue is whether a queue is paused, as asynq said. That is used for pausedFor: the question costs Redis much.
type pausedQueue struct {
	paused bool
	asked  time.Time
}

const pausedFor = time.Second

func (t *Tasks) isPaused(queue string) bool {
	known, _ := t.paused.Load(queue)
	q, _ := known.(pausedQueue)
	if time.Since(q.asked) >= pausedFor {
		t.paused.Store(queue, pausedQueue{q.paused, time.Now()}) // this caller asks, the others meanwhile use the old answer
		info, err := t.Inspector.GetQueueInfo(queue)             // after an error the caller goes on, and looks at the task
		q = pausedQueue{err == nil && info.Paused, time.Now()}
		t.paused.Store(queue, q)
	}
	return q.paused
}

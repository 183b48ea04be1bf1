package automutex

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"
)

// EventKind says what happened; see the constants.
type EventKind string

// The kinds of events. A task that meets no contention produces EventAcquired and
// EventReleased for each of its rules, and no others.
const (
	// EventAcquired: the task got the lock. Waited is the time since it came to the lock, even
	// if an EventBusy came in between: on its last attempt a task waits on.
	EventAcquired EventKind = "acquired"
	// EventWaiting: the lock is busy, and the task begins to wait in line.
	EventWaiting EventKind = "waiting"
	// EventWaited: the wait in line has ended. Waited is how long it was. There is exactly one
	// EventWaited for each EventWaiting of the same task and rule. Usually EventAcquired or
	// EventBusy follows.
	EventWaited EventKind = "waited"
	// EventBusy: the lock is busy, and stayed busy during the wait if there was one; the
	// policy in Policy applies. There is one EventBusy each time that a task does not get the
	// lock. On its last attempt a task can ask again in its worker, after a RetryAfter or a
	// lost lease. EventSkipped, EventRetried, EventParked or EventReplaced follows if the
	// policy says so.
	EventBusy EventKind = "busy"
	// EventHeld: a rate, a hold or a cooldown has closed the key's gate. Busy.Reason says
	// which, Busy.ExpiresIn for how long. EventBusy follows. (A task that now holds the lock
	// has EventAcquired.)
	EventHeld EventKind = "held"
	// EventPaused: an operator has paused the key, see [Guard.Controls]. Busy.Pause says who,
	// why and since when. EventPaused comes in place of EventBusy. Whatever the policy,
	// EventRetried or EventParked follows, or EventWaiting on the last attempt.
	EventPaused EventKind = "paused"
	// EventSkipped: policy Skip ended the task without running it.
	EventSkipped EventKind = "skipped"
	// EventRetried: the task returns to asynq for Delay, its attempt not spent.
	EventRetried EventKind = "retried"
	// EventParked: the task returns to asynq and keeps its place in line. It
	// runs again when its turn comes, after Delay at the latest.
	EventParked EventKind = "parked"
	// EventReplaced: the policy Replace ended the task, since a newer one came. Held is how
	// long its handler ran before it returned an error. If the handler did not run, Held is 0
	// and Waited is the time since the task came to the lock.
	EventReplaced EventKind = "replaced"
	// EventReleased: the handler returned and the lock was released. Held is how long the task
	// held it.
	EventReleased EventKind = "released"
	// EventLost: the lease ended while the handler ran: Redis was unreachable for longer than
	// the lease, the process was stopped, the key was evicted, the lock was broken, or MaxHold
	// passed. The handler's context is cancelled with cause lock.ErrLost.
	EventLost EventKind = "lost"
	// EventOverdue: the handler still runs although its task's deadline has passed or its
	// context was cancelled. The lock stays held until the handler returns.
	EventOverdue EventKind = "overdue"
	// EventKeyError: no key can be made from the task. It is archived, or dropped if Err wraps
	// asynq.RevokeTask. If Policy is Allow, the task runs without the lock of Rule instead.
	EventKeyError EventKind = "key_error"
	// EventBackendError: Redis could not be reached, or refused a command. If Key is empty:
	// the rule's Key or LimitOf, or Config.Decode, cannot make the key now; see [KeyFunc].
	EventBackendError EventKind = "backend_error"
)

// Event is the argument of Config.Observe. Fields that a kind does not use are zero. Use
// Rule and Task as metric labels, but never Key, which contains payload values.
type Event struct {
	Kind   EventKind
	Rule   string // the rule's name; empty for an error that concerns no single rule
	Key    string // the lock's key; empty if it could not be made
	Task   string // the task's type
	Queue  string // asynq's queue; empty outside a server
	TaskID string // asynq's task ID; empty outside a server

	// Policy is the policy that applied (Busy, Held, Skipped, Parked, Replaced, and Retried
	// after Busy), or else the rule's (Paused, and Retried for another reason). If an earlier
	// attempt of the same task holds the lock, or during a Hold, Retry applies in place of
	// most policies; see [Policy] and [Hold].
	Policy Policy

	Waited time.Duration // time in line (Waited, Acquired, Busy, Paused, Replaced)
	Held   time.Duration // time held (Released, Lost, Overdue, Replaced)
	Parked time.Duration // time in line of a task that was parked (Acquired); after its own Hold, that of the parked task that it overtook
	Delay  time.Duration // until asynq may run the task again (Retried, Parked)

	Busy *BusyError // EventBusy: who holds the lock; EventPaused: who paused it
	Err  error      // EventKeyError, EventBackendError, EventLost: the error
}

// JoinObservers returns one function for [Config].Observe that calls each observer with
// every event, in this order. It leaves out observers that are nil.
func JoinObservers(observers ...func(context.Context, Event)) func(context.Context, Event) {
	var all []func(context.Context, Event)
	for _, observe := range observers {
		if observe != nil {
			all = append(all, observe)
		}
	}
	return func(ctx context.Context, e Event) {
		for _, observe := range all {
			observe(ctx, e)
		}
	}
}

// observe calls Config.Observe with e and the fields that name the task.
func (d *delivery) observe(e Event) {
	if d.guard.cfg.Observe == nil {
		return
	}
	e.Task, e.Queue, e.TaskID = d.task.Type(), d.queue, d.id
	d.guard.cfg.Observe(d.ctx, e)
}

// observeSafely is observe for the Guard's own goroutines. It logs a panic of Observe, which
// would end the program. (On a worker's goroutine asynq turns a panic into a failed attempt.)
func (d *delivery) observeSafely(e Event) {
	defer func() {
		if p := recover(); p != nil {
			d.guard.log.Error("automutex: Config.Observe panicked", "event", string(e.Kind), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	d.observe(e)
}

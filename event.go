package automutex

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"
)

// EventKind says what happened; see the constants.
type EventKind string

// The kinds of events. A task that meets no contention gives Acquired and
// Released for each of its rules, and nothing else.
const (
	// EventAcquired: the lock is held; Waited says how long that took.
	EventAcquired EventKind = "acquired"
	// EventWaiting: others hold the lock, and the task begins to wait in line.
	EventWaiting EventKind = "waiting"
	// EventWaited: the wait in line is over; Waited says how long it was. Exactly one
	// for each EventWaiting of the same task and rule. Mostly Acquired or Busy follows.
	EventWaited EventKind = "waited"
	// EventBusy: others hold the lock, also after the wait, if there was one; the
	// policy in Policy applies. Exactly one for each attempt that does not get a lock.
	// Skipped, Retried, Parked or Replaced follows where the policy says so.
	EventBusy EventKind = "busy"
	// EventHeld: the key's gate is closed, by its rate, a hold or a cooldown:
	// Busy.Reason says which, Busy.ExpiresIn for how long. EventBusy follows.
	EventHeld EventKind = "held"
	// EventPaused: an operator has paused the key, see [Guard.Controls]; Busy says who,
	// why and since when. Retried or Parked follows whatever the policy; on the last
	// attempt Waiting. No EventBusy comes beside it.
	EventPaused EventKind = "paused"
	// EventSkipped: policy Skip ended the task without running it.
	EventSkipped EventKind = "skipped"
	// EventRetried: the task returns to asynq, its attempt not spent, for Delay.
	EventRetried EventKind = "retried"
	// EventParked: the task returns to asynq with its place in line kept; it
	// runs again when its turn comes, after Delay at the latest.
	EventParked EventKind = "parked"
	// EventReplaced: policy Replace ended the task in favour of a newer one. Held says
	// how long its handler ran before it returned an error. When the handler did not
	// run, Held is 0 and Waited says how long ago the task came to the lock.
	EventReplaced EventKind = "replaced"
	// EventReleased: the handler returned and the lock was given back; Held
	// says how long it was held.
	EventReleased EventKind = "released"
	// EventLost: the lease ended while the handler ran (Redis unreachable for
	// longer than the lease, the process stopped, the key evicted, MaxHold).
	// The handler's context is cancelled with cause lock.ErrLost.
	EventLost EventKind = "lost"
	// EventOverdue: the handler still runs although its task's own deadline
	// has passed or its context was cancelled; the lock stays held until it
	// returns.
	EventOverdue EventKind = "overdue"
	// EventKeyError: no key can be made from the task, which is archived. With a Rule,
	// and Allow in Policy, the task runs without the lock of that rule.
	EventKeyError EventKind = "key_error"
	// EventBackendError: Redis could not be reached, or refused a command. Without a
	// Key: the rule's Key, or Config.Decode, failed with an error that is no *KeyError.
	EventBackendError EventKind = "backend_error"
)

// Event is what Config.Observe is called with. Fields that have no meaning for a kind
// are zero. Events have keys, and keys have payload values in them: use Rule and Task as
// metric labels, never Key.
type Event struct {
	Kind   EventKind
	Rule   string // the rule's name; empty for an error that comes before any rule
	Key    string // the lock's key; empty when it could not be made
	Task   string // the task's type
	Queue  string // asynq's queue; empty outside a server
	TaskID string // asynq's task ID; empty outside a server
	Policy Policy // for EventBusy, EventSkipped, EventRetried, EventParked and EventReplaced: what applied; for EventPaused: the rule's

	Waited time.Duration // time in line (Waited, Acquired, Busy, Paused, Replaced)
	Held   time.Duration // time held (Released, Lost, Overdue, Replaced)
	Parked time.Duration // time since its first place in line, when it was parked (Acquired)
	Delay  time.Duration // until asynq may run it again (Retried, Parked)

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

// observe adds the task to an event and calls Config.Observe.
func (a *attempt) observe(e Event) {
	if a.guard.cfg.Observe == nil {
		return
	}
	e.Task, e.Queue, e.TaskID = a.task.Type(), a.queue, a.id
	a.guard.cfg.Observe(a.ctx, e)
}

// observeSafely is observe for goroutines of the Guard's own. asynq turns a panic on a
// worker's goroutine into a failed attempt; here a panic of Observe would end the
// program, so it is logged instead.
func (a *attempt) observeSafely(e Event) {
	defer func() {
		if p := recover(); p != nil {
			a.guard.log.Error("automutex: Config.Observe panicked", "event", string(e.Kind), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	a.observe(e)
}

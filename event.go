package automutex

import (
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
	// EventWaiting: the lock was taken, and the task begins to stand in line.
	EventWaiting EventKind = "waiting"
	// EventWaited: the task stands in line no longer; Waited says how long it
	// did. Exactly one for each EventWaiting of the same task and rule. What
	// came of it follows: mostly Acquired or Busy.
	EventWaited EventKind = "waited"
	// EventBusy: the lock was taken (and the wait, if any, in vain); the
	// policy in Policy applies. Exactly one per task attempt that meets a
	// taken lock; what became of it follows as Skipped, Retried, Parked,
	// Replaced or nothing.
	EventBusy EventKind = "busy"
	// EventSkipped: policy Skip ended the task without running it.
	EventSkipped EventKind = "skipped"
	// EventRetried: the task goes back to asynq, its attempt not spent; Delay
	// says for how long.
	EventRetried EventKind = "retried"
	// EventParked: the task goes back to asynq with its place in line kept; it
	// runs again when its turn comes, after Delay at the latest.
	EventParked EventKind = "parked"
	// EventReplaced: policy Replace ended the task in favour of a newer one. Held
	// says how long its handler ran before it returned an error; 0: it did not
	// run, and Waited says how long ago it came to the lock.
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
	// EventKeyError: no key could be made from the task; it is archived. With
	// Rule and the policy Allow in Policy: it runs without the lock of that rule.
	EventKeyError EventKind = "key error"
	// EventBackendError: Redis could not be reached, or refused. Without a Key: the
	// rule's Key, or Config.Decode, failed with an error that is no *KeyError.
	EventBackendError EventKind = "backend error"
)

// Event is what Config.Observe is told. Fields that have no meaning for a kind
// are zero. Events carry keys, and keys carry payload values: use Rule and Task
// as metric labels, never Key.
type Event struct {
	Kind   EventKind
	Rule   string // the rule's name; empty for an error before a rule was reached
	Key    string // the lock's key; empty when it could not be made
	Task   string // the task's type
	Queue  string // asynq's queue; empty outside a server
	TaskID string // asynq's task ID; empty outside a server
	Policy Policy // for EventBusy, EventSkipped, EventRetried, EventParked and EventReplaced: what applied

	Waited time.Duration // time in line (Waited, Acquired, Busy, Replaced)
	Held   time.Duration // time held (Released, Lost, Overdue, Replaced)
	Parked time.Duration // time since its first place in line, when it was parked (Acquired)
	Delay  time.Duration // until asynq may run it again (Retried, Parked)

	Busy *BusyError // EventBusy: who holds the lock
	Err  error      // EventKeyError, EventBackendError, EventLost: the error
}

// observe completes an event and hands it to Config.Observe.
func (a *attempt) observe(e Event) {
	if a.guard.cfg.Observe == nil {
		return
	}
	e.Task, e.Queue, e.TaskID = a.task.Type(), a.queue, a.id
	a.guard.cfg.Observe(a.ctx, e)
}

// observeBeside is observe for goroutines of the Guard's own, where a panic of
// Observe would end the program: asynq, which turns panics into failed attempts,
// is not there. It is logged instead.
func (a *attempt) observeBeside(e Event) {
	defer func() {
		if p := recover(); p != nil {
			a.guard.log.Error("automutex: Config.Observe panicked", "event", string(e.Kind), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	a.observe(e)
}

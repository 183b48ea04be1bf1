package automutex

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/history"
)

// EventKind says what happened; see the constants.
type EventKind string

// The kinds of events. Without contention a task has EventAcquired and EventReleased for each of its rules, and no
// others. What [Guard.Lock] takes has the same events, without Task; it ends with EventReleased or EventLost, never
// both.
const (
	// EventAcquired: the task got the lock. Waited is the time since it came to the lock, also if an EventBusy came in
	// between.
	EventAcquired EventKind = "acquired"
	// EventWaiting: the lock is busy, and the task begins to wait in line.
	EventWaiting EventKind = "waiting"
	// EventWaited: the wait in line has ended, after Waited. There is one for each EventWaiting of the same task and
	// rule. Usually EventAcquired or EventBusy follows.
	EventWaited EventKind = "waited"
	// EventBusy: the task did not get the lock, each time that it asks; Busy.Reason says why. EventSkipped, EventRetried,
	// EventParked or EventReplaced may follow, or on a last attempt one with Archive.
	EventBusy EventKind = "busy"
	// EventLate: the task did not start in time, see [Rule].StartWithin and Busy.LateBy. Policy is its rule's Late.
	// EventSkipped follows if the task ends as done.
	EventLate EventKind = "late"
	// EventSkipped: the policy (Skip, or AfterFailure whose function returned nil) ended the task as done, unrun.
	EventSkipped EventKind = "skipped"
	// EventRetried: the task returns to asynq for Delay, its attempt not spent. Without ServerConfig there is none.
	EventRetried EventKind = "retried"
	// EventParked: the task returns to asynq and keeps its place in line. It runs when its turn comes, after Delay at the
	// latest.
	EventParked EventKind = "parked"
	// EventReplaced: the policy Replace ended the task, since a newer one came; or package unique has put another in its
	// place, then Rule is empty and Policy means nothing. Held is how long its handler ran; if it did not run, Waited is
	// the time since the task came to the lock.
	EventReplaced EventKind = "replaced"
	// EventReleased: the handler returned and the lock was released. Held is how long the task held it.
	EventReleased EventKind = "released"
	// EventLost: the lease ended while the handler ran, also by MaxHold. The handler's context ends with cause
	// lock.ErrLost.
	EventLost EventKind = "lost"
	// EventOverdue: the handler still runs, and holds the lock, although its task's deadline has passed or its context
	// was cancelled.
	EventOverdue EventKind = "overdue"
	// EventBlocked: asynq archives a task of an ordered key, which holds its key ([HoldKey]). Err is why, if that is
	// known.
	EventBlocked EventKind = "blocked"
	// EventHeadSkipped: [Guard.SkipHead] gave up the place of a task. Task is empty.
	EventHeadSkipped EventKind = "head_skipped"
	// EventKeyError: no key can be made from the task. It is archived, or dropped if Err wraps asynq.RevokeTask; under
	// Allow it runs without the lock of Rule.
	EventKeyError EventKind = "key_error"
	// EventBackendError: Redis could not be reached, or refused a command. If Key is empty: a function of the rule, or
	// Config.Decode, cannot make the key now; see [KeyFunc].
	EventBackendError EventKind = "backend_error"
)

// Event is the argument of Config.Observe. Fields that a kind does not use are zero. Do not use Key as a metric label:
// it contains payload values.
type Event struct {
	Kind   EventKind
	Rule   string // the rule's name; empty for an error that concerns no single rule, and for a task without a key
	Key    string // the lock's key; empty if it could not be made
	Task   string // the task's type
	Queue  string // asynq's queue; empty outside a server
	TaskID string // asynq's task ID; empty outside a server
	Inner  bool   // the task runs within another one's handler; Queue and TaskID are that one's

	// Policy is the policy that applied (Busy, Late, Skipped, Parked, Retried, Replaced), or Retry if the rule's does not
	// apply for this reason; see [Policy].
	Policy Policy

	Last bool // the task is on its last attempt: asynq would archive it if it went back (Waiting, Waited)

	Waited time.Duration // time in line (Waited, Acquired, Busy, Replaced)
	Held   time.Duration // time held (Released, Lost, Overdue, Replaced)
	Parked time.Duration // all its time in line, if it was parked (Acquired)
	Delay  time.Duration // until asynq may run the task again (Retried, Parked)

	Busy *BusyError // EventBusy, EventLate: why the task did not get the lock, and who holds or paused it
	// EventKeyError, EventBackendError, EventLost, EventBlocked: the error; EventRetried: why, if not for an EventBusy
	Err error
}

// JoinObservers returns a function for [Config].Observe that calls each observer in this order, but for those that are
// nil.
func JoinObservers(observers ...func(context.Context, Event)) func(context.Context, Event) {
	observers = slices.Clone(observers)
	return func(ctx context.Context, e Event) {
		for _, observe := range observers {
			if observe != nil {
				observe(ctx, e)
			}
		}
	}
}

func (f *facts) observe(t *target, e Event) { f.guard.observe(f.ctx, f.event(t, e)) }

func (f *facts) event(t *target, e Event) Event {
	if t != nil {
		e.Key, e.Rule = t.key, t.rule.Name
	}
	e.Task, e.Queue, e.TaskID, e.Inner = f.task.Type(), f.queue, f.id, f.outer != nil
	return e
}

// about names the task, and the lock, in a line of the log.
func (f *facts) about(t *target, more ...any) []any {
	more = append(more, "type", f.task.Type(), "task", f.note)
	if t != nil {
		more = append(more, "rule", t.rule.Name, "key", t.key)
	}
	return more
}

// observe calls Config.Observe, and logs a panic of it.
func (g *Guard) observe(ctx context.Context, e Event) {
	if g.cfg.Observe == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			g.log.Error("automutex: Config.Observe panicked", "event", string(e.Kind), "panic", fmt.Sprint(p), "stack",
				string(debug.Stack()))
		}
	}()
	g.cfg.Observe(ctx, e)
}

// warnOnce logs a warning for the first call with a topic: for mistakes in a setup, which every task meets.
func (g *Guard) warnOnce(topic, text string, args ...any) {
	if _, logged := g.warned.LoadOrStore(topic, true); !logged {
		g.log.Warn("automutex: "+text, args...)
	}
}

func (f *facts) recordRuns(
	started time.Time, leases []*heldLease, without map[string]bool, decision decide.Decision,
) {
	h := f.guard.history
	if h == nil || started.IsZero() {
		return
	}
	outcome := decide.Became(decision.What, true, f.isToStop())
	run := history.Run{Task: f.note, Came: started, Start: started, End: time.Now(),
		Outcome: outcome + ", without the lock"}
	for key := range without {
		h.Add(key, run)
	}
	for _, held := range leases {
		run.Came, run.Outcome = held.takenAt.Add(-held.waited), outcome
		run.End = held.takenAt.Add(cmp.Or(held.lostAfter, held.heldFor))
		if held.lostAfter > 0 {
			run.Outcome += ", lock lost"
		}
		h.Add(held.target.key, run)
	}
}

// recordWait adds a wait that has ended without a run. A task that parks still waits. One that was refused at once has
// not waited: such tasks would push out the runs of a hot key.
func (f *facts) recordWait(line standing, decision decide.Decision) {
	if h := f.guard.history; h != nil && line.stood && decision.What != decide.ToLine {
		h.Add(line.key, history.Run{Task: f.note, Came: line.came, End: time.Now(),
			Outcome: decide.Became(decision.What, false, f.isToStop())})
	}
}

package automutex

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/decide"
)

// StartBy is an option for [Client.Enqueue]: a task that has not started by t, to the millisecond, does not run; see
// [Rule].StartWithin. The earliest time counts, and the [Rule].Late of the first of its rules in the order of locking.
// The zero time is no bound.
//
// A Client refuses StartBy for a task that no rule matches or that has asynq.Unique from asynq.NewTask, and beside
// asynq.Group. A plain asynq.Client, an asynq.Scheduler and asynq.NewTask drop it, as asynq drops options that it does
// not know.
func StartBy(t time.Time) asynq.Option { return startBy(t) }

type startBy time.Time

func (t startBy) String() string {
	return fmt.Sprintf("StartBy(%v)", time.Time(t).Format(time.UnixDate))
}

func (startBy) Type() asynq.OptionType { return -1 } // none of asynq's

func (t startBy) Value() any { return time.Time(t) }

func startByIn(opts []asynq.Option) (by time.Time) {
	for _, opt := range opts {
		if its, is := opt.(startBy); is {
			by = time.Time(its)
		}
	}
	return by
}

func refuseStartBy(task *asynq.Task, why string) error {
	return fmt.Errorf("automutex: task %q has a time to start by (StartBy or StartWithin), but %s; the task is not "+
		"enqueued", task.Type(), why)
}

func (e *enqueueing) startTimes(opts []asynq.Option) (due, by int64, err error) {
	if t := startByIn(opts); !t.IsZero() {
		by = max(1, t.UnixMilli()) // 0 is none
	}
	if by > 0 ||
		slices.ContainsFunc(e.client.rules.match(e.Task.Type()), func(c *compiledRule) bool { return c.StartWithin > 0 }) {
		due = max(1, e.Info.NextProcessAt.UnixMilli()) // zero for a group
	}
	switch {
	case due+by > 0 && e.Info.Group != "":
		err = refuseStartBy(e.Task, "asynq.Group makes one task of many: leave one out")
	case by > 0 && e.IsBaked():
		err = refuseStartBy(e.Task, "asynq.Unique from asynq.NewTask cannot be read: pass that to Enqueue")
	}
	return due, by, err
}

func (p Policy) checkLate() error {
	if p != Park && p.kind != policyArchive && p.kind != policySkip && p.kind != policyAfterFailure {
		return fmt.Errorf("%s would keep a task that may not start any more; use Archive, Skip or AfterFailure", p)
	}
	return p.check()
}

type lateness struct {
	*facts

	by      time.Time  // zero: it has none, or has begun
	target  *target    // whose rule's Late counts, maybe without a key
	begun   bool       // Redis knows, or is to know, that it has begun
	writing chan error // gets once what came of writing that; nil: nobody writes
}

// startKept is how long Redis keeps that after the deadline of a task that is not done.
const startKept = 3 * 24 * time.Hour

// A retry has no such time, nor a task within a task, which has another's header.
func (l *lateness) bound(targets []target) {
	if l.note == "" || l.retried > 0 || l.outer != nil || len(l.rules) == 0 { // one with a claim may have no rule
		return
	}
	if len(targets) == 0 { // each rule has said NoLock
		l.by, l.target = l.stamp.StartBy(0), &target{rule: l.rules[0]}
	}
	for i := range targets {
		t := &targets[i]
		for _, rule := range append([]*compiledRule{t.rule}, t.also...) {
			its := &target{rule: rule, key: t.key}
			if at := l.stamp.StartBy(rule.StartWithin); !at.IsZero() && (l.by.IsZero() || at.Before(l.by)) {
				l.by, l.target = at, its
			}
			if rule.StartWithin > 0 && l.stamp.Due == 0 {
				l.guard.warnOnce("unbounded "+l.task.Type(), "a task of a rule with StartWithin may start at any time: its "+
					"producer uses no automutex.NewClient, or one whose rule has no StartWithin", l.about(its)...)
			}
		}
	}
}

// check returns met or, once the time has passed, Late. A task that has begun before, or was archived as late,
// has no such time any more.
func (l *lateness) check(met *obstacle) *obstacle {
	ends := met.why == decide.Finished || met.why == decide.KeyNever // whatever the time
	if ends || met.why == decide.NoAnswer || l.by.IsZero() || time.Now().Before(l.by) || l.over() != decide.Goes {
		return met
	}
	begun, err := l.guard.engine.HasStarted(l.whole(), l.start())
	switch {
	case err != nil:
		return &obstacle{why: decide.NoAnswer, target: l.target, err: err}
	case begun:
		l.by, l.begun = time.Time{}, true
		return met
	}
	busy := BusyError{}
	if met.busy != nil {
		busy = *met.busy
	}
	busy.Rule, busy.Key, busy.Reason = l.target.rule.Name, l.target.key, ReasonLate
	busy.LateBy, busy.ExpiresIn, busy.parked = time.Since(l.by), 0, false
	return &obstacle{why: decide.Late, target: l.target, err: &busy, busy: &busy}
}

// begin writes that the handler begins, for when the task comes back, on a goroutine that ends with the command; Close
// waits for it. Written before the start, with the reply lost, that would let a task start late that never began.
func (l *lateness) begin() {
	if !l.by.IsZero() {
		writing := make(chan error, 1) // end receives, maybe after the goroutine has ended
		l.by, l.begun, l.writing = time.Time{}, true, writing
		l.guard.life.Branch(func() { writing <- l.write(0) })
	}
}

func (l *lateness) write(delay time.Duration) error {
	delay += startKept
	if deadline, ok := l.ctx.Deadline(); ok {
		delay = max(delay, time.Until(deadline.Add(delay))) // a Timeout may be of 292 years
	}
	return l.guard.engine.KeepStart(l.whole(), l.start(), delay)
}

// start is not that of another task with the same ID.
func (l *lateness) start() string { return fmt.Sprint(l.note, "/", l.stamp.Due) }

// end keeps the start of a task that comes back, or is archived, which an operator may run.
func (l *lateness) end(ends decide.Decision, met *obstacle) {
	if l.note == "" || l.stamp.Due == 0 || l.outer != nil {
		return
	}
	var err error
	if l.writing != nil {
		err = <-l.writing
	}
	left := met.why == decide.Late && ends.Final(l.last)
	switch done := ends.What == decide.Done || ends.What == decide.Drop; {
	case done && (l.begun || l.retried > 0):
		_ = l.guard.engine.ForgetStart(l.whole(), l.start()) // after an error it expires
	case !done && (left || err != nil || l.begun && ends.What == decide.Back):
		if err = l.write(met.delay); err != nil {
			l.backendError(l.target, err)
		}
	}
}

// within shortens a delay so that it ends by that time.
func (l *lateness) within(delay time.Duration) time.Duration {
	if left := time.Until(l.by); left > 0 {
		return min(delay, left)
	}
	return delay
}

// context ends with the task's, and by that time.
func (l *lateness) context() (context.Context, context.CancelFunc) {
	if l.by.IsZero() {
		return context.WithCancel(l.ctx)
	}
	return context.WithDeadline(l.ctx, l.by)
}

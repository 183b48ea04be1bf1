package automutex

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
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
	if slices.ContainsFunc(e.client.rules.match(e.Task.Type()), func(c *compiledRule) bool { return c.StartWithin > 0 }) {
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
	by     time.Time  // zero: it has none, or has begun
	target target     // whose rule's Late counts, maybe without a key
	begun  bool       // Redis has, or is to have, the note that it has begun
	noting chan error // gets once what came of that note; nil: none is on its way
	left   bool       // it ends as late, and has left its lines
}

// startNoteKept is how long Redis keeps that note after the deadline of a task that is not done.
const startNoteKept = 3 * 24 * time.Hour

// A retry has no such time, nor a task within a task, which has another's header.
func (d *delivery) boundStart(rules []*compiledRule) {
	if d.note == "" || d.retried > 0 || d.outer != nil || len(rules) == 0 { // one with a claim may have no rule
		return
	}
	s := d.place.Stamp
	if len(d.targets) == 0 { // each rule has said NoLock
		d.late.by, d.late.target = s.StartBy(0), target{rule: rules[0]}
	}
	for _, t := range d.targets {
		for _, rule := range append([]*compiledRule{t.rule}, t.also...) {
			at, by := s.StartBy(rule.StartWithin), d.late.by
			if !at.IsZero() && (by.IsZero() || at.Before(by)) {
				d.late.by, d.late.target = at, target{rule: rule, key: t.key}
			}
			if rule.StartWithin > 0 && s.Due == 0 {
				d.guard.warnOnce("unbounded "+d.task.Type(), "a task of a rule with StartWithin may start at any time: its "+
					"producer uses no automutex.NewClient, or one whose rule has no StartWithin",
					d.about(target{rule: rule, key: t.key})...)
			}
		}
	}
}

// checkLate returns met or, once the time has passed, Late. A task that has begun before, or was archived as late,
// has no such time any more.
func (d *delivery) checkLate(met obstacle) obstacle {
	l := &d.late
	ends := met.why == decide.Finished || met.why == decide.KeyNever // whatever the time
	if ends || met.why == decide.NoAnswer || l.by.IsZero() || time.Now().Before(l.by) || d.over() != decide.Goes {
		return met
	}
	begun, err := d.guard.engine.HasStarted(d.whole(), d.note)
	switch {
	case err != nil:
		return obstacle{why: decide.NoAnswer, target: l.target, err: err}
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
	return obstacle{why: decide.Late, target: l.target, err: &busy, busy: &busy}
}

// noteStart notes that the handler begins, for when the task comes back, on a goroutine that ends with the command;
// Close waits for it. Written before the start, a note whose reply is lost would let a task start late that never
// began.
func (d *delivery) noteStart() {
	if l := &d.late; !l.by.IsZero() {
		noting := make(chan error, 1) // endStart receives, maybe after the goroutine has ended
		l.by, l.begun, l.noting = time.Time{}, true, noting
		d.guard.life.Branch(func() { noting <- d.writeStart(0) })
	}
}

func (d *delivery) writeStart(delay time.Duration) error {
	if deadline, ok := d.ctx.Deadline(); ok {
		delay += max(0, time.Until(deadline))
	}
	return d.guard.engine.NoteStart(d.whole(), d.note, startNoteKept+delay)
}

// endStart keeps the note of a task that comes back, or is archived, which an operator may run.
func (d *delivery) endStart(ends decide.Decision, met obstacle) {
	s, l, err := d.place.Stamp, &d.late, error(nil)
	if d.note == "" || s.Due+s.By == 0 || d.outer != nil {
		return
	}
	if l.noting != nil {
		err = <-l.noting
	}
	switch done := ends.What == decide.Done || ends.What == decide.Drop; {
	case done && (l.begun || d.retried > 0):
		_ = d.guard.engine.ForgetStart(d.whole(), d.note) // after an error it expires
	case !done && (l.left || err != nil || l.begun && ends.What == decide.Back):
		if err = d.writeStart(met.delay); err != nil {
			d.backendError(l.target, err)
		}
	}
}

// leaveLate takes a late task out of its lines. Without an answer it comes back: archived in order, it would hold its
// key.
func (d *delivery) leaveLate(decision decide.Decision, met *obstacle) decide.Decision {
	if met.why != decide.Late || !decision.Final(d.last) {
		return decision
	}
	for _, t := range d.targets {
		switch {
		case d.holds(t.key):
		case d.isOrdered(t):
			p := d.placeIn(t)
			if err := d.giveUp(t.key, p.Nonce, p.Ticket); err != nil {
				*met = d.report(obstacle{why: decide.NoAnswer, target: t, err: err})
				return d.decideStart(met)
			}
		case t.rule.Busy.kind == policyReplace: // it may have come in time before; at an error its next arrival is old
			_ = d.guard.engine.Forget(d.whole(), engine.Ref{Key: t.key}, d.note, 0, false)
		case t.rule.Busy.row().parks:
			// after an error, who calls the task finds that it has ended
			_ = d.guard.engine.Unpark(d.whole(), engine.Ref{Key: t.key, Limit: t.limit}, d.note)
		}
	}
	d.late.left = true
	return decision
}

func (d *delivery) inTime(delay time.Duration) time.Duration {
	if left := time.Until(d.late.by); left > 0 {
		return min(delay, left)
	}
	return delay
}

func (d *delivery) untilLate() (context.Context, context.CancelFunc) {
	if d.late.by.IsZero() {
		return context.WithCancel(d.ctx)
	}
	return context.WithDeadline(d.ctx, d.late.by)
}

package automutex

import (
	"errors"
	"time"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/lock"
)

// This file tells the history of the keys (Config.History) of runs, and of waits that ended without one.

// recordRuns adds the run that has ended to the history of each key that the task held, or ran without under Allow.
func (d *delivery) recordRuns(leases []*heldLease, without map[string]bool, decision decide.Decision) {
	h := d.guard.history
	if h == nil || d.handlerStart.IsZero() {
		return
	}
	outcome := d.outcome(decision, true)
	for key := range without {
		h.Add(key, history.Run{Task: d.note, Came: d.handlerStart, Start: d.handlerStart, End: time.Now(), Outcome: outcome + ", without the lock"})
	}
	for _, held := range leases {
		run := history.Run{
			Task: d.note, Came: held.takenAt.Add(-held.waited), Start: d.handlerStart, End: held.takenAt.Add(held.heldFor), Outcome: outcome,
		}
		if errors.Is(held.endedBefore, lock.ErrLost) || held.endedBefore == nil && errors.Is(held.releaseErr, lock.ErrNotHeld) {
			run.Outcome += ", lock lost"
		}
		h.Add(held.target.key, run)
	}
}

// recordWait adds a wait that has ended without a run to the history of its key. A task that parks still waits. One that
// was refused at once has not waited: on a hot key such tasks would push out the runs.
func (d *delivery) recordWait(decision decide.Decision) {
	if h := d.guard.history; h != nil && d.taking != "" && d.stoodInLine && decision.What != decide.ToLine {
		h.Add(d.taking, history.Run{Task: d.note, Came: d.takingSince, End: time.Now(), Outcome: d.outcome(decision, false)})
	}
}

// outcome says what a decision makes of the task, for the page.
func (d *delivery) outcome(decision decide.Decision, ran bool) string {
	switch decision.What {
	case decide.Done:
		if ran {
			return "done"
		}
		return "skipped"
	case decide.Spend:
		return "failed"
	case decide.Archive:
		return "archived"
	case decide.Drop:
		if d.isReplaced() {
			return "replaced"
		}
		return "dropped"
	case decide.Leave:
		return "cut short"
	case decide.Run, decide.Back, decide.ToLine, decide.Stay, decide.Block:
	}
	return "comes back"
}

package automutex

import (
	"context"
	"fmt"
	"slices"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/mark"
	"github.com/automutex/automutex/internal/tasknote"
)

// A Guard notes in the claim of package unique: the task waits in this worker, its handler begins, or it has ended.
// Producers decide by these notes alone. Only a task whose ID says that it has a claim costs a round trip.

// taskClaim is what a delivery knows of its task's claim.
type taskClaim struct {
	key        string // of the lock beside which the claim is; empty: the task has none
	kind       mark.Kind
	noted      mark.Phase // the last one that Redis has
	superseded bool       // another task has taken the place of this one
}

// claimOf: a task within a task has the outer one's ID, and no claim.
func (g *Guard) claimOf(ctx context.Context, t *asynq.Task) (c taskClaim) {
	id, _ := asynq.GetTaskID(ctx)
	if key, kind, ok := mark.Parse(id, g.cfg.Prefix); ok && (running(ctx) == nil || running(ctx).task == t) {
		c.key, c.kind = key, kind
	}
	return c
}

func (d *delivery) noteInClaim(phase mark.Phase) error {
	may, err := d.guard.engine.Mark(d.claim.key).Start(d.whole(), tasknote.Of(d.queue, d.id), phase,
		d.claim.kind.EndsAtStart(), d.claim.kind.Lasts(phase))
	if err != nil {
		return err
	}
	d.claim.noted = phase
	d.claim.superseded = d.claim.superseded || !may
	return nil
}

// beginInClaim notes, right before the handler, that it begins. Under UntilStart that ends the claim. A producer whose
// task was refused as a duplicate has changed its data before, so the handler reads the change.
//
// A task whose claim cannot be noted does not run: the next producer would be joined to a run that has read its data.
// Nor does one that another task has superseded: over says so then.
func (d *delivery) beginInClaim() obstacle {
	if d.claim.key == "" || d.claim.kind == mark.Window {
		return nothing
	}
	t := target{rule: &compiledRule{}, key: d.claim.key}
	if i := slices.IndexFunc(d.targets, func(its target) bool { return its.key == t.key }); i >= 0 {
		t = d.targets[i]
	} else {
		d.guard.warnOnce("no rule for a claim", "a task has a claim of package unique (UntilStart, Replace or Postpone), "+
			"but no rule of this Guard makes the key of its claim, "+
			"so the tasks of that key may run at once; give the rules of producer and Guard an equal Task, Scope and On, and "+
			"both sides the same Prefix and HashKeys", d.about(target{})...)
	}
	if err := d.noteInClaim(mark.Begun); err != nil {
		return d.report(obstacle{why: decide.NoAnswer, target: t,
			err: fmt.Errorf("automutex: rule %q: the task's claim for key %q could not be noted: %w", t.rule.Name, t.key, err)})
	}
	d.guard.outage.Answered(d.guard.log)
	return nothing
}

// waitInClaim notes that the task waits here: asynq has it as active, so a producer would take its handler for running.
// An error only keeps producers from superseding it.
func (d *delivery) waitInClaim() {
	if !d.claim.kind.CanBeSuperseded() || d.claim.noted != "" {
		return
	}
	_ = d.noteInClaim(mark.Waiting)
}

// endClaim has the claim of a task that has ended end soon. After an error it ends later: producers see that asynq does
// not have the task.
func (d *delivery) endClaim(ends decide.Decision) {
	ended := ends.What == decide.Done || ends.What == decide.Archive || ends.What == decide.Drop
	gone := d.claim.kind.EndsAtStart() && d.claim.noted == mark.Begun && !d.claim.superseded
	if !ended || gone || !d.claim.superseded && !d.claim.kind.EndsWithTask() {
		return
	}
	_ = d.noteInClaim(mark.Ended)
}

package automutex

import (
	"fmt"

	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
)

// claim is the step of a task that has a claim of package unique, as its ID says. It writes there how far the task
// is: it waits here, its handler begins, or it has ended. Producers decide by that alone.
type claim struct {
	*facts

	own, of    *target // the claim's key, under no rule, and under the one that makes it; or own
	kind       claims.Kind
	phase      claims.Phase // the last one that Redis has
	superseded bool         // another task has taken the place of this one
}

// newClaim: a task within a task has the outer one's ID, and no claim.
func newClaim(f *facts) step {
	key, kind, ok := claims.Parse(f.id, f.guard.cfg.Prefix)
	if !ok || f.outer != nil && f.outer.task != f.task {
		return nil
	}
	f.mayStop()
	own := &target{rule: &compiledRule{}, key: key}
	return &claim{facts: f, own: own, of: own, kind: kind}
}

func (c *claim) request(*engine.Request, *target) {}

func (c *claim) look(at moment, t *target, _ error) *obstacle {
	switch {
	case at == comes && t.key == c.of.key:
		c.of = t
	case at == ready:
		return c.begin()
	case (at == stands || at == aside) && c.kind.CanBeSuperseded() && c.phase == "":
		// asynq has the task as active, so a producer would take its handler for running. An error only keeps producers
		// from superseding it.
		_ = c.write(claims.Waiting)
	}
	return nothing
}

func (c *claim) write(phase claims.Phase) error {
	may, err := c.guard.engine.Claim(c.of.key).Start(c.whole(), c.note, phase, c.kind.EndsAtStart(),
		c.kind.Lasts(phase))
	if err != nil {
		return err
	}
	c.phase = phase
	if !may {
		c.superseded = true
		c.askToStop(&wanted{c.own})
	}
	return nil
}

// begin writes, right before the handler, that it begins. Under UntilStart that ends the claim. A producer whose task
// was refused as a duplicate has changed its data before, so the handler reads the change. If a lease is lost
// meanwhile, what it wrote stays: the next task for the key may be enqueued before this one runs, and both run.
//
// A task whose claim cannot be written does not run: the next producer would be joined to a run that has read its data.
func (c *claim) begin() *obstacle {
	if c.kind == claims.Window {
		return nothing
	}
	if c.of == c.own {
		c.guard.warnOnce("no rule for a claim", "a task has a claim of package unique (UntilStart, Replace or Postpone), "+
			"but no rule of this Guard makes the key of its claim, "+
			"so the tasks of that key may run at once; give the rules of producer and Guard an equal Task, Scope and On, and "+
			"both sides the same Prefix and HashKeys", c.about(nil)...)
	}
	if err := c.write(claims.Begun); err != nil {
		return &obstacle{why: decide.NoAnswer, target: c.of,
			err: fmt.Errorf("automutex: rule %q: the task's claim for key %q could not be noted: %w", c.of.rule.Name,
				c.of.key, err)}
	}
	c.guard.outage.Answered(c.guard.log)
	return nothing
}

// end has the claim of a task that has ended end soon. After an error it ends later: producers see that asynq does not
// have the task.
func (c *claim) end(e ending) {
	ended := e.lease == nil && e.decision.Final(false)
	endsAtStart := c.kind.EndsAtStart() && !c.superseded
	gone := endsAtStart && c.phase == claims.Begun
	if ended && endsAtStart && !gone && e.decision.What == decide.Done {
		c.guard.warnOnce("skipped "+c.of.rule.Name, "a task was skipped that package unique had enqueued UntilStart: no run "+
			"may have seen the change it stands for; use another policy than skip, or UntilDone", c.about(c.of)...)
	}
	if ended && !gone && (c.superseded || c.kind.EndsWithTask()) {
		_ = c.write(claims.Ended)
	}
}

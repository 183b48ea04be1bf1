package automutex

import (
	"context"
	"fmt"

	"github.com/automutex/automutex/internal/claim"
)

// dropClaim ends the claim that a producer of package unique made for this
// task until it starts: from here on the next task for the key may be enqueued.
// It runs when all locks are held, right before the handler, so that whoever
// was told "one waits already" changed its data before that one reads it.
//
// A handler that ran beside its own claim would break that promise: the next
// producer would be joined to a run that has read its data. So a claim that
// cannot be dropped keeps the task from running, as Redis being away does: the
// verdict hands the task back, unspent. On its last attempt the task tries again
// in its worker, until the margin before its deadline.
//
// Only a task whose ID says that there is a claim pays for it, with one call.
func (a *attempt) dropClaim(targets []target) *verdict {
	for _, t := range targets {
		if claim.Has(a.id, t.key) {
			return a.dropClaimOf(t)
		}
	}
	if claim.HasAny(a.id, a.guard.cfg.Prefix) {
		a.guard.warnOnce("no rule for a claim", "a task was enqueued UntilStart by a rule whose key no rule of this Guard has, so that its claim lasts until it has ended; "+
			"give the rules of both an equal Task, Scope and On, and both sides the same Prefix and HashKeys", "type", a.task.Type(), "task", a.note)
	}
	return nil
}

func (a *attempt) dropClaimOf(t target) *verdict {
	for {
		_, err := a.guard.locker.Claim(t.key).Drop(a.ctx, claim.Holder(a.queue, a.id))
		if err == nil {
			a.guard.outage.over(a.guard.log)
			return nil
		}
		if a.ctx.Err() != nil {
			return &verdict{answer: context.Cause(a.ctx)}
		}
		err = hintClient(err)
		a.backendError(t, err)
		delay := a.guard.outage.delay()
		if !a.last {
			return a.handBack(t, fmt.Errorf("automutex: rule %q: the task's claim for key %q could not be dropped: %w", t.rule.Name, t.key, err), delay)
		}
		if !a.pause(delay) {
			return a.gaveUp(err)
		}
	}
}

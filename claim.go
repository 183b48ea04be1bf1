package automutex

import (
	"context"
	"fmt"

	"github.com/automutex/automutex/internal/claim"
	"github.com/automutex/automutex/internal/tasknote"
)

// dropClaim ends the claim that a producer of package unique made for this task until
// it starts: from here on the next task for the key may be enqueued. dropClaim runs
// when all locks are held, right before the handler. A producer whose task was refused as
// a duplicate has changed its data before, so the handler reads the change.
//
// A handler that ran beside its own claim would break that promise: the next producer
// would be joined to a run that has already read its data. So a task whose claim cannot
// be dropped does not run. dropClaim returns it to asynq, its attempt not spent, as when
// Redis is away. On its last attempt the task tries again in its worker, until the margin before
// its deadline.
//
// Only a task whose ID says that it has a claim costs a round trip.
func (a *attempt) dropClaim(targets []target) outcome {
	for _, t := range targets {
		if claim.Has(a.id, t.key) {
			return a.dropClaimOf(t)
		}
	}
	if claim.HasAny(a.id, a.guard.cfg.Prefix) {
		a.guard.warnOnce("no rule for a claim", "a task was enqueued UntilStart, but no rule of this Guard makes the key of its claim, so the claim lasts until the task has ended; "+
			"give the rules of producer and Guard an equal Task, Scope and On, and both sides the same Prefix and HashKeys", "type", a.task.Type(), "task", a.note)
	}
	return outcome{}
}

func (a *attempt) dropClaimOf(t target) outcome {
	for {
		_, err := inner.Claim(a.guard.locker, t.key).Drop(a.roundTripContext(), tasknote.Of(a.queue, a.id))
		if err == nil {
			a.guard.outage.noteSuccess(a.guard.log)
			return outcome{}
		}
		if a.ctx.Err() != nil {
			return finish(context.Cause(a.ctx))
		}
		err = withClientHint(err)
		a.backendError(t, err)
		delay := a.guard.outage.delay()
		if !a.lastAttempt {
			return a.returnTask(t, fmt.Errorf("automutex: rule %q: the task's claim for key %q could not be dropped: %w", t.rule.Name, t.key, err), delay)
		}
		if !a.sleepOnLastAttempt(delay) {
			return a.stoppedWaiting(err)
		}
	}
}

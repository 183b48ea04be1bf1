package automutex

import (
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
func (d *delivery) dropClaim(targets []target) outcome {
	for _, t := range targets {
		if claim.Has(d.id, t.key) {
			return d.dropClaimOf(t)
		}
	}
	if claim.HasAny(d.id, d.guard.cfg.Prefix) {
		d.guard.warnOnce("no rule for a claim", "a task was enqueued UntilStart, but no rule of this Guard makes the key of its claim, so the claim lasts until the task has ended; "+
			"give the rules of producer and Guard an equal Task, Scope and On, and both sides the same Prefix and HashKeys", "type", d.task.Type(), "task", d.note)
	}
	return outcome{}
}

func (d *delivery) dropClaimOf(t target) outcome {
	for {
		_, err := inner.Claim(d.guard.locker, t.key).Drop(d.roundTripContext(), tasknote.Of(d.queue, d.id))
		if err == nil {
			d.guard.outage.recordSuccess(d.guard.log)
			return outcome{}
		}
		if d.ctx.Err() != nil {
			return d.finishEnded()
		}
		err = withClientHint(err)
		d.backendError(t, err)
		delay := d.guard.outage.delay()
		if !d.lastAttempt {
			return d.returnTask(t, fmt.Errorf("automutex: rule %q: the task's claim for key %q could not be dropped: %w", t.rule.Name, t.key, err), delay)
		}
		if !d.sleepOnLastAttempt(delay) {
			return d.stoppedWaiting(err)
		}
	}
}

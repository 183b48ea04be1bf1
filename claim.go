package automutex

import (
	"github.com/automutex/automutex/internal/claim"
)

// dropClaim ends the claim that a producer of package unique made for this
// task until it starts: from here on the next task for the key may be enqueued.
// It runs when all locks are held, right before the handler, so that whoever
// was told "one waits already" changed its data before that one reads it.
//
// Only a task whose ID says that there is a claim pays for it, with one call. A
// claim never keeps a task from running: what cannot be dropped is found to be
// a running or ended task's at the next enqueue.
func (a *attempt) dropClaim(targets []target) {
	for _, t := range targets {
		if !claim.Has(a.id, t.key) {
			continue
		}
		if _, err := a.guard.locker.Claim(t.key).Drop(a.ctx, claim.Holder(a.queue, a.id)); err != nil {
			a.guard.log.Warn("automutex: the task's claim could not be dropped; the next one for its key is enqueued when this one has ended",
				"rule", t.rule.Name, "key", t.key, "task", a.note, "error", err)
			a.observe(Event{Kind: EventBackendError, Rule: t.rule.Name, Key: t.key, Err: err})
		}
		return
	}
	if claim.HasAny(a.id, a.guard.cfg.Prefix) {
		a.guard.unclaimed.Do(func() {
			a.guard.log.Warn("automutex: a task was enqueued UntilStart by a rule whose key no rule of this Guard has, so that its claim lasts until it has ended; "+
				"give the rules of both an equal Task, Scope and On, and both sides the same Prefix and HashKeys", "type", a.task.Type(), "task", a.note)
		})
	}
}

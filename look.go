package automutex

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/lock"
)

// This file is what a look at a task finds: what keeps its handler from starting.

// obstacle is what keeps a handler from starting, or what a handler has returned.
type obstacle struct {
	why    decide.Why
	target target        // whose key or lock it is; without a rule if it concerns no single rule
	err    error         // what happened: the task's last error
	busy   *BusyError    // err, if the lock could be asked for
	asked  bool          // the function of AfterFailure was asked; err is its answer
	delay  time.Duration // of the RetryAfter in err
	ran    bool          // the handler has returned err
	held   time.Duration // and ran for so long
}

// over returns what has ended the delivery whatever else is true.
func (d *delivery) over() decide.Over {
	switch {
	case d.ctx.Err() != nil:
		return decide.ContextEnded
	case d.isReplaced(), d.claim.superseded:
		return decide.Replaced
	case d.afterClose, d.guard.closing.Err() != nil:
		return decide.GuardClosed
	}
	return decide.Goes
}

// look makes the task's keys and takes its locks, in the order of targets, which is the same for
// all tasks, so that no two tasks wait for each other. It returns the first obstacle, or decide.Nothing
// if the handler may start: then the task holds each lock, but for those that Allow runs without.
// If nothing new can be found, it returns what the last look has met.
func (d *delivery) look(last obstacle) obstacle {
	if d.over() != decide.Goes || last.why != decide.Nothing && !d.hasTimeFor(0) {
		return last
	}
	if met := d.makeKeys(); met.why != decide.Nothing {
		return met
	}
	if d.refuseSpent() {
		return obstacle{why: decide.KeyNever, err: errUnnoted}
	}
	if met := d.checkPaused(); met.why != decide.Nothing {
		return met
	}
	for _, t := range d.targets {
		if met := d.take(t); met.why != decide.Nothing {
			return met
		}
	}
	// Note the start in the producer's claim (package unique) only when the handler would start now.
	// Look for lost leases again after that round trip. If one is lost then, the note stays: the next task for the key may be enqueued before this one runs, and both run.
	met := d.lostBeforeStart()
	if met.why == decide.Nothing && d.claim.key != "" && d.over() == decide.Goes {
		if met = d.beginInClaim(); met.why == decide.Nothing {
			met = d.lostBeforeStart()
		}
	}
	return met
}

// makeKeys finds the locks that the task needs. An error of Key, LimitOf or Config.Decode is
// temporary unless it is a *KeyError, or wraps asynq.SkipRetry or asynq.RevokeTask. Under Allow, which
// only measures contention, the task runs without the lock of a rule for which no key can be made.
// If several rules fail, the strongest reason counts.
func (d *delivery) makeKeys() obstacle {
	if d.targets != nil {
		return obstacle{why: decide.Nothing}
	}
	met := obstacle{why: decide.Nothing}
	targets := d.guard.rules.targetsNeeded(d.ctx, d.task, d.guard.cfg.Prefix, func(rule *compiledRule, err error) {
		o := obstacle{why: whyNoKey(err), target: target{rule: rule}, err: err}
		if r := wantsRetryAfter(err); r != nil {
			o.delay = r.delay
		}
		switch {
		case rule.Busy.kind == policyAllow && d.ctx.Err() == nil:
			d.guard.log.Warn("automutex: no key can be made from the task; its rule has the policy allow, so it runs without the lock",
				"rule", rule.Name, "type", d.task.Type(), "task", d.note, "error", err)
			d.observe(Event{Kind: EventKeyError, Rule: rule.Name, Policy: rule.Busy, Err: err})
		case decide.Strongest(met.why, o.why) != met.why:
			met = o
		}
	})
	if met.why != decide.Nothing {
		return d.report(met)
	}
	d.targets = targets
	d.recordKeysMade()
	return met
}

// whyNoKey returns what the error of a function that makes the key or the limit means.
func whyNoKey(err error) decide.Why {
	var later *temporaryKeyError
	switch {
	case errors.Is(err, asynq.RevokeTask): // as asynq has it, also if SkipRetry is in it
		return decide.KeyDrop
	case errors.As(err, &later) && !errors.Is(err, asynq.SkipRetry):
		return decide.KeyLater
	}
	return decide.KeyNever
}

// take gets one lock.
func (d *delivery) take(t target) obstacle {
	if d.without[t.key] || d.holds(t.key) {
		return obstacle{why: decide.Nothing}
	}
	if d.taking != t.key {
		d.taking, d.takingSince, d.stoodInLine = t.key, time.Now(), false
	}
	if err := d.acquire(t); err != nil {
		return d.report(d.refused(t, err))
	}
	d.guard.outage.recordSuccess(d.guard.log, t.key)
	d.observeAcquired(t)
	d.taking = ""
	return obstacle{why: decide.Nothing}
}

// refused returns what err, with which the task did not get the lock of t, means. If a policy
// might end the task unrun for it, refused looks for stronger reasons first.
func (d *delivery) refused(t target, err error) obstacle {
	met := obstacle{why: decide.NoAnswer, target: t, err: err}
	switch {
	case inner.IsOrderDone(err):
		return obstacle{why: decide.Finished, target: t}
	case errors.Is(err, errSpent):
		return obstacle{why: decide.KeyNever, target: t, err: err}
	case !errors.As(err, &met.busy):
		return met // while the delivery is over, the reason does not count
	}
	if met.why = d.whyBusy(t, met.busy); met.why != decide.Paused { // a pause may be known from before an outage
		d.guard.outage.recordSuccess(d.guard.log, t.key)
	}
	if !t.rule.Busy.mayEnd() || !met.why.MayEnd() || d.over() != decide.Goes {
		return met
	}
	if met.why != decide.Cooldown { // a cooldown is there to drop doubles
		switch again, err := d.comesBack(t); {
		case err != nil:
			return obstacle{why: decide.NoAnswer, target: t, err: err}
		case again && met.why == decide.Held:
			met.why = decide.Own
		case again || met.why == decide.Rate && d.retried > 0:
			met.why = decide.OwnRate
		}
	}
	for _, other := range d.targets {
		if other.key == t.key || d.without[other.key] || d.holds(other.key) {
			continue
		}
		if found := d.inspect(other); decide.Strongest(found.why, met.why) != met.why {
			met = found
		}
	}
	return met
}

// whyBusy returns what a BusyError of t means.
func (d *delivery) whyBusy(t target, busy *BusyError) decide.Why {
	switch {
	case busy.Reason == lock.ReasonPaused:
		return decide.Paused
	case busy.Reason == lock.ReasonClosed:
		return decide.Closed
	case busy.SameTask:
		return decide.Own
	case d.crowded && (!busy.gateClosed() || t.rule.Busy.mayEnd() && busy.ExpiresIn <= t.rule.Wait):
		return decide.Crowded // it would have waited, also for the gate
	case busy.Reason == lock.ReasonCooldown:
		return decide.Cooldown
	case busy.Reason == lock.ReasonRate:
		return decide.Rate
	}
	return decide.Held
}

// inspect returns what a lock of the task, which it has not come to, would refuse it for. It only
// reads. Holders count as decide.Nothing: no reason is weaker.
func (d *delivery) inspect(t target) obstacle {
	if err := d.pausedError(t); err != nil {
		met := obstacle{why: decide.NoAnswer, target: t, err: err}
		if errors.As(err, &met.busy) {
			met.why = decide.Paused
		}
		return met
	}
	info, err := inner.Inspect(d.roundTripContext(), d.guard.lockAt(t, d.note))
	if err != nil {
		return obstacle{why: decide.NoAnswer, target: t, err: withClientHint(err)}
	}
	busy := &BusyError{Rule: t.rule.Name, Key: t.key, Reason: info.Gate.Reason, ExpiresIn: info.Gate.OpensIn}
	for _, h := range info.Holders {
		if d.note != "" && h.Note == d.note {
			busy.Reason, busy.SameTask, busy.Holder, busy.HolderTask, busy.ExpiresIn = ReasonHeld, true, h.Owner, h.Note, h.ExpiresIn
		}
	}
	if busy.Reason == "" {
		return obstacle{why: decide.Nothing}
	}
	return obstacle{why: d.whyBusy(t, busy), target: t, err: busy, busy: busy}
}

// A handler that asks to come back, with a RetryAfter, has work under way, which no policy may end for
// a busy key. For each lock whose policy may, Redis stores that until an hour after the task is to come.

// comesBack reports whether the handler of the task has asked to come back, in this delivery or in an
// earlier one.
func (d *delivery) comesBack(t target) (bool, error) {
	if d.looked || d.cameBack || d.note == "" {
		return d.cameBack, nil
	}
	marked, err := inner.GoAway(d.roundTripContext(), d.markAt(t), 0, true)
	d.looked, d.cameBack = err == nil, marked
	return marked, withClientHint(err)
}

// keepComesBack stores that the task comes back after delay. Unless its handler has asked for that just
// now, it only prolongs what is stored.
func (d *delivery) keepComesBack(delay time.Duration, asked bool) {
	if d.cameBack = d.cameBack || asked; d.looked && !d.cameBack {
		return
	}
	d.eachMark(func(t target) error {
		known, err := inner.GoAway(context.WithoutCancel(d.ctx), d.markAt(t), delay, !asked)
		if known {
			t.rule.asksBack.Store(true)
		}
		return err
	})
}

// forgetComesBack deletes what is stored: the task has ended, and another one with its ID is new. Where no
// handler has asked for it, nothing is stored, or another process did that: then it expires.
func (d *delivery) forgetComesBack() {
	d.eachMark(func(t target) error {
		if !t.rule.asksBack.Load() {
			return nil
		}
		return inner.Forget(context.WithoutCancel(d.ctx), d.markAt(t))
	})
}

// eachMark calls f for each lock of the task whose policy may end it.
func (d *delivery) eachMark(f func(target) error) {
	for _, t := range d.targets {
		if d.note == "" || !t.rule.Busy.mayEnd() {
			continue
		}
		if err := f(t); err != nil {
			d.guard.log.Debug("automutex: it could not be stored whether the task comes back, so its rule's policy may end it", "key", t.key, "task", d.note, "error", err)
		}
	}
}

func (d *delivery) markAt(t target) *lock.Lock {
	return d.guard.lockAt(t, d.note)
}

// report observes and logs what the task has met. It does nothing for what ended with the delivery,
// and says once what a task on its last attempt meets again and again.
func (d *delivery) report(met obstacle) obstacle {
	t := met.target
	again := d.reported.why == met.why && d.reported.target.key == t.key && d.stayAt != ""
	d.reported = met
	if over := d.over(); over == decide.ContextEnded || over == decide.GuardClosed && met.why != decide.KeyNever || again && met.busy != nil {
		return met
	}
	switch {
	case met.busy != nil:
		policy := met.policy()
		if d.isReplaced() {
			policy = Replace
		}
		d.observe(Event{Kind: EventBusy, Rule: t.rule.Name, Key: t.key, Policy: policy, Waited: met.busy.Waited, Busy: met.busy})
	case d.isReplaced():
	case met.why == decide.NoAnswer:
		d.backendError(t, met.err)
	case met.why == decide.KeyLater:
		var failed *temporaryKeyError
		if errors.As(met.err, &failed) {
			failed.rule.keyOutage.recordFailure(d.guard.log, failed.function, d.note, met.err)
		}
		d.observe(Event{Kind: EventBackendError, Rule: t.rule.Name, Err: met.err})
	case errors.Is(met.err, errSpent):
	case met.why == decide.KeyNever, met.why == decide.KeyDrop:
		end := "it is archived"
		if met.why == decide.KeyDrop {
			end = "it is dropped, as the error wraps asynq.RevokeTask"
		}
		d.guard.log.Warn("automutex: no key or no limit can be made from the task; "+end, "type", d.task.Type(), "task", d.note, "error", met.err)
		d.observe(Event{Kind: EventKeyError, Err: met.err})
	}
	return met
}

// policy returns the policy that applies: the rule's, or Retry if that does not apply to the reason.
func (o obstacle) policy() Policy {
	if rule := o.target.rule; rule != nil && rule.Busy.appliesTo(o.why) {
		return rule.Busy
	}
	return Retry
}

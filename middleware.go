package automutex

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// This file is the path of one task, top to bottom. Indented: called by the row above that is
// less indented. Last column: files to read next for that step.
//
//	Middleware                is there a rule for the task's type?           match.go
//	  enterTask               count the busy worker, for Park                server.go, workers.go
//	  runWithoutLocks         run a task that needs no lock                  hold.go
//	  process                 run a task that has rules
//	    newDelivery           what asynq says of the task
//	    targets               which locks does the task need?                match.go, internal/jsonkey
//	      endWithoutKey       no key can be made: archive the task
//	    runWithLocks          take the locks, run the handler, release
//	      takeAll             take all locks, or end the task
//	        checkPaused       return the task if a key is paused             pause.go
//	        takeEach          once, or again after a lost lease
//	          take            acquire one lock
//	            acquire       wait as the rule says: Wait, Park, Replace; a
//	                          new way to wait begins there                   wait.go, park.go, replace.go
//	            decide        the task did not get the lock
//	              applyPause  its key is paused                              pause.go
//	              applyPolicy its key is busy                                policy.go
//	              retry       returnTask, or waitUntilDeadline               outcome.go, wait.go
//	          mayStart        may the handler start now?
//	            retake        a lease was lost before the handler started    lease.go
//	          dropClaim       end the claim of package unique                claim.go
//	      retryHere           last attempt: the handler returned RetryAfter  hold.go
//	      handlerResult       was the task replaced while its handler ran?   replace.go
//	      parkFirst           the handler put its key on Hold: park the task hold.go
//	      release             end all leases and report it                   lease.go
//	    afterClose            the Guard is closed: return the task           outcome.go
//
// Steps that can end the task return an outcome (outcome.go). outcome{} means proceed: go on with
// the next step. inner has what package lock offers to this module alone (inside.go).
//
// Terms. Line: the waiters of a busy lock, first come, first served. Park: return the task to
// asynq, and keep its place in line. Gate: the earliest time of the key's next start; a rate, a
// Hold or a Cooldown moves it. Claim: a producer's mark, for which a task is enqueued once. Note:
// the text that names a task in its locks. docs/architecture.md has more.
//
// To add a field to Rule: rule.go (field, check, default), config/rules.go, then the step that
// uses it. To add a policy: the list at policyKind in policy.go.

// Middleware wraps a handler so that it runs while the task's locks are held; under [Allow] it
// also runs without a lock that is busy. A task that no rule matches runs without locks.
// Middleware is an [asynq.MiddlewareFunc]. Install it first: a middleware that is installed
// before it runs outside of the locks, and also for tasks whose key is busy.
func (g *Guard) Middleware(next asynq.Handler) asynq.Handler {
	g.middlewareUsed.Store(true)
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		// Park counts busy workers, so count this task even if it has no rule. A task that
		// passes a second Middleware of this Guard is counted once.
		defer g.enterTask(ctx)()
		switch {
		case g.alreadyGuarded(ctx, t):
			return next.ProcessTask(ctx, t) // the outer Middleware handles the result
		case g.rules.match(t.Type()) == nil:
			return g.runWithoutLocks(ctx, t, next)
		}
		return g.process(ctx, t, next)
	})
}

// process runs a task that has rules. It returns the handler's result, or the reason why
// the handler did not run.
func (g *Guard) process(ctx context.Context, t *asynq.Task, next asynq.Handler) error {
	d := g.newDelivery(ctx, t)
	if d.id != "" && d.server == nil {
		g.warnOnce("no ServerConfig", "the asynq server was made without Guard.ServerConfig: each time a task returns to asynq, it spends an attempt and waits for asynq's retry delay; "+
			"make the server with asynq.NewServer(redis, guard.ServerConfig(config))")
	}
	targets, result := d.targets()
	if result.step == proceed {
		// No target: each rule's Key returned NoLock, or no key could be made and the policy is Allow.
		if len(targets) == 0 {
			// guardedTaskKey: a second Middleware around the same handler does nothing.
			return g.runWithoutLocks(context.WithValue(ctx, guardedTaskKey{g}, t), t, next)
		}
		result = d.runWithLocks(targets, next)
	}
	if result.step == guardClosed {
		return d.afterClose()
	}
	return result.err
}

// delivery is one task that asynq has delivered to this worker, from the call of Middleware to
// its return. A delivery is not an attempt: a task that returns without spending an attempt is
// delivered again in the same attempt. Only the worker's goroutine writes the fields. Other
// goroutines (watchers, requests to stop) read those that newDelivery sets, and replacing, which is
// set before those goroutines start.
type delivery struct {
	guard *Guard
	ctx   context.Context // the delivery's own: it lives as long as the call
	task  *asynq.Task

	queue, id   string
	note        string // names the task in its locks, see internal/tasknote; empty outside a server
	lastAttempt bool   // asynq would archive the task for any error but asynq.RevokeTask
	arrivedAt   time.Time
	server      *server // nil: the server was made without ServerConfig

	replacing    *replaceState // nil until the task reaches a lock whose rule has the policy Replace
	leases       []*heldLease  // in the order taken
	takingSince  time.Time     // when the task came to the lock that it takes now
	waitingSince time.Time     // when it joined the line of that lock; zero: it is in no line
	// The next three are those of one run of the handler. Between two runs retryHere releases all
	// locks and clears handlerStart. succeeded is set after the last run only.
	handlerStart time.Time     // zero: the handler has not started
	handlerDone  chan struct{} // made when the handler starts; release closes it
	succeeded    bool          // the handler returned nil
}

func (g *Guard) newDelivery(ctx context.Context, t *asynq.Task) *delivery {
	d := &delivery{guard: g, ctx: ctx, task: t, server: g.serverOf(ctx), arrivedAt: time.Now()}
	d.queue, _ = asynq.GetQueueName(ctx)
	var ok bool
	if d.id, ok = asynq.GetTaskID(ctx); ok {
		d.note = tasknote.Of(d.queue, d.id)
		retried, _ := asynq.GetRetryCount(ctx)
		maxRetry, _ := asynq.GetMaxRetry(ctx)
		d.lastAttempt = retried >= maxRetry
	}
	return d
}

// targets returns the locks that the task needs. An error of Key, LimitOf or Config.Decode is
// temporary unless it is a *KeyError, or wraps asynq.SkipRetry or asynq.RevokeTask. For a
// temporary error targets returns the task to asynq. On the last attempt it tries again here,
// until the margin (wait.go) before the task's deadline.
func (d *delivery) targets() ([]target, outcome) {
	g := d.guard
	for {
		targets, err := g.rules.targetsNeeded(d.ctx, d.task, g.cfg.Prefix, d.runsWithoutKey)
		if err == nil {
			g.recordKeysMade(d.task.Type())
			return targets, outcome{}
		}
		if d.ctx.Err() != nil {
			return nil, d.finishEnded() // Key may have failed because ctx ended
		}
		var failed *temporaryKeyError
		if !errors.As(err, &failed) || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) {
			return nil, d.endWithoutKey(err)
		}
		failed.rule.keyOutage.recordFailure(g.log, failed.function, err)
		d.observe(Event{Kind: EventBackendError, Rule: failed.rule.Name, Err: err})
		delay := failed.rule.keyOutage.delay()
		if !d.lastAttempt {
			return nil, d.returnTask(target{rule: failed.rule}, err, delay)
		}
		if !d.sleepOnLastAttempt(delay) {
			return nil, d.stoppedWaiting(err)
		}
	}
}

// endWithoutKey ends a task from which no key or no limit can be made. Its handler does not
// run. asynq archives the task, or drops it if err wraps asynq.RevokeTask.
func (d *delivery) endWithoutKey(err error) outcome {
	end := "it is archived"
	if errors.Is(err, asynq.RevokeTask) {
		end = "it is dropped, as the error wraps asynq.RevokeTask"
	}
	d.guard.log.Warn("automutex: no key or no limit can be made from the task; "+end, "type", d.task.Type(), "task", d.note, "error", err)
	d.observe(Event{Kind: EventKeyError, Err: err})
	return finish(archive{err}) // asynq looks for RevokeTask in err first, and then drops the task
}

// runsWithoutKey reports whether the task runs without this rule's lock although no key can be
// made from it: it does so under Allow, which only measures contention. Under Allow too, a task
// whose key is paused, or for which Redis does not answer, returns to asynq: see decide.
func (d *delivery) runsWithoutKey(rule *compiledRule, err error) bool {
	if rule.Busy.kind != policyAllow || d.ctx.Err() != nil {
		return false
	}
	d.guard.log.Warn("automutex: no key can be made from the task; its rule has the policy allow, so it runs without the lock",
		"rule", rule.Name, "type", d.task.Type(), "task", d.note, "error", err)
	d.observe(Event{Kind: EventKeyError, Rule: rule.Name, Policy: rule.Busy, Err: err})
	return true
}

// runWithLocks takes the task's locks, runs the handler and releases the locks.
func (d *delivery) runWithLocks(targets []target, next asynq.Handler) outcome {
	if !d.guard.enter() { // counts the task, so that Close waits for it
		return outcome{step: guardClosed}
	}
	defer d.guard.leave()
	// Plain defers, no recover: a panic of the handler reaches asynq with the stack
	// that it had.
	defer d.release()
	for {
		if result := d.takeAll(targets); result.step != proceed {
			return result
		}
		d.handlerStart = time.Now()
		err := next.ProcessTask(d.handlerContext(), d.task)
		// On the last attempt, a handler that returned RetryAfter runs again here.
		again, closed := d.retryHere(err)
		switch {
		case closed:
			return outcome{step: guardClosed}
		case !again:
			d.succeeded = err == nil
			err = d.handlerResult(err)
			err = d.parkFirst(err) // a task that put its key on Hold releases it and parks ahead of all others
			return finish(err)
		}
	}
}

// takeAll takes the locks in the order of targets, which is the same for all tasks, so that no
// two tasks wait for each other. It returns proceed when the handler may start: the task holds
// each lock, but for busy ones whose rule has the policy Allow.
func (d *delivery) takeAll(targets []target) outcome {
	if result := d.checkPaused(targets); result.step != proceed {
		return result
	}
	for {
		if result := d.takeEach(targets); result.step != takeAgain {
			return result
		}
		// retake has released all locks. So each is asked for again, also one that Allow ran
		// without, and its events come again.
	}
}

// takeEach is takeAll without checkPaused. It returns takeAgain when the task, on its last
// attempt, has lost a lease before its handler started.
func (d *delivery) takeEach(targets []target) outcome {
	for _, t := range targets {
		if result := d.take(t); result.step != proceed {
			return result
		}
	}
	// Drop the producer's claim (package unique) only when the handler would start now. Ask
	// mayStart again after that round trip. If it says no then, the claim is not put back:
	// the next task for the key may be enqueued before this one runs, and both run.
	if result := d.mayStart(); result.step != proceed {
		return result
	}
	if result := d.dropClaim(targets); result.step != proceed {
		return result
	}
	return d.mayStart()
}

// mayStart returns proceed if the handler may start, now that the task holds its locks. If a
// lease ended meanwhile, the result is that of retake.
func (d *delivery) mayStart() outcome {
	switch {
	case d.ctx.Err() != nil:
		return d.finishEnded()
	case d.isReplaced():
		return finish(d.revoke(nil))
	}
	if lost := d.lostBeforeStart(); lost != nil {
		return d.retake(lost)
	}
	return outcome{}
}

// take gets one lock, or decides what happens to the task without it.
func (d *delivery) take(t target) outcome {
	if d.holds(t.key) {
		return outcome{}
	}
	d.takingSince = time.Now()
	if err := d.acquire(t); err != nil {
		return d.decide(t, err)
	}
	d.guard.outage.recordSuccess(d.guard.log)
	d.observeAcquired(t, time.Since(d.takingSince))
	return outcome{}
}

// decide handles a task that could not get the lock of t because of err. It ends the task, or
// returns proceed: the task runs without that lock (Allow), or has got it after all, since it
// waited on its last attempt.
func (d *delivery) decide(t target, err error) outcome {
	var busy *BusyError
	switch {
	case d.ctx.Err() != nil:
		return d.finishEnded()
	case d.isReplaced():
		return d.replacedBeforeStart(t, err)
	case errors.Is(err, ErrClosed):
		return outcome{step: guardClosed}
	case !errors.As(err, &busy):
		d.backendError(t, err)
		return d.retry(t, err, d.guard.outage.delay())
	}
	d.guard.outage.recordSuccess(d.guard.log)
	if busy.Reason == lock.ReasonPaused {
		return d.applyPause(t, busy)
	}
	policy := t.policyFor(busy)
	// EventHeld is named after Hold, not after a holder: it says what closed the gate. EventBusy
	// follows, as for every busy key, and says which policy applies.
	if busy.gateClosed() {
		d.observe(Event{Kind: EventHeld, Rule: t.rule.Name, Key: t.key, Policy: policy, Waited: busy.Waited, Busy: busy})
	}
	d.observe(Event{Kind: EventBusy, Rule: t.rule.Name, Key: t.key, Policy: policy, Waited: busy.Waited, Busy: busy})
	return d.applyPolicy(t, busy, policy)
}

// applyPolicy applies policy, that of policyFor, to a task whose lock is busy. While the gate is
// closed, a retry comes when the gate opens. This replaces the delay of RetryIn, too.
func (d *delivery) applyPolicy(t target, busy *BusyError, policy Policy) outcome {
	delay := retryDelay()
	switch {
	case busy.gateClosed():
		delay = busy.gateDelay()
	case policy.kind == policyRetryIn:
		delay = policy.delay
	}
	switch policy.kind {
	case policySkip:
		d.guard.log.Debug("automutex: skipped: the key is busy",
			"rule", t.rule.Name, "key", t.key, "task", d.note, "holder", busy.HolderTask)
		d.observe(Event{Kind: EventSkipped, Rule: t.rule.Name, Key: t.key, Policy: policy})
		return finish(nil)
	case policyArchive:
		return finish(archive{busy})
	case policyFail:
		return finish(busy) // asynq counts the attempt
	case policyAllow:
		return outcome{}
	case policyAfterFailure: // after the lock could not be taken, not after the handler
		err := policy.failureFunc()(d.ctx, d.task, busy)
		if !returnsBusy(err, busy) || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) {
			return finish(err)
		}
		// The user's function returned busy: retry.
	case policyPark:
		if busy.parked {
			return d.park(t, busy)
		}
		// The wait ended before Redis parked the task, or it is the last attempt, for which
		// acquire does not park: retry.
	case policyRetry, policyRetryIn:
	case policyReplace: // acquire has asked the older task to stop, and the wait for it is over
	}
	return d.retry(t, busy, delay)
}

// retry returns the task to asynq. On the last attempt, where asynq would archive the
// task, retry waits for the lock in the task's worker instead.
func (d *delivery) retry(t target, reason error, delay time.Duration) outcome {
	if !d.lastAttempt {
		return d.returnTask(t, reason, delay)
	}
	if err := d.waitUntilDeadline(t); err != nil {
		return d.stoppedWaiting(err)
	}
	d.observeAcquired(t, time.Since(d.takingSince)) // this includes the rule's Wait
	return outcome{}
}

// release releases all locks, the last one taken first, and then reports them. It also
// runs while a panic unwinds, and after d.ctx has ended: releases use only its values.
func (d *delivery) release() {
	if d.handlerDone != nil {
		close(d.handlerDone)
		d.handlerDone = nil
	}
	leases := d.leases
	d.leases = nil
	for _, h := range slices.Backward(leases) {
		if h.stopWatching != nil {
			h.stopWatching()
		}
		h.endedBefore = inner.LeaseErr(h.lease)
		h.heldFor = time.Since(h.takenAt)
		if cooldown := h.target.rule.Cooldown; d.succeeded && cooldown > 0 {
			// It counts from the start of the handler. If it is over already, Cooldown only releases.
			h.releaseErr = h.lease.Cooldown(d.ctx, cooldown-time.Since(d.handlerStart))
		} else if d.handlerStart.IsZero() {
			h.releaseErr = inner.GiveBack(d.ctx, h.lease) // refunds the start to the rate: no handler started
		} else {
			h.releaseErr = h.lease.Unlock(d.ctx)
		}
	}
	d.forgetArrivals() // under Replace
	d.reportReleased(leases)
}

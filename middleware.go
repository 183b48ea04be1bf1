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

// This file is the path of one task, top to bottom. A function calls those indented below
// it. The last column names the file of a function that is not in this one.
//
//	Middleware         is there a rule for the task's type?          match.go
//	  enterTask        count the busy worker                         server.go
//	  runWithoutLocks  run a task that needs no lock                 hold.go
//	process            one task that has rules
//	  targets          which locks does the task need?               match.go, internal/jsonkey
//	runWithLocks       locks, handler, release
//	takeAll            take all locks
//	  checkPaused      return the task if a key is paused            pause.go
//	  take             one lock: acquire                             wait.go, park.go, replace.go
//	  dropClaim        end the claim of package unique               claim.go
//	  retake           a lease was lost before the handler started   lease.go
//	decide             the task did not get a lock
//	  applyPause       its key is paused                             pause.go
//	  applyPolicy      its key is busy; policy.go says what each policy means
//	after the handler
//	  retryHere        RetryAfter on the last attempt                hold.go
//	  handlerResult    was the task replaced? revoke                 replace.go
//	  parkFirst        park a task that put its key on Hold          hold.go
//	release            the end of all locks, reported                lease.go
//
// Each step returns an outcome (outcome.go).
//
// The gate is the earliest time of the key's next start. A rate, a Hold or a Cooldown
// moves it.

// Middleware wraps a handler so that it runs while the task's locks are held. A task
// that no rule matches runs as without it. Middleware is an asynq.MiddlewareFunc. Install it
// before all others: a middleware outside of it also runs for tasks whose key is busy, and
// holds no lock.
func (g *Guard) Middleware(next asynq.Handler) asynq.Handler {
	g.middlewareUsed.Store(true)
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		// Park counts busy workers, so count this task even if it has no rule.
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
	a := g.newAttempt(ctx, t)
	if a.id != "" && a.server == nil {
		g.warnOnce("no ServerConfig", "the asynq server was made without Guard.ServerConfig: each time a task returns to asynq, it spends an attempt and runs late; "+
			"make the server with asynq.NewServer(redis, guard.ServerConfig(config))")
	}
	targets, result := a.targets()
	if result.step == proceed {
		if len(targets) == 0 { // NoLock, or a rule with the policy Allow and no key
			return g.runWithoutLocks(context.WithValue(ctx, guardedTaskKey{g}, t), t, next)
		}
		result = a.runWithLocks(targets, next)
	}
	if result.step == guardClosed {
		return a.afterClose()
	}
	return result.err
}

// attempt is one run of the middleware for one task: what asynq knows of the task, and
// the leases that the task holds. Only the worker's goroutine uses it, except that the
// watchers of handlerContext read what is set before the handler starts.
type attempt struct {
	guard *Guard
	ctx   context.Context //nolint:containedctx // the attempt's own: it lives as long as the call
	task  *asynq.Task

	queue, id   string
	note        string // names the task in its locks, see internal/tasknote; empty outside a server
	lastAttempt bool   // asynq would archive the task for any error
	arrivedAt   time.Time
	server      *server // nil: the server was made without ServerConfig

	replacing    *replaceState // nil until the task reaches a lock whose rule has the policy Replace
	held         []*heldLease  // in the order taken
	waitingSince time.Time     // zero: the task does not stand in line
	handlerStart time.Time     // zero: the handler has not started
	handlerDone  chan struct{} // made when the handler starts; release closes it
	succeeded    bool          // the handler returned nil
}

func (g *Guard) newAttempt(ctx context.Context, t *asynq.Task) *attempt {
	a := &attempt{guard: g, ctx: ctx, task: t, server: g.serverOf(ctx), arrivedAt: time.Now()}
	a.queue, _ = asynq.GetQueueName(ctx)
	var ok bool
	if a.id, ok = asynq.GetTaskID(ctx); ok {
		a.note = tasknote.Of(a.queue, a.id)
		retried, _ := asynq.GetRetryCount(ctx)
		maxRetry, _ := asynq.GetMaxRetry(ctx)
		a.lastAttempt = retried >= maxRetry
	}
	return a
}

// targets returns the locks that the task needs. If Key, LimitOf or Config.Decode fails
// temporarily, targets returns the task to asynq. On the last attempt it tries again here,
// until `margin` before the task's deadline. An error that wraps asynq.SkipRetry or
// asynq.RevokeTask ends the task, as one of the handler does.
func (a *attempt) targets() ([]target, outcome) {
	g := a.guard
	for {
		targets, err := g.rules.targetsWithout(a.ctx, a.task, g.cfg.Prefix, a.runsWithoutKey)
		if err == nil {
			g.noteKeysMade(a.task.Type())
			return targets, outcome{}
		}
		if a.ctx.Err() != nil {
			// The KeyFunc may have failed because ctx ended. asynq has already moved the task
			// to retry or archived.
			return nil, finish(context.Cause(a.ctx))
		}
		var failed *keyFailedError
		if !errors.As(err, &failed) || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) {
			return nil, a.endWithoutKey(err)
		}
		failed.rule.keyOutage.noteFailure(g.log, failed.function, err)
		a.observe(Event{Kind: EventBackendError, Rule: failed.rule.Name, Err: err})
		delay := failed.rule.keyOutage.delay()
		if !a.lastAttempt {
			return nil, a.returnTask(target{rule: failed.rule}, err, delay)
		}
		if !a.sleepOnLastAttempt(delay) {
			return nil, a.stoppedWaiting(err)
		}
	}
}

// endWithoutKey ends a task from which no key or no limit can be made. It never runs. asynq
// archives it, or drops it if err wraps asynq.RevokeTask.
func (a *attempt) endWithoutKey(err error) outcome {
	end := "it is archived"
	if errors.Is(err, asynq.RevokeTask) {
		end = "it is dropped, as the error wraps asynq.RevokeTask"
	}
	a.guard.log.Warn("automutex: no key or no limit can be made from the task; "+end, "type", a.task.Type(), "task", a.note, "error", err)
	a.observe(Event{Kind: EventKeyError, Err: err})
	return finish(archive{err})
}

// runsWithoutKey reports whether the task runs without this rule's lock, since no key can
// be made from the task. Only the policy Allow does so: it measures, and enforces nothing.
func (a *attempt) runsWithoutKey(rule *compiledRule, err error) bool {
	if rule.Busy.kind != policyAllow || a.ctx.Err() != nil {
		return false
	}
	a.guard.log.Warn("automutex: no key can be made from the task; its rule has the policy allow, so it runs without the lock",
		"rule", rule.Name, "type", a.task.Type(), "task", a.note, "error", err)
	a.observe(Event{Kind: EventKeyError, Rule: rule.Name, Policy: rule.Busy, Err: err})
	return true
}

// runWithLocks takes the task's locks, runs the handler and releases the locks.
func (a *attempt) runWithLocks(targets []target, next asynq.Handler) outcome {
	if !a.guard.enter() {
		return outcome{step: guardClosed}
	}
	defer a.guard.leave()
	// Plain defers, no recover: a panic of the handler reaches asynq with the stack
	// that it had.
	defer a.release()
	for {
		if result := a.takeAll(targets); result.step != proceed {
			return result
		}
		a.handlerStart = time.Now()
		err := next.ProcessTask(a.handlerContext(), a.task)
		// On its last attempt, a handler that returned RetryAfter runs again here.
		again, closed := a.retryHere(err)
		switch {
		case closed:
			return outcome{step: guardClosed}
		case !again:
			err = a.handlerResult(err)
			err = a.parkFirst(err) // a task that put its key on Hold parks ahead of all parked tasks
			return finish(err)
		}
	}
}

// takeAll takes the locks in order. It returns proceed when the task holds all of them and
// its handler may start.
func (a *attempt) takeAll(targets []target) outcome {
	if result := a.checkPaused(targets); result.step != proceed {
		return result
	}
	for {
		for _, t := range targets {
			if result := a.take(t); result.step != proceed {
				return result
			}
		}
		// Drop the producer's claim (package unique) only when the handler would start now.
		result, lost := a.mayStart()
		if result.step == proceed && lost == nil {
			if result = a.dropClaim(targets); result.step == proceed {
				result, lost = a.mayStart()
			}
		}
		if result.step != proceed {
			return result
		}
		if lost == nil {
			return outcome{}
		}
		if result := a.retake(lost); result.step != proceed {
			return result
		}
	}
}

// mayStart reports whether the handler may start, now that the task holds its locks. lost
// is a lease that ended meanwhile, or nil.
func (a *attempt) mayStart() (result outcome, lost *heldLease) {
	switch {
	case a.ctx.Err() != nil:
		// asynq has already moved the task to retry or archived. The handler would run
		// beside the task's own retry.
		return finish(context.Cause(a.ctx)), nil
	case a.isReplaced():
		return finish(a.revoke(nil)), nil
	}
	return outcome{}, a.lostBeforeStart()
}

// take gets one lock, or decides what happens to the task without it.
func (a *attempt) take(t target) outcome {
	if a.holds(t.key) {
		return outcome{}
	}
	began := time.Now()
	if err := a.acquire(t); err != nil {
		return a.decide(t, err)
	}
	a.guard.outage.noteSuccess(a.guard.log)
	a.observeAcquired(t, time.Since(began))
	return outcome{}
}

// decide ends a task that did not get the lock of t because of err. It returns proceed if
// the policy is Allow, or if the task got the lock by waiting on its last attempt.
func (a *attempt) decide(t target, err error) outcome {
	var busy *BusyError
	switch {
	case a.ctx.Err() != nil:
		return finish(context.Cause(a.ctx)) // asynq has already moved the task to retry or archived
	case a.isReplaced():
		return a.replacedBeforeStart(t, err)
	case errors.Is(err, ErrClosed):
		return outcome{step: guardClosed}
	case !errors.As(err, &busy):
		a.backendError(t, err)
		return a.retry(t, err, a.guard.outage.delay())
	}
	a.guard.outage.noteSuccess(a.guard.log)
	if busy.Reason == lock.ReasonPaused {
		return a.applyPause(t, busy)
	}
	policy := t.policyFor(busy)
	if busy.gateClosed() {
		a.observe(Event{Kind: EventHeld, Rule: t.rule.Name, Key: t.key, Policy: policy, Waited: busy.Waited, Busy: busy})
	}
	a.observe(Event{Kind: EventBusy, Rule: t.rule.Name, Key: t.key, Policy: policy, Waited: busy.Waited, Busy: busy})
	return a.applyPolicy(t, busy, policy)
}

// applyPolicy applies policy, that of policyFor, to a task whose lock is busy. A task that is
// retried while the gate is closed returns when the gate opens, also under RetryIn.
func (a *attempt) applyPolicy(t target, busy *BusyError, policy Policy) outcome {
	delay := retryDelay()
	if busy.gateClosed() {
		delay = busy.gateDelay()
	} else if policy.kind == policyRetryIn {
		delay = policy.delay
	}
	switch policy.kind {
	case policySkip:
		a.guard.log.Debug("automutex: skipped: the key is busy",
			"rule", t.rule.Name, "key", t.key, "task", a.note, "holder", busy.HolderTask)
		a.observe(Event{Kind: EventSkipped, Rule: t.rule.Name, Key: t.key, Policy: policy})
		return finish(nil)
	case policyArchive:
		return finish(archive{busy})
	case policyFail:
		return finish(busy)
	case policyAllow:
		return outcome{}
	case policyAfterFailure:
		err := policy.failureFunc()(a.ctx, a.task, busy)
		if !returnsBusy(err, busy) || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) {
			return finish(err)
		}
		// fn returned the busy error: Retry.
	case policyPark:
		if busy.parked {
			return a.park(t, busy)
		}
		// Without a kept place in line (parked unset) the task retries.
	case policyRetry, policyRetryIn, policyReplace:
	}
	return a.retry(t, busy, delay)
}

// retry returns the task to asynq. On the last attempt, where asynq would archive the
// task, retry waits for the lock in the task's worker instead.
func (a *attempt) retry(t target, reason error, delay time.Duration) outcome {
	if !a.lastAttempt {
		return a.returnTask(t, reason, delay)
	}
	began := time.Now()
	if err := a.waitUntilDeadline(t); err != nil {
		return a.stoppedWaiting(err)
	}
	a.observeAcquired(t, time.Since(began))
	return outcome{}
}

// release releases all locks, the last one taken first, and then reports them. It also
// runs while a panic unwinds.
func (a *attempt) release() {
	if a.handlerDone != nil {
		close(a.handlerDone)
		a.handlerDone = nil
	}
	leases := a.held
	a.held = nil
	for _, h := range slices.Backward(leases) {
		if h.stopWatching != nil {
			h.stopWatching()
		}
		h.endedBefore = inner.LeaseErr(h.lease)
		h.heldFor = time.Since(h.takenAt)
		if rest := h.target.rule.Cooldown - time.Since(a.handlerStart); a.succeeded && h.target.rule.Cooldown > 0 {
			// The Cooldown counts from the start of the handler. With rest <= 0 it is a plain release.
			h.releaseErr = h.lease.Cooldown(a.ctx, rest)
		} else if a.handlerStart.IsZero() {
			h.releaseErr = inner.GiveBack(a.ctx, h.lease) // refunds the start to the rate: no handler started
		} else {
			h.releaseErr = h.lease.Unlock(a.ctx)
		}
	}
	a.forgetArrivals()
	a.reportReleased(leases)
}

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

// This file is the path of one task, top to bottom:
//
//	Middleware    is there a rule for the task's type?        match.go
//	process       which locks does the task need?             match.go, internal/jsonkey
//	runWithLocks  take the locks, run the handler, release
//	take          get one lock                                wait.go (park.go, replace.go)
//	decide        what to do when the lock was not got        policy.go, pause.go
//	release       give the locks back                         lease.go

// Middleware wraps a handler so that it runs while the task's locks are held. A task
// that no rule matches passes through untouched. Middleware is an
// asynq.MiddlewareFunc. Install it before all others: a middleware outside of it runs
// unguarded, also for tasks that find their lock taken.
func (g *Guard) Middleware(next asynq.Handler) asynq.Handler {
	g.middlewareUsed.Store(true)
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		// Every task takes a worker, also a task without a rule.
		defer g.enterTask(ctx)()
		switch {
		case g.alreadyGuarded(ctx, t):
			return next.ProcessTask(ctx, t) // the outer Middleware answers for its result
		case g.rules.match(t.Type()) == nil:
			return g.runWithoutLocks(ctx, t, next)
		}
		return g.process(ctx, t, next)
	})
}

// process runs a task that has rules. It returns what asynq is told: the handler's own
// result, or why the handler did not run.
func (g *Guard) process(ctx context.Context, t *asynq.Task, next asynq.Handler) error {
	a := g.newAttempt(ctx, t)
	if a.id != "" && a.server == nil {
		g.warnOnce("no ServerConfig", "the asynq server runs without Guard.ServerConfig: tasks that are handed back spend an attempt each and come back late; "+
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

	replacing    *replaceState // nil: the task has come to no lock with the policy Replace
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

// outcome is the result of one step on the path. The zero value means that the task
// goes on to the next step.
type outcome struct {
	step step
	err  error // with finished: what Middleware returns to asynq; nil means done
}

type step uint8

const (
	proceed     step = iota // go on to the next step
	finished                // the task ends here, with outcome.err
	guardClosed             // the task ends here: the Guard is closed; see afterClose
)

func finish(err error) outcome { return outcome{step: finished, err: err} }

// targets returns the locks that the task needs. When a rule's Key or Config.Decode
// fails for now, the task goes back to asynq; on its last attempt it tries again in its
// worker, until the margin before its deadline.
func (a *attempt) targets() ([]target, outcome) {
	g := a.guard
	for {
		targets, err := g.rules.targetsWithout(a.ctx, a.task, g.cfg.Prefix, a.runsWithoutKey)
		if err == nil {
			g.noteKeysMade(a.task.Type())
			return targets, outcome{}
		}
		if a.ctx.Err() != nil {
			// A KeyFunc may have failed for that alone. asynq has filed the task already.
			return nil, finish(context.Cause(a.ctx))
		}
		var failed *keyFailedError
		if !errors.As(err, &failed) {
			return nil, a.archiveWithoutKey(err)
		}
		failed.rule.keyOutage.noteFailure(g.log, err)
		a.observe(Event{Kind: EventBackendError, Rule: failed.rule.Name, Err: err})
		delay := failed.rule.keyOutage.delay()
		if !a.lastAttempt {
			return nil, a.handBack(target{rule: failed.rule}, err, delay)
		}
		if !a.pause(delay) {
			return nil, a.stoppedWaiting(err)
		}
	}
}

// archiveWithoutKey ends a task from which no key can be made. It never runs.
func (a *attempt) archiveWithoutKey(err error) outcome {
	a.guard.log.Warn("automutex: no key can be made from the task; it is archived", "type", a.task.Type(), "task", a.note, "error", err)
	a.observe(Event{Kind: EventKeyError, Err: err})
	return finish(archive{err})
}

// runsWithoutKey reports whether a task runs without the lock of a rule from which no
// key can be made: the policy Allow measures, and enforces nothing.
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
		again, closed := a.retryHere(err)
		switch {
		case closed:
			return outcome{step: guardClosed}
		case !again:
			return finish(a.parkFirst(a.handlerResult(err)))
		}
	}
}

// takeAll takes the locks in order. It proceeds when the task holds all of them and its
// handler may start.
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
		// The claim of package unique goes last, and only if the handler would start now.
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

// mayStart reports whether the handler of a task that holds its locks may start. lost is
// a lease that ended meanwhile; nil when there is none.
func (a *attempt) mayStart() (result outcome, lost *heldLease) {
	switch {
	case a.ctx.Err() != nil:
		// asynq has filed the task already: the handler would run beside its own retry.
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

// decide says what happens to a task that did not get the lock of t because of err. It
// proceeds when the handler runs all the same: the policy is Allow, or the task got the
// lock after all.
func (a *attempt) decide(t target, err error) outcome {
	var busy *BusyError
	switch {
	case a.ctx.Err() != nil:
		return finish(context.Cause(a.ctx)) // asynq has filed the task already
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
	if busy.gateClosed() {
		a.observe(Event{Kind: EventHeld, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Waited: busy.Waited, Busy: busy})
	}
	a.observe(Event{Kind: EventBusy, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Waited: busy.Waited, Busy: busy})
	return a.applyPolicy(t, busy)
}

// applyPolicy applies the rule's policy to a task whose lock is busy. When an earlier
// attempt of the same task holds the lock, policies that would end the task (Skip,
// Archive, Fail) retry it instead: they would lose its work. So it is behind a hold, where
// no policy but Allow does anything else. While the gate is closed a task that is retried
// comes back when the gate opens.
func (a *attempt) applyPolicy(t target, busy *BusyError) outcome {
	policy := t.rule.Busy
	if busy.SameTask && policy.kind != policyAllow && policy.kind != policyAfterFailure && policy.kind != policyRetryIn {
		policy = Retry
	}
	delay := retryDelay()
	if busy.gateClosed() {
		delay = busy.gateDelay()
		if busy.neverDrops() && policy.kind != policyAllow && policy.kind != policyPark {
			policy = Retry
		}
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
	case policyPark:
		if busy.parked {
			return a.park(t, busy)
		}
	case policyRetry, policyRetryIn, policyReplace:
	}
	return a.retry(t, busy, delay)
}

// retry hands the task back to asynq. On the last attempt, where asynq would archive
// the task, it waits for the lock in its worker instead.
func (a *attempt) retry(t target, reason error, delay time.Duration) outcome {
	if !a.lastAttempt {
		return a.handBack(t, reason, delay)
	}
	began := time.Now()
	if err := a.waitUntilDeadline(t); err != nil {
		return a.stoppedWaiting(err)
	}
	a.observeAcquired(t, time.Since(began))
	return outcome{}
}

// handBack returns the task to asynq, its attempt not spent. It must not be called on
// the last attempt: asynq would archive the task.
func (a *attempt) handBack(t target, reason error, delay time.Duration) outcome {
	a.observe(Event{Kind: EventRetried, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Delay: delay})
	return finish(&handBack{guard: a.guard, err: reason, delay: delay})
}

// stoppedWaiting ends a task that stopped waiting on its last attempt; err says what it
// waited for.
func (a *attempt) stoppedWaiting(err error) outcome {
	switch {
	case a.ctx.Err() != nil:
		return finish(context.Cause(a.ctx))
	case a.isReplaced():
		return finish(a.revoke(nil))
	case errors.Is(err, ErrClosed), a.guard.closing.Err() != nil:
		return outcome{step: guardClosed}
	}
	return finish(err) // the task's own time is up: asynq archives it with this error
}

// afterClose hands a task back when the Guard is closed. On the last attempt any answer
// would archive it, so afterClose blocks until asynq has taken the task back itself.
func (a *attempt) afterClose() error {
	if a.lastAttempt {
		<-a.ctx.Done()
		return context.Cause(a.ctx)
	}
	if a.guard.closeDone.Load() {
		a.guard.warnOnce("closed", "tasks come although the Guard was closed, and all that have a rule go back to asynq unrun; "+
			"if the server is not shutting down, Close was called too early, such as by a defer in a function that returns before the server stops", "type", a.task.Type(), "task", a.note)
	}
	delay := retryDelay()
	a.observe(Event{Kind: EventRetried, Delay: delay, Err: errTaskAfterClose})
	return &handBack{guard: a.guard, err: errTaskAfterClose, delay: delay}
}

// release gives back all locks, the last one taken first, and then reports it. It runs
// on the way out of a panic too.
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
			h.releaseErr = h.lease.Cooldown(a.ctx, rest)
		} else if a.handlerStart.IsZero() {
			h.releaseErr = inner.GiveBack(a.ctx, h.lease) // a rate counts handlers that started
		} else {
			h.releaseErr = h.lease.Unlock(a.ctx)
		}
	}
	a.forgetArrivals()
	a.reportReleased(leases)
}

package automutex

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"
)

// attempt is one run of the middleware for one task: what asynq says of it, and
// the leases it holds. It belongs to the worker's goroutine.
type attempt struct {
	guard *Guard
	ctx   context.Context //nolint:containedctx // the attempt's own: it lives as long as the call
	task  *asynq.Task

	queue, id string
	note      string // "queue/id", opaque to lock; empty outside a server
	last      bool   // asynq would archive the task for any error
	came      time.Time
	server    *server

	newest    *newest       // nil: no rule with the policy Replace was met
	stays     []*stay       // leases held, in the order taken
	inLine    time.Time     // since when it stands in line; zero: it does not
	began     time.Time     // when the handler began; zero: it has not
	succeeded bool          // the handler returned nil
	returned  chan struct{} // closed when it has returned, or panicked
}

// verdict is why the handler does not run, and what asynq is told. nil: it runs.
type verdict struct {
	answer error // nil: the task is done
	closed bool  // the Guard was closed; answer has no meaning
}

// Middleware wraps a handler so that it runs while the task's locks are held.
// A task that no rule matches passes through untouched. It is an
// asynq.MiddlewareFunc, and belongs before all others: what runs before it runs
// unguarded, also for tasks that find their lock taken.
func (g *Guard) Middleware(next asynq.Handler) asynq.Handler {
	g.wrapped.Store(true)
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		// Every task counts, also one that has no rule: it takes a worker.
		defer g.enterTask(ctx)()
		if g.rules.match(t.Type()) == nil || g.passed(ctx, t) {
			return next.ProcessTask(ctx, t)
		}
		return g.process(ctx, t, next)
	})
}

// process is the path of a task that has rules. What its handler returns is
// passed on untouched.
func (g *Guard) process(ctx context.Context, t *asynq.Task, next asynq.Handler) error {
	a := g.newAttempt(ctx, t)
	if a.id != "" && a.server == nil {
		g.warnOnce("no ServerConfig", "the asynq server runs without Guard.ServerConfig: tasks that are handed back spend an attempt each and come back late; "+
			"make the server with asynq.NewServer(redis, guard.ServerConfig(config))")
	}
	targets, v := a.keys()
	switch {
	case v != nil && v.closed:
		return a.afterClose()
	case v != nil:
		return v.answer
	case len(targets) == 0:
		return next.ProcessTask(context.WithValue(ctx, passedKey{g}, t), t) // no rule's lock is needed, or no key is made under Allow
	}
	err, closed := g.guarded(a, targets, next)
	if closed {
		return a.afterClose()
	}
	return err
}

// guarded takes the task's locks in order, runs the handler and gives the locks
// back. closed: the Guard was closed before the handler could run.
func (g *Guard) guarded(a *attempt, targets []target, next asynq.Handler) (err error, closed bool) {
	if !g.enter() {
		return nil, true
	}
	defer g.leave()
	// Plain defers, no recover: a panic of the handler reaches asynq with the
	// stack it had.
	defer a.release()
	for {
		for _, t := range targets {
			if err := a.take(t); err != nil {
				return err.answer, err.closed
			}
		}
		if v := a.dropClaim(targets); v != nil {
			return v.answer, v.closed
		}
		if a.ctx.Err() != nil {
			// asynq has filed the task already; running it now would be a second
			// run beside its retry.
			return context.Cause(a.ctx), false
		}
		if a.stopped() {
			return a.revoke(nil), false
		}
		early := a.lostEarly()
		if early == nil {
			break
		}
		if v := a.startAgain(early); v != nil {
			return v.answer, v.closed
		}
	}
	a.began = time.Now()
	err = next.ProcessTask(a.bind(), a.task)
	return a.ended(err), false
}

func (g *Guard) newAttempt(ctx context.Context, t *asynq.Task) *attempt {
	a := &attempt{guard: g, ctx: ctx, task: t, server: g.serverOf(ctx), came: time.Now()}
	a.queue, _ = asynq.GetQueueName(ctx)
	var ok bool
	if a.id, ok = asynq.GetTaskID(ctx); ok {
		a.note = taskNote(a.queue, a.id)
		retried, _ := asynq.GetRetryCount(ctx)
		most, _ := asynq.GetMaxRetry(ctx)
		a.last = retried >= most
	}
	return a
}

// keys makes the attempt's keys, or the verdict. Where a rule's Key or Config.Decode
// fails for now, the task comes back; on its last attempt it tries again in its worker,
// until the margin before its deadline.
func (a *attempt) keys() ([]target, *verdict) {
	g := a.guard
	for {
		targets, err := g.rules.targetsWithout(a.ctx, a.task, g.cfg.Prefix, a.runsUnkeyed)
		if err == nil {
			g.keyOutage.over(g.log)
			return targets, nil
		}
		if a.ctx.Err() != nil {
			// A KeyFunc may have failed for that alone: asynq has filed the task
			// already.
			return nil, &verdict{answer: context.Cause(a.ctx)}
		}
		var failed *keyFailedError
		if !errors.As(err, &failed) {
			return nil, a.unkeyed(err)
		}
		g.keyOutage.began(g.log, err)
		a.observe(Event{Kind: EventBackendError, Rule: failed.rule.Name, Err: err})
		delay := g.keyOutage.delay()
		if !a.last {
			return nil, a.handBack(target{rule: failed.rule}, err, delay)
		}
		if !a.pause(delay) {
			return nil, a.gaveUp(err)
		}
	}
}

// unkeyed is the verdict on a task that no key can be made from: archived, never
// run.
func (a *attempt) unkeyed(err error) *verdict {
	a.guard.log.Warn("automutex: no key can be made from the task; it is archived", "type", a.task.Type(), "task", a.note, "error", err)
	a.observe(Event{Kind: EventKeyError, Err: err})
	return &verdict{answer: archive{err}}
}

// runsUnkeyed tells whether the task runs without the lock of a rule that no key
// can be made for, since the rule is there to measure and enforces nothing.
func (a *attempt) runsUnkeyed(rule *compiled, err error) bool {
	if rule.Busy.kind != policyAllow || a.ctx.Err() != nil {
		return false
	}
	a.guard.log.Warn("automutex: no key can be made from the task; its rule has the policy allow, so it runs without the lock",
		"rule", rule.Name, "type", a.task.Type(), "task", a.note, "error", err)
	a.observe(Event{Kind: EventKeyError, Rule: rule.Name, Policy: rule.Busy, Err: err})
	return true
}

// take gets the lock of one target, or the verdict.
func (a *attempt) take(t target) *verdict {
	if a.holds(t.key) {
		return nil
	}
	began := time.Now()
	if _, err := a.acquire(t); err != nil {
		return a.judge(t, err)
	}
	a.guard.outage.over(a.guard.log)
	a.tellAcquired(t, time.Since(began))
	return nil
}

// holds tells whether a Guard.Middleware around this one, of the same Guard,
// holds the key for this task: installed twice by mistake, it must not wait for
// itself.
func (a *attempt) holds(key string) bool {
	for h := held(a.ctx); h != nil; h = h.outer {
		if h.guard == a.guard && h.stay.target.key == key {
			return true
		}
	}
	return false
}

// judge says what becomes of a task that did not get a lock; nil when its
// handler is to run all the same (policy Allow, or the lock was got after all).
func (a *attempt) judge(t target, err error) *verdict {
	var busy *BusyError
	switch {
	case a.ctx.Err() != nil:
		// asynq has filed the task already, and listens no more.
		return &verdict{answer: context.Cause(a.ctx)}
	case a.stopped():
		return a.outrun(t, err)
	case errors.Is(err, ErrClosed):
		return &verdict{closed: true}
	case !errors.As(err, &busy):
		a.backendError(t, err)
		return a.retry(t, err, a.guard.outage.delay())
	}
	a.guard.outage.over(a.guard.log)
	a.observe(Event{Kind: EventBusy, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Waited: busy.Waited, Busy: busy})
	return a.apply(t, busy)
}

// apply is the policy. An earlier attempt of the same task is still this task:
// to skip, archive or fail it for that would lose its work.
func (a *attempt) apply(t target, busy *BusyError) *verdict {
	policy := t.rule.Busy
	if busy.SameTask && policy.kind != policyAllow && policy.kind != policyAfterFailure && policy.kind != policyRetryIn {
		policy = Retry
	}
	switch policy.kind {
	case policySkip:
		a.guard.log.Debug("automutex: skipped: the key is busy",
			"rule", t.rule.Name, "key", t.key, "task", a.note, "holder", busy.HolderTask)
		a.observe(Event{Kind: EventSkipped, Rule: t.rule.Name, Key: t.key, Policy: policy})
		return &verdict{}
	case policyArchive:
		return &verdict{answer: archive{busy}}
	case policyFail:
		return &verdict{answer: busy}
	case policyAllow:
		return nil
	case policyAfterFailure:
		err := policy.failureFunc()(a.ctx, a.task, busy)
		if !returned(err, busy) || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) {
			return &verdict{answer: err}
		}
	case policyRetryIn:
		return a.retry(t, busy, policy.delay)
	case policyPark:
		if busy.parked {
			return a.park(t, busy)
		}
	case policyRetry, policyReplace:
	}
	return a.retry(t, busy, retryDelay())
}

// returned tells whether err is that very BusyError, or wraps it.
func returned(err error, busy *BusyError) bool {
	var got *BusyError
	return errors.As(err, &got) && got == busy
}

// retry hands the task back. With no attempts left asynq would archive it for
// that, so it waits in the worker instead.
func (a *attempt) retry(t target, reason error, delay time.Duration) *verdict {
	if !a.last {
		return a.handBack(t, reason, delay)
	}
	began := time.Now()
	if _, err := a.insist(t); err != nil {
		return a.gaveUp(err)
	}
	a.tellAcquired(t, time.Since(began))
	return nil
}

// handBack returns the task to asynq, its attempt not spent. It must not be
// called on a task's last attempt, which asynq would archive for that.
func (a *attempt) handBack(t target, reason error, delay time.Duration) *verdict {
	a.observe(Event{Kind: EventRetried, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy, Delay: delay})
	return &verdict{answer: &handBack{guard: a.guard, err: reason, delay: delay}}
}

// gaveUp is the verdict on a task that stopped waiting on its last attempt, for
// want of what err says.
func (a *attempt) gaveUp(err error) *verdict {
	switch {
	case a.ctx.Err() != nil:
		return &verdict{answer: context.Cause(a.ctx)}
	case a.stopped():
		return &verdict{answer: a.revoke(nil)}
	case errors.Is(err, ErrClosed), a.guard.closing.Err() != nil:
		return &verdict{closed: true}
	}
	return &verdict{answer: err} // the task's own time is up: asynq archives it, with who was in the way
}

// againAfter is how long a task on its last attempt pauses before it takes its
// locks from the beginning: so a lease that is lost each time, such as one with
// a MaxHold shorter than the wait for the next lock, costs no busy loop.
const againAfter = 100 * time.Millisecond

// startAgain is for a task one of whose leases ended before its handler began:
// it goes back, or, with no attempts left, takes all locks again (nil).
func (a *attempt) startAgain(early *stay) *verdict {
	if !a.last {
		return a.handBack(early.target, early.loss(), retryDelay())
	}
	a.release()
	if a.pause(againAfter) {
		return nil
	}
	return a.gaveUp(early.loss())
}

// afterClose answers for a task when the Guard is closed: back to asynq, unrun.
// With no attempts left an answer would archive it, so there is none until
// asynq has taken the task back itself and ended its context.
func (a *attempt) afterClose() error {
	if a.last {
		<-a.ctx.Done()
		return context.Cause(a.ctx)
	}
	if a.guard.usedUp.Load() {
		a.guard.warnOnce("closed", "tasks come although the Guard was closed, and all that have a rule go back to asynq unrun; "+
			"if the server is not shutting down, Close was called too early, such as by a defer in a function that returns before the server stops", "type", a.task.Type(), "task", a.note)
	}
	delay := retryDelay()
	err := fmt.Errorf("automutex: the Guard was closed: %w", ErrClosed)
	a.observe(Event{Kind: EventRetried, Delay: delay, Err: err})
	return &handBack{guard: a.guard, err: err, delay: delay}
}

// release gives back what is held, last taken first, and observes it when all is
// given back. It runs on the way out of a panic as well.
func (a *attempt) release() {
	if a.returned != nil {
		close(a.returned)
	}
	stays := a.stays
	a.stays = nil
	for _, s := range slices.Backward(stays) {
		for _, stop := range s.unhook {
			stop()
		}
		s.open = s.alone.Err() == nil
		s.held = time.Since(s.taken)
		if rest := s.target.rule.Cooldown - time.Since(a.began); a.succeeded && s.target.rule.Cooldown > 0 {
			s.ended = s.lease.Cooldown(a.ctx, rest)
		} else {
			s.ended = s.lease.Unlock(a.ctx)
		}
	}
	a.leaveArrivals()
	a.tellReleased(stays)
}

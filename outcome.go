package automutex

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/decide"
)

// This file asks package decide what happens to a task, and carries it out.

// wish returns what the policy asks for. AfterFailure asks its function.
func (p Policy) wish() decide.Wish {
	switch p.kind {
	case policySkip:
		return decide.WishDone
	case policyArchive:
		return decide.WishArchive
	case policyFail:
		return decide.WishSpend
	case policyAllow:
		return decide.WishRun
	case policyRetry, policyRetryIn, policyPark, policyReplace, policyAfterFailure:
	}
	return decide.WishBack
}

// mayEnd reports whether the policy may end a task unrun.
func (p Policy) mayEnd() bool {
	return p.kind == policySkip || p.kind == policyArchive || p.kind == policyFail || p.kind == policyAfterFailure
}

// appliesTo reports whether the policy decides about a task that meets the reason. If not, the task comes back as under Retry.
func (p Policy) appliesTo(why decide.Why) bool {
	return why.MayEnd() || !p.mayEnd() && (why.MayRun() || p.kind != policyAllow)
}

// decideStart decides about a task whose handler has not started. It asks the function of
// AfterFailure, once for each obstacle.
func (d *delivery) decideStart(met *obstacle) decide.Decision {
	s := decide.Situation{Over: d.over(), Why: met.why, Last: d.lastAttempt, Parked: met.busy != nil && met.busy.parked}
	if s.Over == decide.GuardClosed && met.why != decide.KeyNever { // else the task ends, for its own reason
		*met = obstacle{why: met.why, err: errTaskAfterClose}
	}
	if rule := met.target.rule; rule != nil {
		s.Wish = rule.Busy.wish()
		fn := rule.Busy.failureFunc()
		switch {
		case fn != nil && met.why.MayEnd() && s.Over == decide.Goes && !met.asked:
			met.asked = true
			met.err = fn(d.ctx, d.task, met.busy) // a panic fails the attempt, as a handler's does
			fallthrough
		case met.asked:
			s.Wish, met.delay = wishOf(met.err)
		case met.why == decide.KeyLater && wantsRetryAfter(met.err) != nil && s.Wish != decide.WishRun:
			s.Wish = decide.WishLater
		}
	}
	stay := time.Duration(0)
	if s.Wish == decide.WishLater {
		stay = max(met.delay, minStay)
	}
	s.TimeUp = d.lastAttempt && !d.hasTimeFor(stay)
	return decide.Start(s)
}

// wishOf returns what the answer of AfterFailure's function asks for.
func wishOf(answer error) (wish decide.Wish, delay time.Duration) {
	r := wantsRetryAfter(answer)
	switch {
	case answer == nil:
		return decide.WishDone, 0
	case errors.Is(answer, asynq.RevokeTask): // as asynq has it, also if SkipRetry is in it
		return decide.WishDrop, 0
	case errors.Is(answer, asynq.SkipRetry):
		return decide.WishArchive, 0
	case r != nil:
		return decide.WishLater, r.delay
	case errors.Is(answer, ErrBusy):
		return decide.WishBack, 0
	}
	return decide.WishSpend, 0
}

// decideEnd decides about a task whose handler has returned err.
func (d *delivery) decideEnd(err error) (decide.Decision, obstacle) {
	met := obstacle{why: decide.Nothing, err: err, ran: true, held: time.Since(d.handlerStart)}
	result := decide.Result{Over: d.over(), Last: d.lastAttempt && !d.isNested()}
	later := wantsRetryAfter(err)
	switch {
	case err == nil:
		result.Said = decide.SaidDone
	case errors.Is(err, asynq.RevokeTask):
		result.Said = decide.SaidDrop
	case errors.Is(err, asynq.SkipRetry):
		result.Said = decide.SaidNever
	case later != nil:
		result.Said = decide.SaidLater
		met.delay = later.delay
		met.target, result.First = d.closedItsGate(met.delay)
		result.TimeUp = result.Last && !d.hasTimeFor(max(met.delay, minStay))
	default:
		result.Said = decide.SaidError
	}
	return decide.End(result), met
}

// isNested reports whether the handler of another Guard's Middleware runs this one. That Guard
// keeps its locks while this one works, so a RetryAfter of the last attempt is left to it.
func (d *delivery) isNested() bool {
	outer := innermostLease(d.ctx)
	return outer != nil && outer.guard != d.guard
}

// carryOut does what was decided: it returns the result of Middleware, or true if the task stays in
// its worker and the next look is due.
func (d *delivery) carryOut(decision decide.Decision, met obstacle) (result error, again bool) {
	t := met.target
	switch decision.What {
	case decide.Run: // without the lock that is busy
		if d.without == nil {
			d.without = map[string]bool{}
		}
		d.without[t.key] = true
		return nil, true
	case decide.Leave:
		if met.ran {
			return met.err, false
		}
		return context.Cause(d.ctx), false
	case decide.Done:
		if met.busy != nil {
			d.guard.log.Debug("automutex: skipped: the key is busy", "rule", t.rule.Name, "key", t.key, "task", d.note, "holder", met.busy.HolderTask)
			d.observe(Event{Kind: EventSkipped, Rule: t.rule.Name, Key: t.key, Policy: t.rule.Busy})
			d.warnSkippedClaim(t)
		}
		return nil, false
	case decide.Archive:
		if errors.Is(met.err, asynq.SkipRetry) && met.ran {
			return met.err, false
		}
		return archive{met.err}, false
	case decide.Spend:
		if !met.ran {
			d.spendUnrun()
		}
		return met.err, false
	case decide.Drop:
		if d.claim.superseded {
			return d.supersededError(), false
		}
		if d.isReplaced() {
			return d.revoke(met), false
		}
		return met.err, false
	case decide.ToLine:
		if met.ran {
			return d.parkFirst(decision, met), false
		}
		return d.park(t, met.busy), false
	case decide.Stay:
		d.stay(decision, met)
		return nil, true
	case decide.Block:
		return errBlocks, false
	case decide.Back:
	}
	return d.comeBack(decision.When, met), false
}

// errBlocks is the result of a task that must block its worker: asynq would archive it for any result.
var errBlocks = errors.New("automutex: the task blocks until asynq requeues it")

// blocked returns result. For errBlocks it blocks first, until asynq requeues the task at the end
// of its ShutdownTimeout and ends the task's context. The task holds nothing meanwhile, and Close
// does not wait for it.
func (d *delivery) blocked(result error) error {
	if result != errBlocks { //nolint:errorlint // it is never wrapped
		return result
	}
	<-d.ctx.Done()
	return context.Cause(d.ctx)
}

// comeBack observes EventRetried and returns the task to asynq, its attempt not spent. Without
// ServerConfig asynq counts the attempt, and there is no event.
func (d *delivery) comeBack(when decide.When, met obstacle) error {
	if errors.Is(met.err, errTaskAfterClose) && d.guard.closeDone.Load() {
		d.guard.warnOnce("closed", "the Guard is closed, but tasks still arrive; tasks with a rule return to asynq and do not run; "+
			"if the server is not shutting down, Close was called too early, for example by a defer in a function that returns before the server stops", "type", d.task.Type(), "task", d.note)
	}
	e := Event{Kind: EventRetried, Key: met.target.key, Policy: met.policy(), Delay: d.delay(when, met)}
	if rule := met.target.rule; rule != nil {
		e.Rule = rule.Name
	}
	if when == decide.AsAsked || met.busy == nil {
		e.Err = met.err
	}
	if met.ran && d.isNested() {
		return met.err // the other Guard decides
	}
	if met.busy != nil { // else Redis may not answer
		d.keepComesBack(e.Delay, false)
	}
	if !d.noServerConfig() {
		d.observe(e)
	}
	if met.ran {
		return met.err // ServerConfig finds the RetryAfter in it
	}
	return &returnedTask{guard: d.guard, err: met.err, delay: e.Delay}
}

// delay returns how long a task stays away.
func (d *delivery) delay(when decide.When, met obstacle) time.Duration {
	switch when {
	case decide.AtGate:
		return met.busy.gateDelay()
	case decide.AtResume:
		return pauseDelay(met.busy.ExpiresIn)
	case decide.AtOutage:
		if met.why == decide.KeyLater {
			return met.target.rule.keyOutage.delay(d.note)
		}
		return d.guard.outage.delay(met.target.key)
	case decide.AsAsked:
		if met.ran {
			return met.delay
		}
		return notBefore(met.delay)
	case decide.Soon, decide.Unsaid, decide.AtTurn:
	}
	if rule := met.target.rule; rule != nil && rule.Busy.kind == policyRetryIn {
		return rule.Busy.delay
	}
	return retryDelay()
}

const (
	// minStay is the least time after which a handler runs again that returned RetryAfter on its
	// last attempt. asynq's own retries come no sooner.
	minStay = time.Second
	// retakeDelay is how long a task on its last attempt sleeps before it takes its locks again.
	// Without this delay, a lease that is lost each time (a MaxHold shorter than the wait for
	// the next lock) would keep a worker spinning.
	retakeDelay = 100 * time.Millisecond
)

// stay has a task on its last attempt wait in its worker until the next look is due. Where
// it waits for a lock, it is that look which waits, in line.
func (d *delivery) stay(decision decide.Decision, met obstacle) {
	switch {
	case decision.When == decide.AsAsked:
		d.cameBack = d.cameBack || met.ran
		d.release(decision)
		d.sleep(max(met.delay, minStay))
	case met.why == decide.LeaseLost:
		d.release(decision)
		d.sleep(retakeDelay)
	case met.why == decide.NoAnswer, met.why == decide.KeyLater:
		d.sleep(d.delay(decide.AtOutage, met))
	default:
		d.warnOneAttempt(met.target.rule)
		d.stayAt, d.stayAsked = met.target.key, met.asked
		if d.taking != "" && d.taking != met.target.key {
			d.sleep(stayLook) // the next look comes to d.taking first, where it does not wait
		}
	}
}

// warnOneAttempt warns once of a rule with the policy Park whose tasks have one attempt and so cannot park.
func (d *delivery) warnOneAttempt(rule *compiledRule) {
	if most, ok := asynq.GetMaxRetry(d.ctx); !ok || most > 0 || rule == nil || rule.Busy.kind != policyPark {
		return
	}
	d.guard.warnOnce("one attempt of "+rule.Name, "a rule has the policy park, but its task was enqueued with MaxRetry 0 or less, and asynq archives a task that returns on its last attempt: "+
		"it waits in its worker instead; enqueue such tasks with automutex.NewClient, or with a MaxRetry of at least 1", "rule", rule.Name, "type", d.task.Type(), "task", d.note)
}

// hasTimeFor reports whether a task that waits for delay in its worker is back at the margin before
// its deadline.
func (d *delivery) hasTimeFor(delay time.Duration) bool {
	deadline, ok := d.ctx.Deadline()
	return !ok || time.Until(deadline)-margin > delay
}

// The errors that Middleware returns to asynq for a task that does not run, besides a plain
// error: returnedTask, archive and revoked.

// returnedTask is the error of Middleware for a task that returns to asynq, its attempt not
// spent. comeBack makes it and observes EventRetried; park and parkFirst make their own,
// and observe EventParked. ServerConfig's functions recognize it by its guard. They leave
// any other error to asynq: it is the handler's, even if it is a BusyError of a lock that
// the handler took itself.
type returnedTask struct {
	guard *Guard
	err   error
	delay time.Duration
}

// Error is valid UTF-8, since asynq stores no other text.
func (r *returnedTask) Error() string { return strings.ToValidUTF8(r.err.Error(), "\uFFFD") }

func (r *returnedTask) Unwrap() error { return r.err }

// archive is the error of Middleware for a task that asynq must archive. Its text is the
// reason, as valid UTF-8 whatever a KeyFunc's error quotes. asynq cannot store other text:
// the task would stay active until asynq's own lease on it ends.
type archive struct{ err error }

func (e archive) Error() string { return strings.ToValidUTF8(e.err.Error(), "\uFFFD") }

func (e archive) Unwrap() []error { return []error{e.err, asynq.SkipRetry} }

// revoked is the error of Middleware for a task that was replaced: asynq drops the task,
// and counts it neither as done nor as failed. ServerConfig's functions recognize it by its
// guard.
type revoked struct {
	guard     *Guard
	rule, key string
	err       error // the handler's; nil when the handler has not run
}

func (r *revoked) Error() string {
	text := fmt.Sprintf("automutex: rule %q: key %q: replaced by a newer task", r.rule, r.key)
	if r.err != nil && !errors.Is(r.err, ErrReplaced) {
		text += ": " + r.err.Error()
	}
	return text
}

func (r *revoked) Unwrap() []error {
	if r.err == nil {
		return []error{ErrReplaced, asynq.RevokeTask}
	}
	return []error{ErrReplaced, asynq.RevokeTask, r.err}
}

// findReturned returns the returnedTask of this Guard in err, or nil.
func (g *Guard) findReturned(err error) *returnedTask {
	var r *returnedTask
	for errors.As(err, &r) {
		if r.guard == g {
			return r
		}
		err = r.err
	}
	return nil
}

// isRevoked reports whether err wraps a revoked of this Guard.
func (g *Guard) isRevoked(err error) bool {
	var r *revoked
	for errors.As(err, &r) {
		if r.guard == g {
			return true
		}
		err = r.err
	}
	return false
}

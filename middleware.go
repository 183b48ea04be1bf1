package automutex

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// This file is the path of one task, from top to bottom. Indented: called by the row above that is less indented.
//
//	Middleware            is there a rule for the task's type?
//	  run                 the loop: look, decide, act
//	    look              what keeps the handler from starting?
//	      checkLate       has its time to start passed?                 late.go
//	      makeKeys        which locks does the task need?               match.go
//	      take            get one lock
//	        acquire       wait as the rule says                         wait.go, order.go, replace.go
//	      beginInClaim    note the start in the claim of package unique claim.go
//	    decideStart       what happens to the task?                     internal/decide
//	    decideEnd         the same, after its handler has returned      internal/decide
//	    carryOut          act: return an error to asynq, or stay
//	    release           end all leases and report it                  lease.go
//
// internal/decide alone decides, by its testdata/decisions.txt. The rest finds facts, or carries decisions out.

// Middleware wraps a handler so that it runs while the task's locks are held; under [Allow] it also runs without a lock
// that is busy. A task that no rule matches runs without locks. Middleware is an [asynq.MiddlewareFunc]. Install it
// first: a middleware that is installed before it runs outside of the locks, and also for tasks whose key is busy.
func (g *Guard) Middleware(next asynq.Handler) asynq.Handler {
	g.served.AskMux(next, g.rules.byTask.Patterns()) // under mux.Use this is called for each task, and next is no mux
	if !g.middlewareUsed.Swap(true) {
		go g.announce()
	}
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		g.noteType(t.Type())
		defer g.enterTask(ctx).leave() // each task keeps a worker busy, with a rule or without
		return orBlock(ctx, g.process(ctx, t, next))
	})
}

// process runs a task, counted so that Close waits for it. After Close one with a rule returns to asynq.
func (g *Guard) process(ctx context.Context, t *asynq.Task, next asynq.Handler) error {
	if g.life.Enter() == nil {
		defer g.life.Done()
	}
	outer := running(ctx)
	switch {
	case outer != nil && outer.guard == g && g.isSame(outer.task, t):
		return next.ProcessTask(ctx, t) // a Middleware that is installed twice has nothing left to do
	case g.rules.match(t.Type()) == nil && g.claimOf(ctx, t).key == "": // a claim is noted on the way of tasks with rules
		return g.runWithoutRule(ctx, t, next)
	case outer != nil && outer.guard != g && (outer.task == t || outer.guard.rules.match(t.Type()) != nil):
		return g.archive(fmt.Errorf("automutex: the Middleware of two Guards (prefixes %q and %q) runs this task, and "+
			"both have a rule for its type %q, or its claim: give one Guard all rules of a type, and each a Prefix",
			outer.guard.cfg.Prefix, g.cfg.Prefix, t.Type()))
	}
	d := g.newDelivery(ctx, t)
	d.warnNoServerConfig()
	return d.run(next)
}

// isSame reports whether t is the task of an outer Middleware, maybe unwrapped by Config.Decode.
func (g *Guard) isSame(outer, t *asynq.Task) bool {
	if outer == t || g.cfg.Decode == nil || outer.Type() != t.Type() {
		return outer == t
	}
	payload, err := g.cfg.Decode(outer)
	return err == nil && bytes.Equal(payload, t.Payload())
}

// noServerConfig reports whether asynq takes a task that returns for one that has failed.
func (d *delivery) noServerConfig() bool { return d.id != "" && d.server == nil }

func (d *delivery) warnNoServerConfig() {
	if d.noServerConfig() {
		d.guard.warnOnce("no ServerConfig", "the asynq server was made without Guard.ServerConfig, or BaseContext was set "+
			"on the asynq.Config that it returned: each time a task returns to asynq, it may spend an attempt; "+
			"make the server with asynq.NewServer(redis, guard.ServerConfig(config)), and set BaseContext in config",
			d.about(target{})...)
	}
}

// runWithoutRule runs a task that no rule matches, after Close too. On its last attempt a RetryAfter runs it again
// here.
func (g *Guard) runWithoutRule(ctx context.Context, t *asynq.Task, next asynq.Handler) error {
	if m, ok := ctx.Value(serverKey{g}).(*taskMark); ok {
		m.server.workers.Came("", -1)
		m.noteWorks()
	}
	for {
		met := obstacle{why: decide.Nothing, err: next.ProcessTask(ctx, t), ran: true}
		if wantsRetryAfter(met.err) == nil {
			return met.err
		}
		d := g.newDelivery(ctx, t)
		d.warnNoServerConfig()
		for {
			if result, again := d.carryOut(d.decideEnd(&met), met); !again {
				return result
			}
			if d.over() == decide.Goes {
				break // else its wait was cut short
			}
		}
	}
}

// delivery is one call of Middleware. It is not an attempt: a task that returns unspent comes again in the same one.
// Only the worker's goroutine writes the fields. Others (watchers, requests to stop) read the facts, and replacing,
// which is set before they start.
type delivery struct {
	facts
	holding

	targets   []target  // nil until the keys are made
	only      [1]target // room for them
	met       obstacle  // what the look before has met; Nothing at first
	staying   string    // the key of a lock for which it waits in line where others return, on its last attempt
	line      standing
	came      bool
	cameTo    map[string]time.Time // when it first met what kept it from a lock that is not its first
	replacing *replaceState
	claim     taskClaim
	late      lateness
}

// facts are known before anything is asked of Redis, and never change.
type facts struct {
	guard     *Guard
	ctx       context.Context // the delivery's own: it lives as long as the call
	task      *asynq.Task
	queue, id string
	note      string // names the task in its locks, see internal/tasknote; empty outside a server
	last      bool   // asynq would archive the task for any error but asynq.RevokeTask
	retried   int
	place     place
	server    *server // nil: the server was made without ServerConfig
	mark      *taskMark
	arrived   time.Time
	outer     *facts // those of the task within whose handler this one runs; nil: it is asynq's own
}

func (f *facts) whole() context.Context { return context.WithoutCancel(f.ctx) }

func (g *Guard) newDelivery(ctx context.Context, t *asynq.Task) *delivery {
	d := &delivery{facts: facts{guard: g, ctx: ctx, task: t, arrived: time.Now(), outer: running(ctx)}}
	if m, _ := ctx.Value(serverKey{g}).(*taskMark); m != nil {
		d.server, d.mark = m.server, m
	}
	d.queue, _ = asynq.GetQueueName(ctx)
	var ok bool
	if d.id, ok = asynq.GetTaskID(ctx); ok {
		d.note = tasknote.Of(d.queue, d.id)
		d.claim = g.claimOf(ctx, t)
		d.retried, _ = asynq.GetRetryCount(ctx)
		maxRetry, _ := asynq.GetMaxRetry(ctx)
		d.last = d.retried >= maxRetry
		if d.outer == nil { // else a stamp among its headers is the outer task's, whose ID it has
			d.place.Stamp, ok = stamp.Of(t.Headers(), d.note)
			d.place.reserved = ok && maxRetry == d.place.Most+1
		}
	}
	return d
}

// obstacle is what keeps a handler from starting, or what a handler has returned.
type obstacle struct {
	why    decide.Why
	target target // whose key or lock it is; without a rule if it concerns no single rule
	err    error  // the task's last error
	busy   *BusyError
	later  bool // the lock is not the first that the task takes
	told   bool
	asked  bool          // AfterFailure was; err is its answer
	delay  time.Duration // of the RetryAfter in err
	ran    bool
	held   time.Duration // and ran for so long
}

// nothing keeps it.
var nothing = obstacle{why: decide.Nothing}

func (o obstacle) stops() bool { return o.why != decide.Nothing }

// run looks, decides and acts until the task ends. One that stays in its worker, or runs without a lock, goes round
// again.
func (d *delivery) run(next asynq.Handler) error {
	// No recover: a panic of the handler reaches asynq with its stack.
	ends, met := decide.End(decide.Result{Said: decide.Panicked}), nothing
	defer func() {
		d.release(ends, met.err)
		d.endUntaken(ends)
		d.endClaim(ends)
		d.endStart(ends, met)
	}()
	for {
		if met = d.look(met); met.isSame(d.met) && d.met.asked {
			met.asked, met.err = true, d.met.err
		}
		decision := d.leaveLate(d.decideStart(&met), &met)
		if decision.What == decide.Run && !met.stops() {
			d.noteStart()
			d.started, d.line = time.Now(), standing{} // under Allow it may have waited for a lock in vain
			met.err, met.ran = d.attempt(next), true
			met.held = time.Since(d.started)
			decision = d.decideEnd(&met)
		}
		result, again := d.carryOut(decision, met)
		if !again {
			d.recordWait(decision)
			ends = decision
			return result
		}
		if decision.What == decide.Run { // it goes on without that lock, also with no time left to wait
			met = nothing
		}
		if d.met = met; decision.When == decide.AsAsked { // after that time it comes anew
			d.met = obstacle{}
		}
	}
}

func (d *delivery) over() decide.Over {
	switch {
	case d.ctx.Err() != nil:
		return decide.ContextEnded
	case d.isReplaced(), d.claim.superseded:
		return decide.Replaced
	case d.guard.life.Closing.Err() != nil:
		return decide.GuardClosed
	}
	return decide.Goes
}

// look makes the keys and takes the locks, in the order of targets: the same for all tasks, so that no two wait for
// each other. It returns the first obstacle, or decide.Nothing if the handler may start; what the last look met, if
// nothing new can be found.
func (d *delivery) look(last obstacle) obstacle {
	if d.over() != decide.Goes || last.stops() && !d.hasTimeFor(0) {
		return last
	}
	if met := d.makeKeys(); met.stops() {
		return met
	}
	if met := d.report(d.checkLate(nothing)); met.stops() {
		return met
	}
	if met := d.arrive(); met.stops() || d.isReplaced() {
		return met
	}
	if met := d.checkPaused(); met.stops() {
		return met
	}
	if met := d.takeAll(); met.stops() {
		return met
	}
	// Note the start in the claim only when the handler would start now. If a lease is lost meanwhile, the note
	// stays: the next task for the key may be enqueued before this one runs, and both run.
	if met := d.lostBeforeStart(); met.stops() || d.over() != decide.Goes ||
		d.claim.key == "" && d.late.by.IsZero() {
		return met
	}
	if met := d.beginInClaim(); met.stops() {
		return met
	}
	if met := d.report(d.checkLate(nothing)); met.stops() {
		return met
	}
	return d.lostBeforeStart()
}

// takeAll takes all locks. If an earlier one has become unusable, it gives all back and asks again.
func (d *delivery) takeAll() obstacle {
	for {
		if met := d.lookAhead(); met.stops() {
			return met
		}
		for _, t := range d.targets {
			if met := d.take(t); met.stops() {
				return met
			}
		}
		shut, met := d.shutSince()
		if !shut {
			return met
		}
		if d.release(decide.Decision{What: decide.GiveBack}, nil); d.over() != decide.Goes {
			return met
		}
	}
}

// makeKeys finds the locks that the task needs. Under Allow it runs without one that has no key.
func (d *delivery) makeKeys() obstacle {
	met := nothing
	if d.targets != nil {
		return met
	}
	rules := d.guard.rules.match(d.task.Type())
	targets := d.guard.rules.targetsNeeded(d.ctx, d.only[:0], d.task, d.guard.cfg.Prefix, rules,
		func(rule *compiledRule, err error) {
			o := obstacle{why: whyNoKey(err), target: target{rule: rule}, err: err}
			switch {
			case rule.Busy.row().busy == decide.WishRun && d.ctx.Err() == nil:
				d.guard.log.Warn("automutex: no key can be made from the task; its rule has the policy allow, so it runs without "+
					"the lock", d.about(o.target, "error", err)...)
				d.observe(o.target, Event{Kind: EventKeyError, Policy: rule.Busy, Err: err})
			case o.why < met.why: // of several rules, the strongest reason counts
				met = o
			}
		})
	if met.stops() {
		return d.report(met)
	}
	d.targets = targets
	d.boundStart(rules)
	return met
}

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

func (d *delivery) take(t target) obstacle {
	if d.without[t.key] || d.holds(t.key) {
		return nothing
	}
	if d.line.key != t.key {
		d.line = standing{key: t.key, came: time.Now()}
	}
	later := len(d.leases) > 0
	if err := d.acquire(t); err != nil {
		if met := d.lostBeforeStart(); met.stops() {
			return met // which has ended the wait
		}
		by, met := d.late.by, d.refused(t, err)
		if met.later = later; later {
			d.comeTo(t, d.line.came)
		}
		if met = d.checkLate(met); !by.Equal(d.late.by) {
			return d.take(t) // it has begun before: that time has ended its wait for nothing
		}
		return d.report(met)
	}
	d.guard.outage.Answered(d.guard.log)
	d.observeAcquired(t)
	d.line = standing{}
	return nothing
}

// refused returns what err, of acquire, means.
func (d *delivery) refused(t target, err error) obstacle {
	met := obstacle{why: decide.NoAnswer, target: t, err: err}
	switch {
	case errors.Is(err, engine.ErrOrderDone):
		return obstacle{why: decide.Finished, target: t}
	case errors.Is(err, errSpent):
		return obstacle{why: decide.KeyNever, target: t, err: err}
	case !errors.As(err, &met.busy):
		return met // while the delivery is over, the reason does not count
	}
	switch reason := met.busy.Reason; {
	case reason == lock.ReasonPaused:
		met.why = decide.Paused
	case met.busy.SameTask:
		met.why = decide.Own
	case reason == lock.ReasonClosed:
		met.why = decide.Closed
	case reason == lock.ReasonCooldown:
		met.why = decide.Cooldown
	case reason == lock.ReasonRate:
		met.why = decide.Rate
	default:
		met.why = decide.Held
	}
	if met.why != decide.Paused { // which may be known from before an outage
		d.guard.outage.Answered(d.guard.log)
	}
	return met
}

func (d *delivery) backendError(t target, err error) {
	d.guard.outage.Failed(d.guard.log, "automutex: Redis cannot be asked for locks; tasks with rules return to asynq, "+
		"their attempts not spent", "key", t.key, "error", err)
	d.observe(t, Event{Kind: EventBackendError, Err: err})
}

// report observes and logs what the task has met, unless the delivery is over, it was reported, or the task waits for
// it.
func (d *delivery) report(met obstacle) obstacle {
	t := met.target
	if over := d.over(); over == decide.ContextEnded || over == decide.GuardClosed && met.why != decide.KeyNever {
		return met
	}
	switch {
	case met.why == decide.Late:
		d.observe(t, Event{Kind: EventLate, Policy: met.policy(), Busy: met.busy})
	case met.busy != nil && d.waitsFor(met):
	case met.busy != nil && met.isSame(d.met) && d.met.told:
		met.told = true
	case met.busy != nil:
		met.told = true
		d.observe(t, Event{Kind: EventBusy, Policy: met.policy(), Waited: met.busy.Waited, Busy: met.busy})
	case d.isReplaced(), errors.Is(met.err, errSpent):
	case met.why == decide.NoAnswer:
		d.backendError(t, met.err)
	case met.why == decide.KeyLater:
		var failed *temporaryKeyError
		if errors.As(met.err, &failed) {
			d.guard.warnOnce(failed.function+" "+t.rule.Name+time.Now().Format(" 2006-01-02 15"), // each hour
				"a function fails with an error that is no *KeyError; its tasks return to asynq, their attempts not spent",
				d.about(t, "function", failed.function, "error", met.err)...)
		}
		d.observe(t, Event{Kind: EventBackendError, Err: met.err})
	case met.why == decide.KeyNever, met.why == decide.KeyDrop:
		end := "it is archived"
		if met.why == decide.KeyDrop {
			end = "it is dropped, as the error wraps asynq.RevokeTask"
		}
		d.guard.log.Warn("automutex: no key or no limit can be made from the task; "+end,
			d.about(target{}, "error", met.err)...)
		d.observe(target{}, Event{Kind: EventKeyError, Err: met.err})
	}
	return met
}

func (o obstacle) isSame(other obstacle) bool {
	return o.why == other.why && o.target.key == other.target.key
}

// policy returns the policy that applies: Retry if the rule's would end or run the task, but not for this reason.
func (o obstacle) policy() Policy {
	rule := o.target.rule
	switch {
	case rule == nil:
		return Retry
	case o.why == decide.Late:
		return rule.Late
	case o.why.ForPolicy(), rule.Busy.row().returns(), rule.Busy == Allow && o.why == decide.Closed:
		return rule.Busy
	}
	return Retry
}

// decideStart decides about a task whose handler has not started. It asks the function of AfterFailure, once for each
// obstacle. Its answer, or a RetryAfter of a function that makes keys, counts as the handler's, unless it is that the
// key is busy.
func (d *delivery) decideStart(met *obstacle) decide.Decision {
	s := decide.Situation{Over: d.over(), Why: met.why, Last: d.last, Parked: met.busy != nil && met.busy.parked,
		TimeUp: d.last && !d.hasTimeFor(0), Waits: d.waitsFor(*met)}
	if s.Over == decide.GuardClosed && met.why != decide.KeyNever { // else the task ends, for its own reason
		*met = obstacle{why: met.why, err: fmt.Errorf("automutex: the Guard was closed: %w", ErrClosed)}
	}
	rule := met.target.rule
	if rule == nil {
		return decide.Start(s)
	}
	policy, applies := rule.Busy, met.why.ForPolicy()
	if met.why == decide.Late {
		policy, applies = rule.Late, true
	}
	s.Wish = policy.row().busy
	if s.Over != decide.Goes || s.Waits {
		return decide.Start(s)
	}
	if fn := policy.after; fn != nil && applies && !met.asked {
		met.asked = true
		met.err = (*fn)(d.ctx, d.task, met.busy) // a panic fails the attempt, as a handler's does
	}
	answer, _ := said(met.err)
	if met.asked && (answer != decide.SaidError || !errors.Is(met.err, ErrBusy)) || met.why == decide.KeyLater &&
		answer == decide.SaidLater {
		return d.decideEnd(met)
	}
	return decide.Start(s)
}

func said(err error) (decide.Said, time.Duration) {
	later := wantsRetryAfter(err)
	switch {
	case err == nil:
		return decide.SaidDone, 0
	case errors.Is(err, asynq.RevokeTask): // as asynq has it, also if SkipRetry is in it
		return decide.SaidDrop, 0
	case errors.Is(err, asynq.SkipRetry):
		return decide.SaidNever, 0
	case later != nil:
		return decide.SaidLater, later.delay
	}
	return decide.SaidError, 0
}

// decideEnd decides by what the handler, or a function in its place, has returned. A task within a task leaves the
// wait of a RetryAfter to the outer one, which gives its locks back for it.
func (d *delivery) decideEnd(met *obstacle) decide.Decision {
	r := decide.Result{Over: d.over(), Last: d.last && d.outer == nil}
	r.Said, met.delay = said(met.err)
	r.TimeUp = r.Last && !d.hasTimeFor(max(met.delay, minStay))
	return decide.End(r)
}

// carryOut returns the result of Middleware, or true if the task stays in its worker and the next look is due.
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
			d.guard.log.Debug("automutex: skipped", d.about(t, "reason", met.busy.Reason, "holder", met.busy.HolderTask)...)
			d.observe(t, Event{Kind: EventSkipped, Policy: met.policy()})
		}
		return nil, false
	case decide.Archive:
		if errors.Is(met.err, asynq.SkipRetry) && met.ran {
			return met.err, false
		}
		return d.guard.archive(met.err), false
	case decide.Spend:
		return met.err, false
	case decide.Drop:
		if d.claim.superseded || d.isReplaced() {
			return d.revokeReplaced(met), false
		}
		return met.err, false
	case decide.ToLine:
		return d.park(t, met.busy), false
	case decide.Stay, decide.GiveBack:
		d.stay(decision, met)
		return nil, true
	case decide.Block:
		return errBlocks, false
	case decide.Back:
	}
	return d.comeBack(decision.When, met), false
}

// errBlocks is the result of a task that asynq would archive for any result.
var errBlocks = errors.New("automutex: the task blocks until asynq requeues it")

// orBlock returns result. For errBlocks it first blocks until asynq, at the end of its ShutdownTimeout, requeues the
// task and ends its context. The task holds nothing meanwhile, and Close does not wait for it.
func orBlock(ctx context.Context, result error) error {
	if result != errBlocks { //nolint:errorlint // it is never wrapped
		return result
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// comeBack returns the task to asynq, unspent.
func (d *delivery) comeBack(when decide.When, met obstacle) error {
	e := Event{Kind: EventRetried, Policy: met.policy(), Delay: d.delay(when, met)}
	if when == decide.AsAsked || met.busy == nil {
		e.Err = met.err
	}
	if !d.noServerConfig() {
		d.observe(met.target, e)
	}
	if met.ran {
		return met.err // ServerConfig finds the RetryAfter in it
	}
	return d.comeBackIn(e.Delay, met.err)
}

func (d *delivery) delay(when decide.When, met obstacle) time.Duration {
	left := met.delay
	switch rule := met.target.rule; {
	case when == decide.AtGate, when == decide.AtResume:
		left = met.busy.ExpiresIn
	case when == decide.AtOutage:
		left = d.guard.outage.Lasts()
	case when == decide.AsAsked && met.ran: // ServerConfig rounds it
		return left
	case when == decide.Soon && rule != nil && rule.Busy.delay > 0:
		return d.inTime(rule.Busy.delay)
	}
	return d.inTime(decide.Delay(when, left))
}

// minStay is the least time after which a task in its worker tries again after a RetryAfter or a lost lease: asynq's
// own retries come no sooner. It is the longest for a gate, a pause or its own earlier attempt, which may end early.
const minStay = time.Second

// stay has a task wait in its worker for the next look. Where others hold the lock that look waits, in line.
func (d *delivery) stay(decision decide.Decision, met obstacle) {
	if decision.What == decide.GiveBack {
		d.release(decision, met.err)
	}
	d.staying = ""
	switch {
	case decision.When == decide.AsAsked, met.why == decide.LeaseLost:
		d.sleep(max(met.delay, minStay), nil)
	case met.why == decide.NoAnswer, met.why == decide.KeyLater:
		d.sleep(d.delay(decide.AtOutage, met), nil)
	case met.why == decide.Held:
		d.staying = met.target.key
	default:
		d.stayOut(met)
	}
}

func (d *delivery) hasTimeFor(delay time.Duration) bool {
	deadline, ok := d.ctx.Deadline()
	return !ok || time.Until(deadline)-margin > delay
}

// verdict is the error of Middleware for a task that does not run. ServerConfig's functions recognize their own by
// the guard, and leave any other error to asynq: it is the handler's, even a BusyError of a lock that it took itself.
type verdict struct {
	guard *Guard
	kind  verdictKind
	err   error
	delay time.Duration // of goesBack
}

type verdictKind uint8

const (
	goesBack verdictKind = iota // it returns to asynq, its attempt not spent
	archived                    // asynq archives it
	revoked                     // asynq drops it, and counts it neither as done nor as failed
)

// Error is valid UTF-8. asynq cannot store other text: the task would stay active until asynq's lease on it ends.
func (v *verdict) Error() string { return strings.ToValidUTF8(v.err.Error(), "\uFFFD") }

func (v *verdict) Unwrap() []error {
	switch v.kind {
	case archived:
		return []error{v.err, asynq.SkipRetry}
	case revoked:
		return []error{v.err, asynq.RevokeTask}
	case goesBack:
	}
	return []error{v.err}
}

func (d *delivery) comeBackIn(delay time.Duration, err error) error {
	if d.server != nil {
		d.server.noteReturned()
	}
	return &verdict{d.guard, goesBack, err, delay}
}

func (g *Guard) archive(err error) error { return &verdict{guard: g, kind: archived, err: err} }

func (g *Guard) verdictIn(err error) *verdict {
	var v *verdict
	for errors.As(err, &v) {
		if v.guard == g {
			return v
		}
		err = v.err
	}
	return nil
}

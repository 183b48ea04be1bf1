package automutex

import (
	"bytes"
	"cmp"
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

// This file is the path of one task, from top to bottom; docs/architecture.md explains it. The loop of run:
//
//	look (makeKeys, lookAhead, take), decideStart, attempt, decideEnd, carryOut; at last release
//
// internal/decide alone decides, by its testdata/decisions.txt. The rest finds facts, or carries decisions out. What
// only some tasks have beside their locks is a step.

// Middleware wraps a handler so that it runs while the task's locks are held; under [Allow] it also runs without a lock
// that is busy. A task that no rule matches runs without locks. Middleware is an [asynq.MiddlewareFunc]. Install it
// first: a middleware that is installed before it runs outside of the locks, and also for tasks whose key is busy.
func (g *Guard) Middleware(next asynq.Handler) asynq.Handler {
	g.served.AskMux(next, g.rules.byTask.Patterns()) // under mux.Use this is called for each task, and next is no mux
	if !g.middlewareUsed.Swap(true) {
		go g.announce()
	}
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		g.sawType(t.Type())
		defer g.enterTask(ctx).leave() // each task keeps a worker busy, with a rule or without
		result := g.process(ctx, t, next)
		if result == errBlocks { //nolint:errorlint // it is never wrapped
			<-ctx.Done() // the task holds nothing meanwhile, and Close does not wait for it
			result = context.Cause(ctx)
		}
		return result
	})
}

// process runs a task, counted so that Close waits for it. After Close one with a rule returns to asynq.
func (g *Guard) process(ctx context.Context, t *asynq.Task, next asynq.Handler) error {
	if g.life.Enter() == nil {
		defer g.life.Done()
	}
	outer := running(ctx)
	if outer != nil && outer.guard == g && g.isSame(outer.task, t) {
		return next.ProcessTask(ctx, t) // a Middleware that is installed twice has nothing left to do
	}
	d := g.newDelivery(ctx, t)
	switch {
	case d.rules == nil && d.steps == nil:
		return g.runWithoutRule(d, next)
	case outer != nil && outer.guard != g && (outer.task == t || outer.guard.rules.match(t.Type()) != nil):
		return g.refuseSecond(outer.guard, t.Type())
	}
	d.warnNoServerConfig()
	return d.run(next)
}

func (g *Guard) refuseSecond(outer *Guard, taskType string) error {
	text := fmt.Sprintf("the Middleware of two Guards (prefixes %q and %q) runs this task, and "+
		"both have a rule for its type %q, or its claim: give one Guard all rules of a type, and each a Prefix",
		outer.cfg.Prefix, g.cfg.Prefix, taskType)
	g.warnOnce("two Guards", text)
	return g.archive(errors.New("automutex: " + text))
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
func (f *facts) noServerConfig() bool { return f.id != "" && f.server == nil }

func (f *facts) warnNoServerConfig() {
	if f.noServerConfig() {
		f.guard.warnOnce("no ServerConfig", "the asynq server was made without Guard.ServerConfig, or BaseContext was set "+
			"on the asynq.Config that it returned: each time a task returns to asynq, it may spend an attempt; "+
			"make the server with asynq.NewServer(redis, guard.ServerConfig(config)), and set BaseContext in config",
			f.about(nil)...)
	}
}

// runWithoutRule runs a task that no rule matches, after Close too. On its last attempt a RetryAfter runs it again
// here.
func (g *Guard) runWithoutRule(d *delivery, next asynq.Handler) error {
	if d.worker != nil && d.outer == nil {
		d.server.workers.Came("", -1)
		d.worker.worksNow()
		defer context.AfterFunc(d.ctx, d.worker.leave)() // asynq gives it to another task then
	}
	for {
		err := next.ProcessTask(d.ctx, d.task)
		if wantsRetryAfter(err) == nil {
			return err
		}
		met := &obstacle{why: decide.Nothing, err: err, ran: true}
		d.warnNoServerConfig()
		for {
			if result, again := d.carryOut(d.decideEnd(met), met); !again {
				return result
			}
			if d.over() == decide.Goes {
				break // else its wait was cut short
			}
		}
	}
}

// delivery is one call of Middleware. It is not an attempt: a task that returns unspent comes again in the same one.
// Only the worker's goroutine writes the fields. Others (watchers, requests to stop) read the facts.
type delivery struct {
	facts
	holding

	steps   []step         // those that the task has
	targets []target       // nil until the keys are made
	only    [1]target      // room for them
	met     *obstacle      // what the look before has met; nil at first
	result  obstacle       // what the handler has returned last
	wish    engine.Request // see request
	staying string         // the key of a lock for which it waits in line where others return, on its last attempt
	line    standing
	came    bool
	cameTo  firstCame
	late    lateness
}

// facts are known before anything is asked of Redis, and never change.
type facts struct {
	guard     *Guard
	ctx       context.Context // the delivery's own: it lives as long as the call
	task      *asynq.Task
	queue, id string
	rules     []*compiledRule // that match the task
	note      string          // names the task in its locks, see internal/tasknote; empty outside a server
	retried   int
	last      bool        // asynq would archive the task for any error but asynq.RevokeTask
	stamp     stamp.Stamp // what the header of a Client says
	reserved  bool        // asynq was told one attempt more than the caller asked for
	// stop ends, with cause *wanted, when another task first asks this one to stop; nil: none can. It has no parent, so
	// it need not be cancelled.
	stop      context.Context
	askToStop context.CancelCauseFunc
	server    *server // nil: the server was made without ServerConfig
	worker    *worker
	arrived   time.Time
	outer     *facts // those of the task within whose handler this one runs; nil: it is asynq's own
}

func (f *facts) whole() context.Context { return context.WithoutCancel(f.ctx) }

func (g *Guard) newDelivery(ctx context.Context, t *asynq.Task) *delivery {
	d := &delivery{facts: g.factsOf(ctx, t)}
	d.late.facts = &d.facts
	for _, newStep := range steps {
		if s := newStep(&d.facts); s != nil {
			d.steps = append(d.steps, s)
		}
	}
	return d
}

func (g *Guard) factsOf(ctx context.Context, t *asynq.Task) facts {
	f := facts{guard: g, ctx: ctx, task: t, rules: g.rules.match(t.Type()), arrived: time.Now(), outer: running(ctx)}
	if w, _ := ctx.Value(serverKey{g}).(*worker); w != nil {
		f.server, f.worker = w.server, w
	}
	f.queue, _ = asynq.GetQueueName(ctx)
	var ok bool
	if f.id, ok = asynq.GetTaskID(ctx); ok {
		f.note = tasknote.Of(f.queue, f.id)
		f.retried, _ = asynq.GetRetryCount(ctx)
		maxRetry, _ := asynq.GetMaxRetry(ctx)
		f.last = f.retried >= maxRetry
		if f.outer == nil { // else a stamp among its headers is the outer task's, whose ID it has
			f.stamp, ok = stamp.Of(t.Headers(), f.note)
			f.reserved = ok && maxRetry == f.stamp.Told()
		}
	}
	return f
}

// steps are what some tasks have beside their locks. Each function returns nil for a task without.
var steps = [...]func(*facts) step{
	newOrdering,
	newReplacement,
	newClaim,
}

// step sees the facts of its delivery, and has a state of its own. It knows neither the delivery nor other steps.
type step interface {
	// request adds to what the engine is asked for the lock of t.
	request(r *engine.Request, t *target)
	// look returns the obstacle that it sees at that moment. t is nil if the moment is no lock's. err is why the
	// task did not get the lock, else nil.
	look(at moment, t *target, err error) *obstacle
	// end is called before the release of each lease, and once more when the task has ended.
	end(e ending)
}

// moment is when the steps look: the task
type moment uint8

const (
	comes  moment = iota // comes to a lock that it does not hold
	tries                // finds it busy, and is about to wait: where its policy tries first
	stands               // begins to wait in line
	stood                // waits there no more
	aside                // begins to wait in its worker, in no line
	fails                // does not get the lock
	takes                // gets the lock; an obstacle gives it back
	leaves               // gives up its place in line: it is late
	ready                // has all its locks
	begins               // begins its handler
)

// ending is how a task ends, or its lease.
type ending struct {
	decision decide.Decision
	met      *obstacle
	began    bool       // the handler had begun with the lease
	lease    *heldLease // nil: the task has ended, and holds none
	targets  []target   // of the task
}

func (d *delivery) at(m moment, t *target, err error) *obstacle {
	for _, s := range d.steps {
		if met := s.look(m, t, err); met.stops() {
			return met
		}
	}
	return nothing
}

// mayStop lets a step ask the task to end, for another one.
func (f *facts) mayStop() {
	if f.stop == nil {
		f.stop, f.askToStop = context.WithCancelCause(context.Background())
	}
}

func (f *facts) isToStop() bool { return f.stop != nil && f.stop.Err() != nil }

// wanted is a lock that a newer task wants, or one that a producer has put in this one's place.
type wanted struct{ lock *target }

func (*wanted) Error() string { return ErrReplaced.Error() }

// obstacle is what keeps a handler from starting, or what a handler has returned.
type obstacle struct {
	why    decide.Why
	target *target // whose key or lock it is; nil: it concerns no single rule
	err    error   // the task's last error
	busy   *BusyError
	later  bool // the lock is not the first that the task takes
	told   bool
	asked  bool          // AfterFailure was; err is its answer
	delay  time.Duration // of the RetryAfter in err
	ran    bool
	held   time.Duration // and ran for so long
}

// nothing keeps it.
var nothing = &obstacle{why: decide.Nothing}

func (o *obstacle) stops() bool { return o.why != decide.Nothing }

// run looks, decides and acts until the task ends. One that stays in its worker, or runs without a lock, goes round
// again.
func (d *delivery) run(next asynq.Handler) error {
	// No recover: a panic of the handler reaches asynq with its stack.
	ends, met := decide.End(decide.Result{Said: decide.Panicked}), nothing
	defer func() {
		d.release(ends, met)
		for _, s := range d.steps {
			s.end(ending{decision: ends, met: met, targets: d.targets})
		}
		d.late.end(ends, met)
	}()
	for {
		if met = d.look(met); met.isSame(d.met) && d.met.asked {
			met.asked, met.err = d.hasTimeFor(0), d.met.err // at the end it is asked again
		}
		var decision decide.Decision
		decision, met = d.leaveLate(d.decideStart(met))
		if decision.What == decide.Run && !met.stops() {
			d.at(begins, nil, nil)
			d.late.begin()
			d.started, d.line = time.Now(), standing{} // under Allow it may have waited for a lock in vain
			err := d.attempt(d.handlerContext(), next)
			d.result = obstacle{why: decide.Nothing, err: err, ran: true, held: time.Since(d.started)}
			met = &d.result
			decision = d.decideEnd(met)
		}
		result, again := d.carryOut(decision, met)
		if !again {
			d.recordWait(d.line, decision)
			ends = decision
			return result
		}
		if decision.What == decide.Run { // it goes on without that lock, also with no time left to wait
			met = nothing
		}
		if d.met = met; decision.When == decide.AsAsked { // after that time it comes anew
			d.met, d.cameTo = nil, nil
		}
	}
}

func (f *facts) over() decide.Over {
	switch {
	case f.ctx.Err() != nil:
		return decide.ContextEnded
	case f.isToStop():
		return decide.Replaced
	case f.guard.life.Closing.Err() != nil:
		return decide.GuardClosed
	}
	return decide.Goes
}

// look makes the keys and takes the locks, in the order of targets. It returns the first obstacle, or decide.Nothing if
// the handler may start; what the last look met, if nothing new can be found.
func (d *delivery) look(last *obstacle) *obstacle {
	if d.over() != decide.Goes || last.stops() && !d.hasTimeFor(0) {
		return last
	}
	if met := d.makeKeys(); met.stops() {
		return met
	}
	if met := d.late.check(nothing); met.stops() {
		return d.report(met)
	}
	for t := range d.unheld() {
		if met := d.at(comes, t, nil); met.stops() {
			return d.report(met)
		}
	}
	if d.isToStop() {
		return nothing
	}
	if met := d.takeAll(); met.stops() {
		return met
	}
	if met := d.lost(); met.stops() || d.over() != decide.Goes {
		return met
	}
	if met := d.at(ready, nil, nil); met.stops() {
		return d.report(met)
	}
	if met := d.late.check(nothing); met.stops() {
		return d.report(met)
	}
	return d.lost()
}

// takeAll takes all locks. If an earlier one was paused, or its gate closed, meanwhile, it begins anew.
func (d *delivery) takeAll() *obstacle {
	for {
		if met := d.lookAhead(); met.stops() {
			return met
		}
		for t := range d.unheld() {
			if met := d.take(t); met.stops() {
				return met
			}
		}
		shut, met := d.shutSince()
		if !shut {
			return met
		}
		if d.release(decide.Decision{What: decide.GiveBack}, met); d.over() != decide.Goes {
			return met
		}
	}
}

// lookAhead looks, before the task takes its first lock, whether a later one is paused or its gate closed: the task
// would hold those before it, and spend a start of their rates, for nothing. Under Park it takes its place there. One
// in order takes its place in the order first.
func (d *delivery) lookAhead() *obstacle {
	var later []*target
	var locks []engine.Ref
	if len(d.targets) > 1 && len(d.leases) == 0 {
		for t := range d.unheld() {
			if !d.without[t.key] {
				later, locks = append(later, t), append(locks, d.request(t).Ref)
			}
		}
	}
	if len(later) < 2 || locks[0].Ordered {
		return nothing
	}
	at, shut, err := d.guard.engine.Look(d.ctx, locks[1:], false)
	if err == nil && shut == nil {
		return nothing
	}
	t := later[1+at]
	if shut != nil {
		err = d.toBusyError(t, shut)
	}
	met := d.refused(t, err)
	met.later = true
	d.cameTo.met(t, time.Now())
	if r := d.request(t); shut != nil && !d.last && d.note != "" && t.rule.Busy.row().parks && !d.waitsFor(met) {
		r.Line = &engine.Line{Yield: engine.AtOnce, Ahead: true}
		var busy *BusyError
		if err := d.ask(d.ctx, t, r); !errors.As(err, &busy) || busy.SameTask {
			met = d.refused(t, err)
		} else {
			met.busy.parked, met.busy.Place = busy.parked, busy.Place
		}
	}
	return d.report(met)
}

// shutSince reports whether a lock that the task took before its last one allows no start any more: while the task
// waited its key was paused, or its gate closed.
func (d *delivery) shutSince() (is bool, met *obstacle) {
	for key := range d.without { // Allow runs without a lock, but not while that is paused
		if d.guard.engine.Controls().PauseOf(key) != nil {
			return true, nothing
		}
	}
	if len(d.leases) < 2 {
		return false, nothing
	}
	locks := make([]engine.Ref, len(d.leases)-1)
	for i := range locks {
		locks[i] = d.request(d.leases[i].target).Ref
	}
	at, shut, err := d.guard.engine.Look(d.ctx, locks, true)
	if err != nil {
		return shut != nil, d.report(&obstacle{why: decide.NoAnswer, target: d.leases[at].target, err: err})
	}
	return shut != nil, nothing
}

// waitsFor reports whether the rule has the task wait for a gate that it has met at a lock that is not its first: it
// opens while the rule's Wait lasts.
func (d *delivery) waitsFor(met *obstacle) bool {
	if !met.later || met.busy == nil || met.busy.parked || !met.why.IsGate() {
		return false
	}
	left := met.busy.ExpiresIn
	return left <= d.cameTo.waitLeft(met.target) && d.hasTimeFor(left)
}

// makeKeys finds the locks that the task needs. Under Allow it runs without one that has no key.
func (d *delivery) makeKeys() *obstacle {
	met := nothing
	if d.targets != nil {
		return met
	}
	targets := d.guard.rules.targetsNeeded(d.ctx, d.only[:0], d.task, d.guard.cfg.Prefix, d.rules,
		func(rule *compiledRule, err error) {
			o := &obstacle{why: whyNoKey(err), target: &target{rule: rule}, err: err}
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
	d.late.bound(targets)
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

func (d *delivery) take(t *target) *obstacle {
	if d.without[t.key] {
		return nothing
	}
	if d.line.key != t.key {
		d.line = standing{key: t.key, came: time.Now()}
	}
	later := len(d.leases) > 0
	if met := d.acquire(t); met.stops() {
		if d.server != nil && met.busy != nil {
			d.server.workers.Asked(t.key, false, false, 0)
		}
		if lost := d.lost(); lost.stops() {
			return lost // decide.Start says more
		}
		if met.later = later; later {
			d.cameTo.met(t, d.line.came)
		}
		by := d.late.by
		if met = d.late.check(met); !by.Equal(d.late.by) {
			return d.take(t) // it has begun before: that time has ended its wait for nothing
		}
		return d.report(met)
	}
	d.leases[len(d.leases)-1].took(&d.line)
	d.line = standing{}
	return nothing
}

func (h *heldLease) took(line *standing) {
	f, key := h.of, h.target.key
	f.guard.outage.Answered(f.guard.log)
	waited, parked := h.takenAt.Sub(line.came), h.lease.Parked()
	if h.waited = max(waited, parked); f.server != nil {
		f.server.workers.Asked(key, true, line.stood || parked > 0, h.waited)
	}
	if h.lender != nil {
		h.lender.Runs(key, h.target.limit, 1)
	}
	f.observe(h.target, Event{Kind: EventAcquired, Waited: waited, Parked: parked})
}

var othersThanHeld = map[string]decide.Why{lock.ReasonPaused: decide.Paused, lock.ReasonClosed: decide.Closed,
	lock.ReasonCooldown: decide.Cooldown, lock.ReasonRate: decide.Rate}

// refused returns what err, for which the task did not get a lock, means.
func (f *facts) refused(t *target, err error) *obstacle {
	met := &obstacle{why: decide.NoAnswer, target: t, err: err}
	if !errors.As(err, &met.busy) {
		return met // while the delivery is over, the reason does not count
	}
	why, isOther := othersThanHeld[met.busy.Reason]
	switch met.why = why; {
	case met.busy.SameTask && why != decide.Paused:
		met.why = decide.Own
	case !isOther:
		met.why = decide.Held
	}
	if met.why != decide.Paused { // which may be known from before an outage
		f.guard.outage.Answered(f.guard.log)
	}
	return met
}

func (f *facts) backendError(t *target, err error) {
	f.guard.outage.Failed(f.guard.log, "automutex: Redis cannot be asked for locks; tasks with rules return to asynq, "+
		"their attempts not spent", "key", t.key, "error", err)
	f.observe(t, Event{Kind: EventBackendError, Err: err})
}

// report observes and logs what the task has met, unless the delivery is over, it was reported, or the task waits for
// it.
func (d *delivery) report(met *obstacle) *obstacle {
	t := met.target
	if over := d.over(); over == decide.ContextEnded || over == decide.GuardClosed && met.why != decide.KeyNever {
		return met
	}
	switch {
	case met.why == decide.Late:
		d.observe(t, Event{Kind: EventLate, Policy: met.policy(), Busy: met.busy})
	case d.waitsFor(met):
	case met.busy != nil:
		if met.told = true; !met.isSame(d.met) || !d.met.told {
			d.observe(t, Event{Kind: EventBusy, Policy: met.policy(), Waited: met.busy.Waited, Busy: met.busy})
		}
	case d.isToStop(), met.told:
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
			d.about(nil, "error", met.err)...)
		d.observe(nil, Event{Kind: EventKeyError, Err: met.err})
	}
	return met
}

func (o *obstacle) isSame(other *obstacle) bool {
	return other != nil && o.why == other.why && o.target == other.target
}

// policy returns the policy that applies: Retry if the rule's would end or run the task, but not for this reason.
func (o *obstacle) policy() Policy {
	if o.target == nil {
		return Retry
	}
	switch rule := o.target.rule; {
	case o.why == decide.Late:
		return rule.Late
	case o.why.ForPolicy(), rule.Busy.row().returns(), rule.Busy == Allow && o.why == decide.Closed:
		return rule.Busy
	}
	return Retry
}

// decideStart decides about a task whose handler has not started. It asks the function of AfterFailure. Its answer, or
// a RetryAfter of a function that makes keys, counts as the handler's, unless it is ErrBusy.
func (d *delivery) decideStart(met *obstacle) (decide.Decision, *obstacle) {
	s := decide.Situation{Over: d.over(), Why: met.why, Last: d.last, Parked: met.busy != nil && met.busy.parked,
		TimeUp: d.last && !d.hasTimeFor(0), Waits: d.waitsFor(met)}
	if s.Over == decide.GuardClosed && met.why != decide.KeyNever && !s.Parked { // else the task ends, for its own reason
		met = &obstacle{why: met.why, err: fmt.Errorf("automutex: the Guard was closed: %w", ErrClosed)}
	}
	if met.target == nil {
		return decide.Start(s), met
	}
	rule := met.target.rule
	policy, applies := rule.Busy, met.why.ForPolicy()
	if met.why == decide.Late {
		policy, applies = rule.Late, true
	}
	s.Wish = policy.row().busy
	if s.Over != decide.Goes || s.Waits {
		return decide.Start(s), met
	}
	if fn := policy.after; fn != nil && applies && !met.asked {
		met.asked = true
		met.err = (*fn)(d.ctx, d.task, met.busy) // a panic fails the attempt, as a handler's does
	}
	answer, _ := said(met.err)
	if met.asked && (answer != decide.SaidError || !errors.Is(met.err, ErrBusy)) || met.why == decide.KeyLater &&
		answer == decide.SaidLater {
		return d.decideEnd(met), met
	}
	return decide.Start(s), met
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
func (f *facts) decideEnd(met *obstacle) decide.Decision {
	r := decide.Result{Over: f.over(), Last: f.last && f.outer == nil, Spent: met.ran && f.spends(met.err)}
	r.Said, met.delay = said(met.err)
	r.TimeUp = r.Last && !f.hasTimeFor(max(met.delay, minStay))
	return decide.End(r)
}

// leaveLate takes a late task out of its lines. Without an answer it comes back: archived in order, it would hold its
// key.
func (d *delivery) leaveLate(decision decide.Decision, met *obstacle) (decide.Decision, *obstacle) {
	if met.why != decide.Late || !decision.Final(d.last) {
		return decision, met
	}
	for t := range d.unheld() {
		if stays := d.at(leaves, t, nil); stays.stops() {
			return d.decideStart(d.report(stays))
		}
		if t.rule.Busy.row().parks && !d.request(t).Ordered {
			// after an error, who calls the task finds that it has ended
			_ = d.guard.engine.Unpark(d.whole(), engine.Ref{Key: t.key, Limit: t.limit}, d.note)
		}
	}
	return decision, met
}

// carryOut returns the result of Middleware, or true if the task stays in its worker and the next look is due.
func (d *delivery) carryOut(decision decide.Decision, met *obstacle) (result error, again bool) {
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
		if met.busy != nil && met.why != decide.Late && met.policy() != Archive { // none is left
			d.observe(t, Event{Kind: EventBusy, Policy: Archive, Waited: met.busy.Waited, Busy: met.busy})
		}
		return d.guard.archive(met.err), false
	case decide.Spend:
		return met.err, false
	case decide.Drop:
		if d.isToStop() {
			return d.revoke(met), false
		}
		return met.err, false
	case decide.Stay, decide.GiveBack:
		d.stay(decision, met)
		return nil, true
	case decide.Block:
		return errBlocks, false
	case decide.Back, decide.ToLine:
	}
	return d.comeBack(decision, d.late.within(d.delay(decision.When, met)), met), false
}

// errBlocks is the result of a task that asynq would archive for any result: it blocks until asynq, at the end of its
// ShutdownTimeout, requeues the task and ends its context.
var errBlocks = errors.New("automutex: the task blocks until asynq requeues it")

// comeBack returns the task to asynq, unspent.
func (f *facts) comeBack(decision decide.Decision, delay time.Duration, met *obstacle) error {
	e, parks := Event{Kind: EventRetried, Policy: met.policy(), Delay: delay}, decision.What == decide.ToLine
	switch {
	case parks:
		e.Kind, e.Busy = EventParked, met.busy
		f.checkInspector()
	case decision.When == decide.AsAsked, met.busy == nil:
		e.Err = met.err
	}
	if parks || !f.noServerConfig() {
		f.observe(met.target, e)
	}
	if met.ran {
		return met.err // ServerConfig finds the RetryAfter in it
	}
	if f.server != nil && f.outer == nil {
		f.server.sawReturned()
	}
	return &verdict{f.guard, goesBack, met.err, delay}
}

func (f *facts) delay(when decide.When, met *obstacle) time.Duration {
	left := met.delay
	switch t := met.target; {
	case when == decide.AtGate, when == decide.AtResume:
		left = met.busy.ExpiresIn
	case when == decide.AtTurn:
		left = met.busy.turnIn()
	case when == decide.AtOutage:
		left = f.guard.outage.Lasts()
	case when == decide.AsAsked && met.ran: // ServerConfig rounds it
		return left
	case when == decide.Soon && t != nil && t.rule.Busy.delay > 0:
		return t.rule.Busy.delay
	}
	return decide.Delay(when, left)
}

// minStay is the least time after which a task in its worker tries again after a RetryAfter or a lost lease: asynq's
// own retries come no sooner. It is the longest for a gate, a pause or its own earlier attempt, which may end early.
const minStay = time.Second

// stay has a task wait in its worker for the next look. Where others hold the lock that look waits, in line.
func (d *delivery) stay(decision decide.Decision, met *obstacle) {
	if decision.What == decide.GiveBack {
		d.release(decision, met)
	}
	d.staying = ""
	switch {
	case decision.When == decide.AsAsked, met.why == decide.LeaseLost:
		d.sleep(max(met.delay, minStay), nil)
	case met.why == decide.NoAnswer, met.why == decide.KeyLater:
		d.sleep(d.late.within(d.delay(decide.AtOutage, met)), nil)
	case met.why == decide.Held:
		d.staying = met.target.key
	default:
		d.stayOut(met)
	}
}

func (f *facts) hasTimeFor(delay time.Duration) bool {
	deadline, ok := f.ctx.Deadline()
	return !ok || time.Until(deadline)-margin > delay
}

// verdict is the error of Middleware for a task that does not run. ServerConfig's functions recognize their own by
// the guard, and leave any other error to asynq: it is the handler's.
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

// revoke ends a task that another one has asked to stop.
func (f *facts) revoke(met *obstacle) error {
	var by *wanted
	errors.As(context.Cause(f.stop), &by)
	e, rule := Event{Kind: EventReplaced, Policy: by.lock.rule.Busy}, by.lock.rule.Name
	err := fmt.Errorf("rule %q: key %q: %w", cmp.Or(rule, f.task.Type()), by.lock.key, ErrReplaced)
	if e.Waited = time.Since(f.arrived); met.ran {
		e.Held, e.Waited = met.held, 0
		if met.err != nil {
			err = fmt.Errorf("%w: %w", err, met.err)
		}
	}
	f.observe(by.lock, e)
	return &verdict{guard: f.guard, kind: revoked, err: err}
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

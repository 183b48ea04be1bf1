package automutex

import (
	"context"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
)

// This file is the path of one task. Indented: called by the row above that is less indented.
// Last column: files to read next for that step.
//
//	Middleware              is there a rule for the task's type?             match.go
//	  enterTask             count the busy worker, for Park                  server.go, workers.go
//	  runWithoutRule        run a task that has no rule
//	  process               run a task that has rules
//	    newDelivery         what asynq says of the task
//	    runCounted, run     the loop: look, decide, act
//	      look              what keeps the handler from starting?            look.go
//	        makeKeys        which locks does the task need?                  match.go, internal/jsonkey
//	        checkPaused     has an operator paused one of the keys?          pause.go
//	        take            get one lock
//	          acquire       wait as the rule says: Wait, Park, Replace; a
//	                        new way to wait begins there                     wait.go, park.go, replace.go
//	        lostBeforeStart has a lease ended meanwhile?                     lease.go
//	        beginInClaim    note the start in the claim of package unique   claim.go
//	      decideStart       what happens to the task?                        outcome.go, internal/decide
//	      decideEnd         the same, after its handler has returned         outcome.go, internal/decide
//	      carryOut          act: return an error to asynq, or stay           outcome.go
//	      release           end all leases and report it                     lease.go
//
// What happens to a task is decided in internal/decide alone, and all of it stands in
// internal/decide/testdata/decisions.txt. The rest finds out the facts, or carries decisions out.
// inner has what package lock offers to this module alone (guard.go).
// docs/architecture.md says what line, park, gate, claim and note mean.
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
		case g.rules.match(t.Type()) == nil && !g.hasClaim(ctx):
			return g.runWithoutRule(ctx, t, next)
		}
		return g.process(ctx, t, next)
	})
}

// process runs a task that has rules, or a claim. It returns the handler's result, or the reason why
// the handler did not run.
func (g *Guard) process(ctx context.Context, t *asynq.Task, next asynq.Handler) error {
	d := g.newDelivery(ctx, t)
	d.warnNoServerConfig()
	return d.blocked(d.runCounted(next))
}

// noServerConfig reports whether asynq takes a task that returns for one that has failed.
func (d *delivery) noServerConfig() bool {
	return d.id != "" && d.server == nil && !d.guard.configured.Load()
}

// warnNoServerConfig warns once of tasks whose context is not that of Guard.ServerConfig.
func (d *delivery) warnNoServerConfig() {
	g := d.guard
	switch {
	case d.noServerConfig():
		g.warnOnce("no ServerConfig", "the asynq server was made without Guard.ServerConfig: each time a task returns to asynq, it spends an attempt and waits for asynq's retry delay; "+
			"make the server with asynq.NewServer(redis, guard.ServerConfig(config))")
	case d.id != "" && d.server == nil:
		g.warnOnce("no mark", "the asynq server was made without Guard.ServerConfig, or BaseContext was set on the asynq.Config that it returned. Without it a returned task has its attempt counted; "+
			"with another BaseContext a task under Park does not wait in its worker. Set BaseContext in the asynq.Config that is given to ServerConfig, and make each server with the result", "task", d.note)
	}
}

// runCounted is run, counted so that Close waits for it. After Close the task returns to asynq; see over.
func (d *delivery) runCounted(next asynq.Handler) error {
	if d.afterClose = !d.guard.enter(); !d.afterClose {
		defer d.guard.leave()
	}
	return d.run(next)
}

// runWithoutRule runs a task that no rule matches, after Close too. On its last attempt, a handler that returned
// RetryAfter runs again here.
func (g *Guard) runWithoutRule(ctx context.Context, t *asynq.Task, next asynq.Handler) error {
	if g.enter() {
		defer g.leave()
	}
	if s, number := g.serverOf(ctx); s != nil && g.rules.parks {
		s.workers.cameToKey(number)
	}
	for {
		err := next.ProcessTask(ctx, t)
		if wantsRetryAfter(err) == nil {
			return err
		}
		d := g.newDelivery(ctx, t)
		d.warnNoServerConfig()
		if result, again := d.carryOut(d.decideEnd(err)); !again {
			return d.blocked(result)
		}
	}
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
	retried     int    // asynq's count of attempts

	stamp      stamp.Stamp // the header of a Client; zero: none
	reserved   bool        // asynq was told one attempt more than the caller asked for
	runAgain   bool        // an operator runs the ordered task again although it was done
	leftOldKey bool        // the place in the order of another key is given up

	arrivedAt  time.Time
	server     *server // nil: the server was made without ServerConfig
	number     int64   // of the task on that server, in the order of starts
	claim      taskClaim
	afterClose bool // the Guard was closed before the task came

	targets   []target        // nil until the keys are made
	without   map[string]bool // Allow: the keys without whose locks the task runs
	reported  obstacle        // the last one that report was called with
	stayAt    string          // last attempt: the key in whose line the next look waits, see acquire
	stayAsked bool            // and AfterFailure has said for it that the task is to wait
	crowded   bool            // MaxWaiting kept the task from waiting in the last acquire
	cameBack  bool            // the handler has asked to come back, see comesBack
	looked    bool            // and comesBack has looked for it in Redis

	replacing    *replaceState // nil until the task reaches a lock whose rule has the policy Replace
	leases       []*heldLease  // in the order taken
	room         [1]*heldLease // for the lease of a task with one key
	taking       string        // the key of the lock that the task takes now
	takingSince  time.Time     // when the task came to that lock
	stoodInLine  bool          // and whether it stood in its line
	asked        func()        // lets the next task of the key ask; nil: this one asks in no order, see takeTurn
	waitingSince time.Time     // when it joined the line of that lock; zero: it is in no line
	// The next two are those of one run of the handler, which release ends.
	handlerStart time.Time     // zero: the handler has not started
	handlerDone  chan struct{} // made when the handler starts; release closes it
}

func (g *Guard) newDelivery(ctx context.Context, t *asynq.Task) *delivery {
	d := &delivery{guard: g, ctx: ctx, task: t, arrivedAt: time.Now()}
	d.server, d.number = g.serverOf(ctx)
	d.queue, _ = asynq.GetQueueName(ctx)
	var ok bool
	if d.id, ok = asynq.GetTaskID(ctx); ok {
		d.note = tasknote.Of(d.queue, d.id)
		d.claim = g.claimOf(d.id)
		d.retried, _ = asynq.GetRetryCount(ctx)
		maxRetry, _ := asynq.GetMaxRetry(ctx)
		d.lastAttempt = d.retried >= maxRetry
		d.readStamp()
	}
	return d
}

// run is the loop of a task: look, decide, act, until the task ends. Package decide decides. A task
// that stays in its worker goes round again, and so does one that runs without a lock under Allow.
func (d *delivery) run(next asynq.Handler) error {
	// Plain defers, no recover: a panic of the handler or of an Observe reaches asynq with the
	// stack that it had, and asynq counts the attempt.
	ends, met := decide.End(decide.Result{Said: decide.Panicked}), obstacle{why: decide.Nothing}
	defer func() {
		d.release(ends)
		if met.ran && ends.Final(false) {
			d.forgetComesBack()
		}
		d.endClaim(ends)
	}()
	for {
		met = d.look(met)
		decision := d.decideStart(&met)
		if decision.What == decide.Run && met.why == decide.Nothing {
			d.handlerStart, d.taking = time.Now(), "" // under Allow it may have waited for a lock in vain
			decision, met = d.decideEnd(d.guardAttempts(next).ProcessTask(d.handlerContext(), d.task))
			d.endInOrder(decision, met.err)
			if wantsRetryAfter(met.err) != nil && !decision.Final(false) && !d.isNested() {
				d.keepComesBack(met.delay, true)
			}
		}
		result, again := d.carryOut(decision, met)
		if !again {
			d.recordWait(decision)
			ends = decision
			return result
		}
		if decision.What == decide.Run { // it goes on without that lock, also with no time left to wait
			met = obstacle{why: decide.Nothing}
		}
	}
}

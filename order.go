package automutex

import (
	"errors"
	"slices"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/stamp"
)

// ordering is the step of tasks under Rule.InOrder. internal/engine/lua/order.lua has the order.
type ordering struct{ *facts }

func newOrdering(f *facts) step {
	if f.rules == nil || f.stamp.Nonce == "" && ordered(f.rules) == nil {
		return nil
	}
	return ordering{f}
}

// isFor: outside of a server, or within a task, asynq does not know the task, and it has no place. It takes turns with
// those in order.
func (o ordering) isFor(t *target) bool { return t.rule.InOrder && o.note != "" && o.outer == nil }

func (o ordering) hasPlaceIn(t *target) bool { return o.stamp.Nonce != "" && o.stamp.Key == t.key }

func (o ordering) request(r *engine.Request, t *target) {
	if !o.isFor(t) {
		return
	}
	r.Ordered, r.Place = true, &engine.Place{Nonce: stamp.Unstamped(o.note), Retried: o.retried, Most: -1,
		Continue: t.rule.OnArchive == Continue}
	if o.reserved {
		r.Place.Most = o.stamp.Most
	}
	if o.hasPlaceIn(t) {
		r.Place.Nonce, r.Place.Ticket = o.stamp.Nonce, o.stamp.Ticket
	}
}

func (o ordering) look(at moment, t *target, err error) *obstacle {
	switch {
	case errors.Is(err, engine.ErrOrderDone): // its worker died before asynq had stored the end
		return &obstacle{why: decide.Finished, target: t}
	case errors.Is(err, engine.ErrOrderSpent):
		return o.refuse(t)
	case at == comes && o.isFor(t) && !o.hasPlaceIn(t):
		o.joinAtArrival(t)
	case at == leaves && o.isFor(t):
		its := engine.Request{}
		o.request(&its, t)
		if err := o.giveUp(t.key, its.Place.Nonce, its.Place.Ticket); err != nil {
			return &obstacle{why: decide.NoAnswer, target: t, err: err}
		}
	}
	return nothing
}

// errSpent is the last error of a task whose last attempt did not return.
var errSpent = errors.New("automutex: the handler has begun as often as the task's MaxRetry allows, and its last run " +
	"did not return: its worker died, or its time was up")

func (o ordering) refuse(t *target) *obstacle {
	// calls the next task, which comes by itself, too
	_ = o.guard.engine.Act(o.ctx, orderedKey(t.key), engine.ActNone, engine.OrderItem{}, 0)
	if t.rule.OnArchive == HoldKey {
		o.reportBlocked(t, errSpent)
	}
	return &obstacle{why: decide.KeyNever, target: t, err: errSpent, told: true}
}

// joinAtArrival has a task with a stamp for another key, since its payload or the rule has changed, give that place
// up; after an error, a look finds that the task has ended.
func (o ordering) joinAtArrival(t *target) {
	o.guard.warnOnce("unstamped "+o.task.Type(), "a task of an ordered rule runs after those that have a place in the "+
		"order of its key: it was not enqueued through automutex.NewClient, "+
		"or for another key, since the rules of producer and worker differ", o.about(t)...)
	o.withdraw()
}

func (o ordering) withdraw() {
	if _, err := engine.ParseKey(o.guard.cfg.Prefix, o.stamp.Key); err == nil { // a header says what its producer likes
		_ = o.giveUp(o.stamp.Key, o.stamp.Nonce, o.stamp.Ticket)
	}
}

func (o ordering) giveUp(key, nonce string, ticket int64) error {
	return o.guard.engine.Act(o.whole(), orderedKey(key), engine.ActWithdraw,
		engine.OrderItem{Nonce: nonce, Ticket: ticket, Note: o.note}, 0)
}

// end tells an ordered lock, before its release, how the attempt ended. It gives up the place of a task that ended
// without a key for that lock; after an error, or if the task holds its key now, a look finds that.
func (o ordering) end(e ending) {
	if e.lease != nil {
		if t := e.lease.target; o.isFor(t) {
			outcome := o.outcome(t.rule, e)
			if e.lease.lease.End(outcome); outcome == engine.OutcomeHeld {
				o.reportBlocked(t, e.met.err)
			}
		}
		return
	}
	if o.stamp.Nonce == "" || slices.ContainsFunc(e.targets, func(t target) bool { return o.hasPlaceIn(&t) }) {
		return
	}
	if rule := o.guard.orderedRule(o.stamp.Key); rule != nil {
		if outcome := o.outcome(rule, e); outcome == engine.OutcomeDone || outcome == engine.OutcomeLeft {
			o.withdraw()
		}
	}
}

// outcome: a task whose context has ended keeps its place. One whose handler has not begun may end by another rule. One
// that asked to come back is unbegun, also if asynq counts the attempt later, for a wait that is cut.
func (o ordering) outcome(rule *compiledRule, e ending) engine.Outcome {
	what := e.decision.What
	stays := what == decide.Leave || !e.decision.Final(o.last)
	switch {
	case what == decide.Back, stays && !e.began:
		return engine.OutcomeUnbegun
	case stays:
		return engine.OutcomeStays
	case what == decide.Done, what == decide.Drop:
		return engine.OutcomeDone
	case rule.OnArchive == Continue, e.met.why == decide.Late:
		return engine.OutcomeLeft
	}
	return engine.OutcomeHeld
}

func (o ordering) reportBlocked(t *target, err error) {
	o.guard.reportBlocked(o.ctx, o.event(t, Event{Err: err}))
}

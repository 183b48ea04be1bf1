package automutex

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
)

// This file is the worker's side of Rule.InOrder and of the reserved attempt; client.go is the producer's. The order
// itself is in internal/wire/lua/order.lua.

// OnArchive is what happens to the key of an ordered task that asynq archives; see [Rule].OnArchive.
type OnArchive uint8

const (
	// HoldKey keeps the key for the archived task: the tasks behind it wait until an operator runs that task, or
	// skips it with [Guard.SkipHead]. HoldKey is the zero value. To delete the archived task with asynq's tools is
	// not enough, since asynq deletes old archived tasks by itself.
	HoldKey OnArchive = iota
	// Continue runs the next task of the key.
	Continue
)

// String returns "hold" or "continue".
func (o OnArchive) String() string {
	switch o {
	case HoldKey:
		return "hold"
	case Continue:
		return "continue"
	}
	return fmt.Sprintf("OnArchive %d", uint8(o))
}

// checkOrder adds the mistakes in what the rule says about order.
func (c *compiledRule) checkOrder(mistakes *fieldErrors) {
	if c.MaxQueued < 0 {
		mistakes.addf("MaxQueued", "%d is negative; use 0 for no bound", c.MaxQueued)
	}
	if c.OnArchive > Continue {
		mistakes.addf("OnArchive", "%d is neither HoldKey nor Continue", uint8(c.OnArchive))
	}
	if !c.InOrder {
		if c.MaxQueued > 0 {
			mistakes.addf("MaxQueued", "needs InOrder; set it, or leave MaxQueued out")
		}
		if c.OnArchive != HoldKey {
			mistakes.addf("OnArchive", "needs InOrder; set it, or leave OnArchive out")
		}
		return
	}
	if c.Limit > 1 || c.LimitOf != nil {
		mistakes.addf("InOrder", "needs a Limit of 1, since tasks that run beside each other are in no order; leave Limit and LimitOf out")
	}
	if c.Busy != Park {
		mistakes.addf("InOrder", "needs the policy park, not %s: a task that comes before its turn keeps its place; leave Busy out", c.Busy)
	}
}

// checkOrderTogether adds the mistakes that two rules of one scope make about order.
func checkOrderTogether(mistakes *fieldErrors, first, rule *compiledRule, scope string) {
	switch {
	case first.InOrder != rule.InOrder:
		mistakes.addf("InOrder", "is set here or in %s, and not in the other, for the same scope %q; one scope is in order or not", first.where(), scope)
	case first.OnArchive != rule.OnArchive:
		mistakes.addf("OnArchive", "is %s, but %s has %s for the same scope %q; one scope has one OnArchive", rule.OnArchive, first.where(), first.OnArchive, scope)
	case first.MaxQueued != rule.MaxQueued:
		mistakes.addf("MaxQueued", "is %d, but %s has %d for the same scope %q; one scope has one MaxQueued", rule.MaxQueued, first.where(), first.MaxQueued, scope)
	}
}

// orderRank is the rank of an ordered rule: its lock is taken before all others, so that no task holds another lock
// while it waits for its turn. A task has at most one ordered rule, so no two tasks wait for each other.
const orderRank = -1

// inOrder reports whether the task takes the lock of t in the order of its key. Outside of a server it has no place.
func (d *delivery) inOrder(t target) bool { return t.rule.InOrder && d.note != "" }

// isStamped reports whether the task has a place in the order of t's key.
func (d *delivery) isStamped(t target) bool { return d.stamp.Nonce != "" && d.stamp.Key == t.key }

// place is the task's place in the order of t's key. A task without a stamp for that key joins at its arrival.
func (d *delivery) place(t target) inside.Place {
	p := inside.Place{Nonce: stamp.Unstamped(d.note), Retried: d.retried, Most: -1, Continue: t.rule.OnArchive == Continue, Again: d.runAgain}
	if d.reserved {
		p.Most = d.stamp.Most
	}
	if d.isStamped(t) {
		p.Nonce, p.Ticket = d.stamp.Nonce, d.stamp.Ticket
	}
	return p
}

// turn is the task's place among those of t's key: 0 if the key is not ordered, and the last for a task without a stamp.
func (d *delivery) turn(t target) int64 {
	switch {
	case !d.inOrder(t):
		return 0
	case !d.isStamped(t):
		return math.MaxInt64
	}
	return d.stamp.Ticket
}

// acquireInOrder is acquire for an ordered lock. Its error is errSpent if the task's attempts are spent, and
// inner.IsOrderDone knows it if the task was done already.
func (d *delivery) acquireInOrder(t target) error {
	if !d.isStamped(t) {
		d.joinAtArrival(t)
	}
	for {
		err := d.acquireTurn(t)
		switch {
		case inner.IsOrderSpent(err):
			d.wakeNext(t)
			if t.rule.OnArchive == HoldKey {
				d.observe(Event{Kind: EventBlocked, Rule: t.rule.Name, Key: t.key, Err: errSpent})
			}
			return errSpent
		case !inner.IsOrderDone(err) || d.runAgain:
			return err
		}
		// asynq delivers a task that was done: its worker died before asynq had noted the end. Or an operator runs a
		// task again that asynq retains.
		info, lookErr := d.guard.inspector.GetTaskInfo(d.queue, d.id)
		if lookErr != nil || info.CompletedAt.IsZero() {
			d.guard.log.Debug("automutex: a task was delivered again after it was done; it does not run", "rule", t.rule.Name, "key", t.key, "task", d.note)
			return err
		}
		d.runAgain = true
	}
}

// acquireTurn waits for the task's turn in its worker, or parks.
func (d *delivery) acquireTurn(t target) error {
	switch {
	case d.stayAt == t.key:
		return d.acquireStaying(t)
	case !d.lastAttempt:
		return d.lockOrPark(t, d.lockOf(t))
	}
	lease, err := d.lockOf(t).TryLock(d.ctx)
	return d.keepLease(t, lease, err)
}

// joinAtArrival prepares for a task that has no stamp for this key. If it has one for another key, since its
// payload or the rule has changed, it gives that place up.
func (d *delivery) joinAtArrival(t target) {
	if d.stamp.Nonce == "" {
		d.guard.warnOnce("unstamped "+d.task.Type(), "a task of an ordered rule was not enqueued through automutex.NewClient, so it has no place in order before it comes to a worker: "+
			"it runs after the tasks that have one; enqueue tasks of this type through a Client", "rule", t.rule.Name, "type", d.task.Type(), "task", d.note)
		return
	}
	if d.leftOldKey {
		return
	}
	item := inside.OrderItem{Nonce: d.stamp.Nonce, Ticket: d.stamp.Ticket, Note: d.note}
	err := inner.ActOrder(d.roundTripContext(), inner.ByOrder(d.guard.locker, d.stamp.Key), inside.ActWithdraw, item, 0)
	d.leftOldKey = err == nil
	d.guard.warnOnce("other key "+d.task.Type(), "the key of an ordered task is not the one that it was enqueued for, so it runs after the tasks of its new key: "+
		"its payload was changed, or the rules of producer and worker differ", "rule", t.rule.Name, "type", d.task.Type(), "task", d.note, "error", err)
}

// wakeNext calls the next task after this one has left the order, on a goroutine that Close waits for.
func (d *delivery) wakeNext(t target) {
	if !d.guard.enter() {
		return
	}
	go func() { // one round trip
		defer d.guard.leave()
		_ = inner.ActOrder(d.guard.closing, inner.ByOrder(d.guard.locker, t.key), inside.ActNone, inside.OrderItem{}, 0)
	}()
}

// errSpent is the last error of a task whose last attempt did not return.
var errSpent = errors.New("automutex: the handler has begun as often as the task's MaxRetry allows, and its last run did not return: its worker died, or its time was up")

// endInOrder tells the task's ordered lock how the attempt ended, before the lock is released. A task whose context
// has ended, or whose handler panicked, keeps its place. err is why the task failed.
func (d *delivery) endInOrder(decision decide.Decision, err error) {
	for _, h := range d.leases {
		if d.inOrder(h.target) && decision.What != decide.Leave {
			outcome := d.orderOutcome(h.target, decision)
			inner.EndOrder(h.lease, outcome)
			if outcome == inside.OutcomeHeld {
				d.observe(Event{Kind: EventBlocked, Rule: h.target.rule.Name, Key: h.target.key, Err: err})
			}
		}
	}
}

// orderOutcome is what the decision means for the task's place.
func (d *delivery) orderOutcome(t target, decision decide.Decision) inside.Outcome {
	switch {
	case decision.What == decide.Done, decision.What == decide.Drop:
		return inside.OutcomeDone
	case !decision.Final(d.lastAttempt):
		return inside.OutcomeStays
	case t.rule.OnArchive == Continue:
		return inside.OutcomeLeft
	}
	return inside.OutcomeHeld
}

// redeliveryDelay bounds how long asynq waits before it delivers a stamped task again whose worker died: the marks of
// tasks that are done last for five minutes.
const redeliveryDelay = 30 * time.Second

// capRedelivery shortens the delay of a task whose worker died.
func capRedelivery(delay time.Duration, err error, t *asynq.Task) time.Duration {
	if errors.Is(err, asynq.ErrLeaseExpired) && t != nil && stamp.Ordered(t.Headers()) {
		return min(delay, redeliveryDelay)
	}
	return delay
}

// Orders reports whether a rule for tasks of that type has [Rule].InOrder, so that the Client gives such a task its place,
// and that rule's OnArchive.
func (c *Client) Orders(taskType string) (onArchive OnArchive, ordered bool) {
	if p := c.rules.find(taskType); p != nil && p.ordered() != nil {
		return p.ordered().OnArchive, true
	}
	return HoldKey, false
}

// ordered returns the rule of the pattern that has InOrder, of which there is one at most, or nil.
func (p *pattern) ordered() *compiledRule {
	if i := slices.IndexFunc(p.rules, func(rule *compiledRule) bool { return rule.InOrder }); i >= 0 {
		return p.rules[i]
	}
	return nil
}

// Blocked is an ordered key whose next task keeps the tasks behind it waiting, and does not run.
type Blocked struct {
	// Key is the lock's Redis key.
	Key string
	// Task is the task that all others wait for, as "queue/id".
	Task string
	// Since is since when the key is held. Of a task that is to be retried it is when it last came to a worker.
	Since time.Time
	// Why says what keeps the task from running, and what ends that, as in "behind default/8a1c, which
	// failed and is retried in 40s".
	Why string
	// Behind is how many tasks of the key wait behind it.
	Behind int
}

// Blocked returns the keys under the Guard's prefix whose next task, in order, does not run: it is archived and holds its
// key ([HoldKey]), has failed and is retried later, is gone, or waits in a queue that is paused or that no server serves. Keys that
// are held come first, then those whose task has failed, the longest blocked first. A key of which no task is behind another is only listed while it is held. Blocked walks
// all keys with SCAN and looks at the first task of each, so call it for operators, not for each task.
func (g *Guard) Blocked(ctx context.Context) ([]Blocked, error) {
	found, err := blocked.List(ctx, g.locker, g.sighted())
	if err != nil {
		return nil, fmt.Errorf("automutex: Blocked: %w", err)
	}
	keys := make([]Blocked, len(found))
	for i, key := range found {
		keys[i] = Blocked(key)
	}
	return keys, nil
}

// SkipHead gives up the place of task ("queue/id"), the next task of key, and goes on with the one behind it. The task itself
// is not changed: if asynq runs it later, it takes its old place again, before those that still wait, and may hold the
// key again. key and task are those of [Guard.Blocked].
//
// The error says so if the task runs now, or is not the next one of the key; then nothing has changed. After an error
// that Is [lock.ErrBackend] the task may be skipped or not.
func (g *Guard) SkipHead(ctx context.Context, key, task string) error {
	if err := blocked.Skip(ctx, g.locker, g.inspector, key, task, 0); err != nil {
		return fmt.Errorf("automutex: SkipHead: %w", err)
	}
	e := Event{Kind: EventHeadSkipped, Key: key}
	e.Queue, e.TaskID, _ = tasknote.Parse(task)
	if rule := g.rules.orderedRule(g.cfg.Prefix, key); rule != nil {
		e.Rule = rule.Name
	}
	g.observeSafely(ctx, e)
	g.log.Info("automutex: an operator has skipped the next task of an ordered key", "key", key, "task", task)
	return nil
}

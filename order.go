package automutex

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
)

// The worker's side of Rule.InOrder and of the reserved attempt. internal/engine/lua/order.lua has the order.

// OnArchive is what happens to an ordered key with an archived task; see [Rule].OnArchive.
type OnArchive uint8

const (
	// HoldKey keeps the key for the archived task: the tasks behind it wait until an operator runs that task, or skips it
	// with [Guard.SkipHead]. It is the zero value. To delete the task with asynq's tools is not enough, since asynq
	// deletes old ones by itself.
	HoldKey OnArchive = iota
	// Continue runs the next task of the key.
	Continue
)

// String returns "hold" or "continue".
func (o OnArchive) String() string {
	if o <= Continue {
		return [...]string{"hold", "continue"}[o]
	}
	return fmt.Sprintf("OnArchive %d", uint8(o))
}

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
	if c.Limit > 1 || c.isLimitOfTask() {
		mistakes.addf("InOrder", "needs a Limit of 1, since tasks that run beside each other are in no order; leave "+
			"Limit, LimitOf and LimitField out")
	}
	if c.Busy != Park {
		mistakes.addf("InOrder", "needs the policy park, not %s: a task that comes before its turn keeps its place; leave "+
			"Busy out", c.Busy)
	}
}

// orderRank has an ordered lock taken before all others, so that no task holds one while it waits for its turn. A
// task has at most one, so no two wait for each other.
const orderRank = -1

// place is what the header of a Client says.
type place struct {
	stamp.Stamp

	reserved bool // asynq was told one attempt more than the caller asked for
}

func (p place) isLast(f *facts) bool { return f.last || p.reserved && f.retried >= p.Most }

func (p place) in(t target) bool { return p.Nonce != "" && p.Key == t.key }

// attempt runs the handler. It has asynq archive a task with a reserved attempt when the caller's attempts end. So it
// ends a panic of that attempt here, and logs it as asynq does.
//
// What has no result here (runtime.Goexit, a process that dies, a context that ends) asynq counts, and delivers the
// task once more, see stamp.CapRedelivery. An ordered task is refused then.
func (d *delivery) attempt(next asynq.Handler) (err error) {
	ctx := d.handlerContext()
	if d.mark != nil {
		d.mark.noteWorks()
	}
	if !d.place.reserved || !d.place.isLast(&d.facts) {
		return next.ProcessTask(ctx, d.task)
	}
	defer func() {
		if p := recover(); p != nil {
			d.guard.log.Error("automutex: the handler panicked on the task's last attempt",
				d.about(target{}, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))...)
			err = fmt.Errorf("panic: %v", p)
		}
		final := err != nil && wantsRetryAfter(err) == nil && !errors.As(err, new(*verdict)) &&
			!errors.Is(err, asynq.SkipRetry) && !errors.Is(err, asynq.RevokeTask)
		if final && d.ctx.Err() == nil { // else asynq has stored its own decision already
			err = d.guard.archive(err)
		}
	}()
	return next.ProcessTask(ctx, d.task)
}

// isOrdered: outside of a server, or within a task, asynq does not know the task, and it has no place. It takes turns
// with those in order.
func (d *delivery) isOrdered(t target) bool { return t.rule.InOrder && d.note != "" && d.outer == nil }

func (d *delivery) placeIn(t target) *engine.Place {
	p := &engine.Place{Nonce: stamp.Unstamped(d.note), Retried: d.retried, Most: -1,
		Continue: t.rule.OnArchive == Continue}
	if d.place.reserved {
		p.Most = d.place.Most
	}
	if d.place.in(t) {
		p.Nonce, p.Ticket = d.place.Nonce, d.place.Ticket
	}
	return p
}

func (d *delivery) turn(t target) int64 {
	switch {
	case !d.isOrdered(t):
		return 0
	case !d.place.in(t):
		return math.MaxInt64
	}
	return d.place.Ticket
}

// acquireInOrder is acquire for an ordered lock. Its error is errSpent if the attempts are spent, and Is
// engine.ErrOrderDone if the task was done: its worker died before asynq had noted the end.
func (d *delivery) acquireInOrder(t target) error {
	if !d.place.in(t) {
		d.joinAtArrival(t)
	}
	err := d.wait(t, d.waitOf(t))
	if !errors.Is(err, engine.ErrOrderSpent) {
		return err
	}
	// calls the next task, which comes by itself, too
	_ = d.guard.engine.Act(d.ctx, orderedKey(t.key), engine.ActNone, engine.OrderItem{}, 0)
	if t.rule.OnArchive == HoldKey {
		d.reportBlocked(t, errSpent)
	}
	return errSpent
}

// joinAtArrival has a task with a stamp for another key, since its payload or the rule has changed, give that place
// up; after an error, a look finds that the task has ended.
func (d *delivery) joinAtArrival(t target) {
	d.guard.warnOnce("unstamped "+d.task.Type(), "a task of an ordered rule runs after those that have a place in the "+
		"order of its key: it was not enqueued through automutex.NewClient, "+
		"or for another key, since the rules of producer and worker differ", d.about(t)...)
	d.withdraw()
}

func (d *delivery) withdraw() {
	if _, err := engine.ParseKey(d.guard.cfg.Prefix, d.place.Key); err == nil { // a header says what its producer likes
		_ = d.giveUp(d.place.Key, d.place.Nonce, d.place.Ticket)
	}
}

func (d *delivery) giveUp(key, nonce string, ticket int64) error {
	return d.guard.engine.Act(d.whole(), orderedKey(key), engine.ActWithdraw,
		engine.OrderItem{Nonce: nonce, Ticket: ticket, Note: d.note}, 0)
}

func orderedKey(key string) engine.Ref {
	return engine.Ref{Key: key, Limit: 1, Ordered: true}
}

// errSpent is the last error of a task whose last attempt did not return.
var errSpent = errors.New("automutex: the handler has begun as often as the task's MaxRetry allows, and its last run " +
	"did not return: its worker died, or its time was up")

// endOrder tells an ordered lock, before its release, how the attempt ended. A task whose context has ended keeps its
// place. One whose handler has not begun may end by another rule.
func (d *delivery) endOrder(h *heldLease, decision decide.Decision, begun bool, err error) {
	outcome := d.orderOutcome(h.target, decision)
	switch {
	case !d.isOrdered(h.target):
		return
	case !begun && (decision.What == decide.Leave || !decision.Final(d.last)):
		outcome = engine.OutcomeUnbegun
	case decision.What == decide.Leave:
		return
	}
	h.lease.End(outcome)
	if outcome == engine.OutcomeHeld {
		d.reportBlocked(h.target, err)
	}
}

func (d *delivery) reportBlocked(t target, err error) {
	d.guard.reportBlocked(d.ctx, Event{Rule: t.rule.Name, Key: t.key, Task: d.task.Type(), Queue: d.queue, TaskID: d.id,
		Err: err})
}

func (g *Guard) reportBlocked(ctx context.Context, e Event) {
	g.log.Warn("automutex: a task in order is archived and holds its key: run it again, or skip it", "rule", e.Rule, "key",
		e.Key, "task", tasknote.Of(e.Queue, e.TaskID))
	e.Kind = EventBlocked
	g.observe(ctx, e)
}

// endUntaken gives up the place of a task that ended without a key for its ordered lock. After an error, or if
// it holds its key now, a look finds that.
func (d *delivery) endUntaken(decision decide.Decision) {
	if d.place.Nonce == "" || decision.What == decide.Leave || slices.ContainsFunc(d.targets, d.place.in) {
		return
	}
	if rule := d.guard.orderedRule(d.place.Key); rule != nil {
		if outcome := d.orderOutcome(target{rule: rule}, decision); outcome == engine.OutcomeDone ||
			outcome == engine.OutcomeLeft {
			d.withdraw()
		}
	}
}

func (d *delivery) orderOutcome(t target, decision decide.Decision) engine.Outcome {
	switch {
	case decision.What == decide.Done, decision.What == decide.Drop:
		return engine.OutcomeDone
	case decision.What == decide.Back:
		// the handler asked for that: the attempt is not spent, also if asynq counts it later, for a wait that is cut
		return engine.OutcomeUnbegun
	case !decision.Final(d.last):
		return engine.OutcomeStays
	case t.rule.OnArchive == Continue, d.late.left:
		return engine.OutcomeLeft
	}
	return engine.OutcomeHeld
}

// Orders returns which of the task types, and of the Tasks of the Client's rules, a rule with [Rule].InOrder is for,
// and that rule's OnArchive.
func (c *Client) Orders(taskTypes ...string) map[string]OnArchive {
	ordered := map[string]OnArchive{}
	for _, rule := range c.rules.rules {
		taskTypes = append(slices.Clip(taskTypes), rule.Task)
	}
	for _, taskType := range taskTypes {
		if rule := c.rules.ordered(taskType); rule != nil {
			ordered[taskType] = rule.OnArchive
		}
	}
	return ordered
}

func (rs *ruleSet) ordered(taskType string) *compiledRule {
	rules := rs.match(taskType)
	if i := slices.IndexFunc(rules, func(rule *compiledRule) bool { return rule.InOrder }); i >= 0 {
		return rules[i]
	}
	return nil
}

// Blocked is an ordered key whose next task does not run, and keeps those behind it waiting.
type Blocked struct {
	// Key is the lock's key.
	Key string
	// Task is that task, as "queue/id".
	Task string
	// Since is since when the key is held, or when a task that is to be retried last came to a worker.
	Since time.Time
	// Why says what keeps the task from running, and what ends that.
	Why string
	// Behind is how many tasks wait behind it.
	Behind int
}

// Blocked returns the keys under the Guard's prefix whose next task, in order, does not run: it is archived and holds
// its key ([HoldKey]), has failed and is retried later, is gone, or waits in a queue that is paused or that no server
// serves. Held keys come first, then those whose task has failed, the longest blocked first. A key without a task
// behind that one is only listed while it is held. Blocked walks all keys with SCAN: call it for operators, not for
// each task.
func (g *Guard) Blocked(ctx context.Context) ([]Blocked, error) {
	found, err := blocked.List(ctx, g.engine, g.tasks.Sighted())
	if err != nil {
		return nil, fmt.Errorf("automutex: Blocked: %w", err)
	}
	keys := make([]Blocked, len(found))
	for i, key := range found {
		keys[i] = Blocked(key)
	}
	return keys, nil
}

// SkipHead gives up the place of task ("queue/id"), the next task of key, as [Guard.Blocked] has them. The task is not
// changed: if asynq runs it later, it takes its old place again, and may hold the key again.
//
// If the task runs now, or is not the next one of the key, that is an error, and nothing has changed. After an error
// that Is [lock.ErrBackend] the task may be skipped or not.
func (g *Guard) SkipHead(ctx context.Context, key, task string) error {
	if err := blocked.Skip(ctx, g.engine, g.tasks.Inspector, key, task, 0); err != nil {
		return fmt.Errorf("automutex: SkipHead: %w", err)
	}
	e := Event{Kind: EventHeadSkipped, Key: key}
	e.Queue, e.TaskID, _ = tasknote.Parse(task)
	if rule := g.orderedRule(key); rule != nil {
		e.Rule = rule.Name
	}
	g.observe(ctx, e)
	g.log.Info("automutex: an operator has skipped the next task of an ordered key", "key", key, "task", task)
	return nil
}

// orderedRule is the rule that makes the key. A hashed scope tells only a type that the rule names, or that came here.
func (g *Guard) orderedRule(key string) (found *compiledRule) {
	text, _ := strings.CutPrefix(key, g.cfg.Prefix+":{")
	scope, _, _ := strings.Cut(strings.TrimSuffix(text, "}"), "|")
	if scope == keys.ControlScope {
		scope = keys.Controls
	}
	came := slices.DeleteFunc(g.served.List(), func(t string) bool { return keys.Scope(t) != scope })
	for _, rule := range g.rules.rules {
		switch {
		case !rule.InOrder:
		case keys.RuleHas(rule.Scope, rule.Task, scope) && rule.Scope != "":
			return rule
		case rule.Scope != "" || found != nil && len(rule.Task) <= len(found.Task):
		case keys.RuleHas("", rule.Task, scope), len(came) > 0 && slices.Contains(g.rules.match(came[0]), rule):
			found = rule
		}
	}
	return found
}

func (g *Guard) wakeInOrder(ctx context.Context, key string, item engine.OrderItem) engine.Fate {
	queue, id, _ := tasknote.Parse(item.Note)
	rule := g.orderedRule(key)
	if rule == nil {
		return engine.FateUnsure
	}
	return g.tasks.WakeInOrder(ctx, blocked.OrderedKey{
		Engine: g.engine, Key: orderedKey(key), Holds: rule.OnArchive == HoldKey,
		Archived: func(info *asynq.TaskInfo) {
			g.reportBlocked(ctx, Event{Rule: rule.Name, Key: key, Task: info.Type, Queue: queue, TaskID: id})
		},
		Stands: func(why string) {
			g.log.Warn("automutex: a key in order stands, since its next task "+why, "rule", rule.Name, "key", key, "task",
				item.Note)
		},
	}, item)
}

// After an error lookInOrder counts the task as being there.
func (c *Client) lookInOrder(ctx context.Context, key engine.Ref, item engine.OrderItem, rule *compiledRule) {
	seen, err := c.tasks.Look(ctx, blocked.OrderedKey{Engine: c.engine, Key: key, Holds: rule.OnArchive == HoldKey}, item)
	if !seen && errors.Is(err, asynq.ErrQueueNotFound) {
		c.told.Do(func() {
			c.log.Warn("automutex: Config.Inspector does not see the queue of a task in order, so a full key counts tasks of "+
				"producers that have died; "+
				inspectorHint, "key", key.Key, "task", item.Note)
		})
	}
	if err != nil {
		c.log.Debug("automutex: a place in order could not be looked for", "key", key.Key, "task", item.Note, "error", err)
	}
}

package automutex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// Rule declares which tasks take turns: the task type, the payload fields that the key is made from, how many may run
// at once, and what happens to a task that did not get its lock. Only Task is required.
//
// Without On, OnHeaders and Key there is one lock for the whole Scope.
type Rule struct {
	// Name names the rule in errors, events and logs, and for [LeaseOf]. Names are unique. Empty means Task, and then
	// Task#2, Task#3 and so on for further ones with that Task.
	Name string

	// Task is a task type, or a prefix of task types. It matches as a pattern of asynq's ServeMux does: the rules whose
	// Task equals the type apply, otherwise those with the longest Task that the type begins with, and none with a shorter
	// one. Several rules with the same Task need a Scope each. To leave a longer type out of a rule, declare a rule for
	// that type whose Key returns [NoLock].
	Task string

	// On lists the payload fields that the key is made from, as [Fields] takes them.
	On []string

	// OnHeaders lists the task headers that the key is made from, after the fields of On. Names are compared exactly, and
	// a value gives the same part as a string of a payload. A task without one, or with one that is empty or not valid
	// UTF-8, is archived with a [*KeyError].
	OnHeaders []string

	// Key computes the parts of the key, in place of On and OnHeaders. See [KeyFunc] for its errors.
	Key KeyFunc

	// Optional has a task take no lock of this rule if a field of On or a header of OnHeaders is missing, null or empty,
	// or if the payload is empty and On is set. Otherwise such a task is archived with a [*KeyError]. A name in another
	// letter case is not missing.
	Optional bool

	// Payload is a value of the Go type that the payload, or the result of [Config].Decode, is decoded into. With it, New
	// refuses a path in On or LimitField for which that type has no JSON field. nil means that paths are not checked.
	Payload any

	// Scope is the first part of the key. Rules with the same Scope share their locks, and must have the same Limit, TTL,
	// Rate, LeaveIdle and Fence. Empty means the task's own type: if Task is a prefix, each type that it matches has locks
	// of its own.
	//
	// A task to which several rules apply takes all their locks. The order is the same for all tasks, so that tasks cannot
	// deadlock: scopes in the order in which the rules first name them, and keys of one scope in byte order. The task
	// takes equal keys once, under the rule declared first.
	Scope string

	// Limit is how many tasks may hold one key at once. 0 means 1, a mutex; with a Rate it must be said: 1, or [Unlimited]
	// for a Rate alone. Negative numbers are refused.
	Limit int

	// LimitOf returns the limit for the key of a task, such as that of the tenant's plan. Set one of Limit, LimitOf and
	// LimitField. Many goroutines call LimitOf at once, with the task as a Key gets it. If two tasks of one key differ, as
	// while a plan changes, the task that asks for a slot applies its limit, and so does the one whose end gives the slot
	// to a waiter. So one whose own limit is 1 may run beside others. A result below 1 archives the task.
	// An error has the same effect as that of a [KeyFunc]. A limit that an operator sets wins; see [Guard.Controls].
	LimitOf func(context.Context, *asynq.Task) (int, error)

	// LimitField names the payload field that has the limit. nil means none.
	LimitField *LimitField

	// LeaveIdle lets tasks start above the Limit while so many workers of their server stay idle: the key borrows workers
	// that nobody else needs. A worker in which a task waits under Park or Retry counts as idle. Keys of one Scope share
	// evenly what they borrow, by their limits, and an operator's limit or pause wins. 0 means that none does. It needs
	// [Guard.ServerConfig] and a Limit, LimitOf or LimitField, and is refused with Unlimited, InOrder, Fence and
	// [Replace].
	LeaveIdle int

	// TTL is the length of a lease, which is renewed while the handler runs: it bounds how long a key stays taken after
	// its process has died, and not how long a handler may run. 0 means 30 seconds; less than 100 milliseconds and more
	// than ten years are refused.
	TTL time.Duration

	// Wait is the longest time that a task waits in line, in its worker, before the policy applies. 0 means no wait; for
	// [Replace] it means a TTL. Under [Park] it has no effect. Time in line counts against the task's Timeout (30 minutes
	// unless the task was enqueued with another), so the Timeout should cover the Wait and the work. A wait ends a second
	// before the task's deadline at the latest. Less than a millisecond is refused.
	Wait time.Duration

	// MaxHold bounds how long a handler may hold the lock, from its start: then its context ends, and the key is free a
	// TTL later at most. 0 means no bound; less than 100 ms is refused.
	MaxHold time.Duration

	// Cooldown is the least time between the start of a successful run and the next start for the key; tasks that already
	// run go on. A release that fails until the lease ends sets none. 0 means none; less than a millisecond and more than
	// ten years are refused.
	Cooldown time.Duration

	// Rate bounds how often handlers start for one key. The zero value is no bound.
	Rate Rate

	// RateOf returns the rate for the key of a task, in place of Rate; the zero Rate is none. It is called as LimitOf is,
	// and its errors are those of LimitOf. A Rate that New would refuse archives the task. If two tasks of one key differ,
	// that of the last ask applies, also to one that looks at a later key before it takes its first.
	RateOf func(context.Context, *asynq.Task) (Rate, error)

	// Cost returns for how many starts of the Rate a task counts, such as an upstream's tokens. The task starts when the
	// gate is open, whatever its cost, and closes the gate for its cost; 0 leaves the gate open.
	// A cost takes no more slots of the Limit. Errors are those of LimitOf; so are costs below 0, and those that close the
	// gate for more than ten years. nil means 1. It needs Rate or RateOf.
	Cost func(context.Context, *asynq.Task) (int, error)

	// InOrder runs the tasks of a key one at a time, in the order in which their enqueueing through a [Client] returned,
	// also through failures: a task that failed and will be retried keeps its key. Make the Client with [NewClient] from
	// the same Config. A task that was enqueued otherwise joins the order when it comes to a worker. Limit is 1 and Busy
	// is Park; both may be left out. docs/guarantees.md has what InOrder does not promise.
	InOrder bool

	// StartWithin bounds how long after its enqueueing, or its asynq.ProcessAt, a task may start: the first time, not when
	// it comes back. It needs a [Client]. 0 means no bound; less than a millisecond is refused. See also [StartBy].
	StartWithin time.Duration

	// Late is what happens to a task that did not start in time: [Archive], also as the zero value, [Skip] or
	// [AfterFailure], whose function gets a [*BusyError] with [ReasonLate], also if the key is free, and has the task
	// archived if it returns that. An archived task leaves its order, also under [HoldKey].
	Late Policy

	// OnArchive is what happens to the key of an ordered task that asynq archives. The zero value is [HoldKey].
	OnArchive OnArchive

	// MaxQueued bounds how many tasks of a key are enqueued and not done. A Client refuses further ones with a
	// [*FullError]. 0 means no bound; negative numbers are refused. It needs InOrder.
	MaxQueued int

	// Fence gives each lease of the rule a fence, which [Fence] returns. It needs a Limit of 1, and costs a key that
	// nobody else wants a dearer command.
	Fence bool

	// Busy is what happens to a task that did not get its lock. The zero value is [Park].
	Busy Policy
}

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

// compiledRule is a rule with its defaults filled in, ready to be applied.
type compiledRule struct {
	Rule
	index int // place in Config.Rules
	rank  int // of the rule's scope in the order in which locks are taken: the index of the first rule that names it

	fields    *keys.Fields   // the paths of On; nil without any
	limitPath *keys.Fields   // of LimitField
	whole     sync.Once      // warnWhole
	request   engine.Request // what all locks of the rule have in common
}

// where names the rule in an error or a log line.
func (c *compiledRule) where() string { return ruleAt(c.Name, c.index) }

// scope is that of the rule's locks for a task of that type.
func (c *compiledRule) scope(taskType string) string { return cmp.Or(c.Scope, taskType) }

// readsPayload reports whether the rule makes its key or its bounds from the payload. A rule with a Key may do so; one
// with OnHeaders alone, or for a whole scope, does not.
func (c *compiledRule) readsPayload() bool {
	return c.Key != nil || c.isLimitOfTask() || c.RateOf != nil || c.Cost != nil || len(c.On) > 0
}

func (c *compiledRule) isLimitOfTask() bool { return c.LimitOf != nil || c.LimitField != nil }

// compile checks the whole configuration and makes the rules ready. The error joins a *FieldError for each mistake.
func compile(cfg Config) (*ruleSet, error) {
	rules := make([]*compiledRule, len(cfg.Rules))
	for i, rule := range cfg.Rules {
		rules[i] = &compiledRule{Rule: rule, index: i}
	}
	nameRules(rules)

	mistakes := &fieldErrors{}
	cfg.check(mistakes)
	for _, rule := range rules {
		mistakes.rule = rule
		rule.check(mistakes)
		rule.fillDefaults()
	}
	checkTogether(rules, mistakes)
	if len(mistakes.all) > 0 {
		return nil, errors.Join(mistakes.all...)
	}
	rs := newRuleSet(rules)
	rs.log = cmp.Or(cfg.Logger, slog.Default())
	rs.secret, rs.decode = cfg.HashKeys, cfg.Decode
	return rs, nil
}

func nameRules(rules []*compiledRule) {
	unnamed := map[string]int{}
	for _, rule := range rules {
		if rule.Name != "" {
			continue
		}
		rule.Name = rule.Task
		if unnamed[rule.Task]++; unnamed[rule.Task] > 1 {
			rule.Name = fmt.Sprintf("%s#%d", rule.Task, unnamed[rule.Task])
		}
	}
}

func (c *compiledRule) fillDefaults() {
	c.Limit, c.TTL = cmp.Or(c.Limit, 1), cmp.Or(c.TTL, lock.DefaultTTL)
	if c.Late == Park {
		c.Late = Archive
	}
	c.On, c.OnHeaders = slices.Clone(c.On), slices.Clone(c.OnHeaders) // the caller may change his
	// check has reported what is malformed.
	if c.LimitField != nil {
		field := *c.LimitField
		c.LimitField = &field
		c.limitPath, _ = keys.Parse([]string{c.LimitField.Path})
	}
	if len(c.On) > 0 {
		c.fields, _ = keys.Parse(c.On)
	}
	c.request = engine.Request{Ref: engine.Ref{Limit: 1, Rated: c.RateOf == nil}, Name: c.Name, TTL: engine.WholeMS(c.TTL),
		Fenced: c.Fence, Notes: true} // MaxHold counts from when the handler starts
	c.request.Pace, _ = c.Rate.pace()
}

// check adds the mistakes in the rule by itself, as declared.
func (c *compiledRule) check(mistakes *fieldErrors) {
	switch trimmed := strings.TrimSpace(c.Task); {
	case trimmed == "":
		mistakes.addf("Task", "%q is blank; name the task type that the rule is for, or its beginning", c.Task)
	case trimmed != c.Task:
		mistakes.addf("Task", "%q begins or ends with a blank, and would match no task; leave it out", c.Task)
	case strings.Contains(c.Task, "*"):
		mistakes.addf("Task", "%q has a *: a Task is a type or its beginning, and needs none; leave it out", c.Task)
	}
	if c.Key != nil && len(c.On)+len(c.OnHeaders) > 0 {
		mistakes.addf("Key", "excludes On and OnHeaders; keep the one or the other")
	}
	c.checkOn(mistakes)
	c.checkHeaders(mistakes)

	c.checkLimit(mistakes)
	for _, d := range []struct {
		field       string
		value       time.Duration
		zero        string
		least, most time.Duration
	}{
		{"TTL", c.TTL, "for " + lock.DefaultTTL.String(), engine.MinTTL, inside.MaxTTL},
		{"Wait", c.Wait, "to not wait in line", time.Millisecond, math.MaxInt64},
		{"MaxHold", c.MaxHold, "for no bound", engine.MinTTL, math.MaxInt64},
		{"StartWithin", c.StartWithin, "for no bound", time.Millisecond, math.MaxInt64},
		{"Cooldown", c.Cooldown, "for none", time.Millisecond, inside.MaxTTL},
	} {
		switch {
		case d.value != 0 && d.value < d.least:
			mistakes.addf(d.field, "%s is too short; use 0 %s, or at least %s%s", d.value, d.zero, d.least,
				printable.MeantUnit(d.value))
		case d.value > d.most:
			mistakes.addf(d.field, "%s is too long; at most %s", d.value, d.most)
		}
	}
	_, wrong := c.Rate.pace()
	mistakes.add("Rate", -1, wrong)
	if c.RateOf != nil && c.Rate != (Rate{}) {
		mistakes.addf("RateOf", "excludes Rate, which is %s; keep the one or the other", c.Rate)
	}
	if c.Cost != nil && !c.hasRate() {
		mistakes.addf("Cost", "counts starts of a rate, and the rule has none; give it one, or leave Cost out")
	}
	if c.Optional && len(c.On)+len(c.OnHeaders) == 0 {
		mistakes.addf("Optional", "needs On or OnHeaders, whose fields may be missing; a Key returns NoLock instead")
	}
	c.checkOrder(mistakes)
	if c.Fence && (c.Limit > 1 || c.isLimitOfTask()) {
		mistakes.addf("Fence", "needs a Limit of 1: fences of holders at the same time protect nothing; leave Fence or "+
			"the limit out")
	}
	mistakes.add("Busy", -1, c.Busy.check())
	mistakes.add("Late", -1, c.Late.checkLate())
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
			"the limit out")
	}
	if c.Busy != Park {
		mistakes.addf("InOrder", "needs the policy park, not %s: a task that comes before its turn keeps its place; leave "+
			"Busy out", c.Busy)
	}
}

func (c *compiledRule) hasRate() bool { return c.Rate != (Rate{}) || c.RateOf != nil }

func (c *compiledRule) checkLimit(mistakes *fieldErrors) {
	if c.hasRate() && c.Limit == 0 && !c.isLimitOfTask() && !c.InOrder {
		mistakes.addf("Limit", "is 0, and the rule has a Rate: say 1 if its tasks also run one at a time, or "+
			"automutex.Unlimited if only the Rate bounds them")
	}
	if c.LimitOf != nil && c.Limit != 0 {
		mistakes.addf("LimitOf", "excludes Limit, which is %d; keep the one or the other", c.Limit)
	}
	if c.LimitField != nil {
		if c.Limit != 0 {
			mistakes.addf("LimitField", "excludes Limit, which is %d; keep the one or the other", c.Limit)
		}
		if c.LimitOf != nil {
			mistakes.addf("LimitField", "excludes LimitOf; keep the one or the other")
		}
		mistakes.add("LimitField", -1, c.LimitField.check(c.Payload))
	}
	c.checkLeaveIdle(mistakes)
	if c.Limit < 0 {
		mistakes.addf("Limit", "%d is negative; use 1 for a mutex, more for a semaphore", c.Limit)
	}
}

func (c *compiledRule) checkLeaveIdle(mistakes *fieldErrors) {
	switch {
	case c.LeaveIdle < 0:
		mistakes.addf("LeaveIdle", "%d is negative; use 0 for none above the Limit, or how many workers stay idle",
			c.LeaveIdle)
	case c.LeaveIdle == 0:
	case c.InOrder, c.Fence, c.Busy.kind == policyReplace:
		mistakes.addf("LeaveIdle", "excludes InOrder, Fence and the policy replace, whose tasks never run beside another; "+
			"leave it or them out")
	case c.Limit == Unlimited:
		mistakes.addf("LeaveIdle", "excludes Unlimited: no task is above that; leave the one or the other out")
	case c.Limit == 0 && !c.isLimitOfTask():
		mistakes.addf("LeaveIdle", "needs a Limit that is said; say 1 for tasks that run one at a time when workers are "+
			"needed")
	}
}

func (c *compiledRule) checkOn(mistakes *fieldErrors) {
	for i, path := range c.On {
		bare, _ := keys.CutOptional(path)
		segments, err := keys.ParsePath(bare)
		if err == nil && slices.Index(c.On, path) < i {
			err = errors.New("is there twice; leave one out")
		}
		if err == nil && c.Payload != nil {
			err = keys.CheckType(c.Payload, segments)
		}
		if err != nil {
			mistakes.add("On", i, fmt.Errorf("%q %w", path, err))
		}
	}
}

func (c *compiledRule) checkHeaders(mistakes *fieldErrors) {
	for i, name := range c.OnHeaders {
		switch {
		case name == "":
			mistakes.add("OnHeaders", i, errors.New("is empty; name a header, or leave it out"))
		case slices.Index(c.OnHeaders, name) < i:
			mistakes.add("OnHeaders", i, fmt.Errorf("%q is there twice; leave one out", name))
		}
	}
}

// isAgain reports whether other is the same rule, maybe by another Name.
func (c *compiledRule) isAgain(other *compiledRule) bool {
	named := other.Rule
	named.Name = c.Name
	return c != other && reflect.DeepEqual(c.Rule, named)
}

// sharedField is the value of a field that is the same in all rules of a scope.
type sharedField struct {
	field string
	value any // comparable
}

func (c *compiledRule) shared() []sharedField {
	return []sharedField{
		{"LimitOf", c.LimitOf != nil}, {"LimitField", c.LimitField != nil}, {"InOrder", c.InOrder},
		{"OnArchive", c.OnArchive}, {"MaxQueued", c.MaxQueued},
		{"Limit", c.Limit}, {"TTL", c.TTL}, {"Fence", c.Fence}, {"Rate", c.Rate},
		{"RateOf", c.RateOf != nil}, {"LeaveIdle", c.LeaveIdle},
	}
}

// checkTogether adds the mistakes that several rules make together, such as a Name that two of them have. Defaults are
// filled in.
func checkTogether(rules []*compiledRule, mistakes *fieldErrors) {
	names, tasks, scopes := map[string]*compiledRule{}, map[string]int{}, map[string]*compiledRule{}
	ordered := map[string]*compiledRule{}
	for _, rule := range rules {
		tasks[rule.Task]++
	}
	for _, rule := range rules {
		mistakes.rule = rule
		if other := ordered[rule.Task]; rule.InOrder && other != nil {
			mistakes.addf("InOrder", "is set in %s too, for the same Task: a task has one place in one order; leave one out",
				other.where())
		} else if rule.InOrder {
			ordered[rule.Task] = rule
		}
		if first := names[rule.Name]; first != nil {
			mistakes.addf("Name", "is that of Rules[%d] too; names are unique", first.index)
		} else {
			names[rule.Name] = rule
		}
		if rule.Scope == "" && tasks[rule.Task] > 1 {
			if slices.ContainsFunc(rules, rule.isAgain) {
				mistakes.addf("Task", "the whole rule is there twice; leave one out")
			} else {
				mistakes.addf("Scope", "is empty, and %d rules have the Task %q; give each of them a Scope", tasks[rule.Task],
					rule.Task)
			}
			continue
		}
		scope := rule.scope(rule.Task)
		first := scopes[scope]
		if first == nil {
			scopes[scope] = rule
			continue
		}
		theirs := first.shared()
		for i, our := range rule.shared() {
			if their := theirs[i]; our.value != their.value {
				mistakes.addf(our.field, "is %v, but %s has %v for the same scope %q; one scope has one %s",
					our.value, first.where(), their.value, scope, our.field)
			}
		}
	}
}

package trust

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// The queues: those of the tasks that are enqueued as often as they are asked
// for, and the one of package unique.
var soakQueues = []string{"red", "green", "blue"}

const soakOnceQueue = "once"

const (
	// soakTTL of leases: longer than all faults together that hit one worker
	// at a time, which is what keeps leases from being lost.
	soakTTL = 3 * time.Second
	// soakBriefTTL is that of soakBrief, whose tasks may take longer than that: their
	// leases have to be renewed, and are lost at times.
	soakBrief    = "turn:brief"
	soakBriefTTL = time.Second
	// soakCooldown of turn:cool.
	soakCooldown = 500 * time.Millisecond
)

// soakKind is one way to take turns.
type soakKind struct {
	task  string
	share int
	ids   int // entities; few of them are much asked for
	rules []automutex.Rule
	once  *unique.Rule // how it is enqueued; nil: as often as one likes
}

// policy is the rule's, of kinds with one rule.
func (k soakKind) policy() automutex.Policy {
	if len(k.rules) == 1 {
		return k.rules[0].Busy
	}
	return automutex.Retry
}

// turn is a kind with one rule on the field id.
func turn(task string, share, ids int, rule automutex.Rule) soakKind {
	rule.Task, rule.On, rule.TTL, rule.Busy = task, []string{"id"}, cmp.Or(rule.TTL, soakTTL), cmp.Or(rule.Busy, automutex.Retry)
	rule.Fence = rule.Limit <= 1 && len(task)%2 == 0 // the others take their keys as strings
	return soakKind{task: task, share: share, ids: ids, rules: []automutex.Rule{rule}}
}

// onceOnly is such a kind whose tasks are enqueued through package unique.
func onceOnly(task string, share, ids int, rule automutex.Rule, once unique.Rule) soakKind {
	k := turn(task, share, ids, rule)
	once.Task, once.On, once.Queue = task, []string{"id"}, soakOnceQueue
	k.once = &once
	return k
}

// soakAfter is the policy of turn:after; one value, since policies are compared.
var soakAfter = automutex.AfterFailure(afterSoak)

// soakKinds are all policies, and all ways to enqueue once.
var soakKinds = []soakKind{
	{task: "plain", share: 4, ids: 50},
	turn("turn:retry", 8, 400, automutex.Rule{Busy: automutex.Retry}),
	turn("turn:wait", 10, 200, automutex.Rule{Busy: automutex.Retry, Wait: 3 * time.Second}),
	turn(soakBrief, 3, 100, automutex.Rule{Busy: automutex.Retry, TTL: soakBriefTTL, Wait: 3 * time.Second}),
	turn("turn:in", 4, 400, automutex.Rule{Busy: automutex.RetryIn(time.Second)}),
	turn("turn:skip", 8, 60, automutex.Rule{Busy: automutex.Skip}),
	turn("turn:archive", 5, 100, automutex.Rule{Busy: automutex.Archive}),
	turn("turn:fail", 5, 100, automutex.Rule{Busy: automutex.Fail}),
	turn("turn:park", 10, 60, automutex.Rule{Busy: automutex.Park}),
	turn("turn:parks", 6, 20, automutex.Rule{Busy: automutex.Park, Limit: 3}),
	turn("turn:newest", 6, 60, automutex.Rule{Busy: automutex.Replace, Wait: 3 * time.Second}),
	turn("turn:allow", 4, 20, automutex.Rule{Busy: automutex.Allow}),
	turn("turn:after", 4, 60, automutex.Rule{Busy: soakAfter}),
	turn("turn:three", 5, 20, automutex.Rule{Busy: automutex.Retry, Limit: 3, Wait: time.Second}),
	turn("turn:cool", 4, 40, automutex.Rule{Cooldown: soakCooldown, Busy: automutex.Skip}),
	{task: "transfer", share: 8, ids: 600, rules: []automutex.Rule{
		{Task: "transfer", Name: "from", Scope: "account", On: []string{"id"}, TTL: soakTTL, Busy: automutex.Retry, Wait: 2 * time.Second},
		{Task: "transfer", Name: "to", Scope: "account", On: []string{"to"}, TTL: soakTTL, Busy: automutex.Park},
		{Task: "transfer", Name: "bank", Scope: "bank", TTL: soakTTL, Limit: 8, Busy: automutex.Retry, Wait: 2 * time.Second},
	}},
	onceOnly("once:done", 5, 100, automutex.Rule{Busy: automutex.Retry, Wait: 2 * time.Second}, unique.Rule{}),
	onceOnly("once:start", 5, 100, automutex.Rule{Busy: automutex.Retry, Wait: 2 * time.Second}, unique.Rule{Until: unique.UntilStart, Duplicate: unique.Join}),
	onceOnly("once:window", 3, 100, automutex.Rule{Busy: automutex.Retry, Wait: 2 * time.Second}, unique.Rule{Until: unique.For(300 * time.Millisecond)}),
	onceOnly("once:newest", 4, 100, automutex.Rule{}, unique.Rule{Duplicate: unique.Replace}),
	onceOnly("once:settled", 3, 40, automutex.Rule{}, unique.Rule{
		Until: unique.UntilStart, Duplicate: unique.Postpone(time.Second), MaxPostpone: 3 * time.Second,
	}),
}

func soakKindOf(task string) soakKind {
	for _, k := range soakKinds {
		if k.task == task {
			return k
		}
	}
	panic("no kind of task is called " + task)
}

// supersedes tells whether a task that has not started may have to make room for
// a newer one.
func (k soakKind) supersedes() bool {
	return k.once != nil && (k.once.Duplicate == unique.Replace || k.once.Duplicate == unique.Postpone(time.Second))
}

func soakRules() (rules []automutex.Rule, once []unique.Rule) {
	for _, k := range soakKinds {
		rules = append(rules, k.rules...)
		if k.once != nil {
			once = append(once, *k.once)
		}
	}
	return rules, once
}

// soakLimit is how many may be at work on a key: 0 where that is any number.
func soakLimit(key string) int {
	_, scope, _ := strings.Cut(key, "{")
	scope, _, _ = strings.Cut(strings.TrimSuffix(scope, "}"), "|")
	for _, k := range soakKinds {
		for _, r := range k.rules {
			if r.Scope == scope || r.Scope == "" && r.Task == scope {
				if r.Busy == automutex.Allow {
					return 0
				}
				return max(1, r.Limit)
			}
		}
	}
	panic("no rule makes the key " + key)
}

// What handlers say, for the books to find in the archive.
var (
	errSoakFails = errors.New("soak: the handler fails")
	errSoakAfter = errors.New("soak: AfterFailure fails")
)

// afterSoak answers as the payload says.
func afterSoak(ctx context.Context, t *asynq.Task, busy *automutex.BusyError) error {
	var task soakTask
	if err := json.Unmarshal(t.Payload(), &task); err != nil {
		return err
	}
	switch task.After {
	case "nothing":
		if busy.SameTask {
			return busy
		}
		soakWorkerOf(ctx).ledger.note(dropped, task.N)
		return nil
	case "skip":
		return errors.Join(errSoakAfter, asynq.SkipRetry)
	case "fail":
		return errSoakAfter
	}
	return busy
}

package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/claim"
	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/tasktype"
	"github.com/automutex/automutex/unique"
)

// Describe returns rules as data, named as automutex.New names them.
func Describe(rules []automutex.Rule) []fleet.Rule {
	return automutex.DescribeRules(inside.Pass{}, rules)
}

// RuleName returns the name that the i-th rule has, or that automutex.New gives it.
func RuleName(rules []automutex.Rule, i int) string { return Describe(rules)[i].Name }

// RulesFor returns the indexes of the rules that apply to a task type.
func RulesFor(rules []automutex.Rule, taskType string) []int {
	var byTask tasktype.Map[[]int]
	for i, rule := range rules {
		before, _ := byTask.At(rule.Task)
		byTask.Add(rule.Task, append(before, i))
	}
	indexes, _ := byTask.Find(taskType)
	return indexes
}

// IsControlOf reports whether a control with that target is for keys of a rule.
func IsControlOf(rule automutex.Rule, prefix, target string) bool {
	return Describe([]automutex.Rule{rule})[0].IsFor(ScopeOf(Key(prefix, target)))
}

// IsKeyOf reports whether a lock's key is one that a rule makes.
func IsKeyOf(rule automutex.Rule, prefix, key string) bool {
	return strings.HasPrefix(key, prefix+":{") && Describe([]automutex.Rule{rule})[0].Has(ScopeOf(key))
}

// FromFleet makes rules of what processes say they run. What a function of the program decides is not known: a rule with
// a Key gives no lock, and a policy that FromFleet does not know is AfterFailure.
func FromFleet(described []fleet.Rule) []automutex.Rule {
	rules := make([]automutex.Rule, len(described))
	for i, d := range described {
		rules[i] = automutex.Rule{
			Name: d.Name, Task: d.Task, Scope: d.Scope, On: d.On, OnHeaders: d.OnHeaders,
			Limit: d.Limit, TTL: d.TTL, Wait: d.Wait, MaxHold: d.MaxHold, Cooldown: d.Cooldown,
			Rate: rateOf(d.Rate), Busy: policyOf(d.Busy), InOrder: d.InOrder, Fence: d.Fence, Optional: d.Optional,
		}
		if d.Computed {
			rules[i].On, rules[i].OnHeaders = nil, nil
			rules[i].Key = func(context.Context, *asynq.Task) ([]string, error) { return nil, automutex.NoLock }
		}
	}
	return rules
}

// policyOf returns the policy that Describe has written.
func policyOf(text string) automutex.Policy {
	for _, p := range []automutex.Policy{
		automutex.Retry, automutex.Skip, automutex.Archive, automutex.Fail, automutex.Park, automutex.Replace, automutex.Allow,
	} {
		if p.String() == text {
			return p
		}
	}
	if after, timed := strings.CutPrefix(text, "retry in "); timed {
		if delay, err := time.ParseDuration(after); err == nil {
			return automutex.RetryIn(delay)
		}
	}
	return automutex.AfterFailure(func(_ context.Context, _ *asynq.Task, busy *automutex.BusyError) error { return busy })
}

// rateOf returns the rate that Describe has written, and none for another text.
func rateOf(text string) (r automutex.Rate) {
	var per string
	_, err := fmt.Sscanf(strings.ReplaceAll(text, ",", ""), "%d per %s burst %d", &r.Starts, &per, &r.Burst)
	if err == nil {
		r.Per, err = time.ParseDuration(per)
	}
	if err != nil {
		return automutex.Rate{}
	}
	return r
}

// UniqueRules returns rules of package unique as data, and as automutex.NewKeyMaker takes them.
func UniqueRules(rules []unique.Rule) (described []fleet.Rule, guarded []automutex.Rule) {
	for _, r := range rules {
		described = append(described, fleet.Rule{
			Name: r.Task, Task: r.Task, Scope: r.Scope, On: r.On, OnHeaders: r.OnHeaders, Computed: r.Key != nil, Optional: r.Optional,
			Queue: cmp.Or(r.Queue, "default"), Until: r.Until.String(), Duplicate: r.Duplicate.String(),
		})
		guarded = append(guarded, automutex.Rule{Task: r.Task, On: r.On, OnHeaders: r.OnHeaders, Key: r.Key, Optional: r.Optional, Payload: r.Payload, Scope: r.Scope})
	}
	return described, guarded
}

// Unique is what a producer makes of a task that it enqueues once.
type Unique struct {
	Rule fleet.Rule
	Key  string // Redis key of the lock
	// TaskID or Claim keeps duplicates out: the ID of the task, or the Redis key of its claim. The other one is empty.
	TaskID, Claim string
}

// UniqueOf returns what a producer with these rules makes of a task; nil if no rule matches, the rule's Key answers
// automutex.NoLock, or the task lacks a field of an Optional rule. keys is of the same rules. The error says why no key
// can be made: a producer then enqueues nothing.
func UniqueOf(ctx context.Context, keys *automutex.KeyMaker, rules []fleet.Rule, t *asynq.Task) (*Unique, error) {
	var byTask tasktype.Map[fleet.Rule]
	for _, r := range slices.Backward(rules) { // a producer has one rule for each Task: the first
		byTask.Add(r.Task, r)
	}
	names, err := keys.Keys(ctx, t)
	rule, ok := byTask.Find(t.Type())
	if err != nil || !ok || len(names) == 0 {
		return nil, err
	}
	u := &Unique{Rule: rule, Key: names[0]}
	if rule.Until == unique.UntilDone.String() && (rule.Duplicate == unique.Reject.String() || rule.Duplicate == unique.Join.String()) {
		u.TaskID = claim.TaskID(u.Key)
	} else {
		u.Claim = claims.Key(u.Key)
	}
	return u, nil
}

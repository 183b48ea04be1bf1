package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/mark"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/tasktype"
	"github.com/automutex/automutex/unique"
)

// Describe returns rules as data, named as automutex.New names them.
func Describe(rules []automutex.Rule) []fleet.Rule {
	var file struct {
		Rules []fleet.Rule `json:"rules"`
	}
	text, err := json.Marshal(automutex.Config{Rules: rules})
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil {
		panic(err) // both have the same form
	}
	return file.Rules
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
			Name: d.Name, Task: d.Task, Scope: d.Scope, On: d.On, OnHeaders: d.OnHeaders, TTL: time.Duration(d.TTL), Wait: time.Duration(d.Wait),
			MaxHold: time.Duration(d.MaxHold), Cooldown: time.Duration(d.Cooldown), Busy: policyOf(d.BusyShown()), InOrder: d.InOrder, Fence: d.Fence, Optional: d.Optional,
		}
		if rules[i].Limit, _ = strconv.Atoi(d.LimitShown()); d.LimitShown() == "unlimited" {
			rules[i].Limit = automutex.Unlimited
		}
		if d.Rate != nil {
			rules[i].Rate = automutex.Rate{Starts: d.Rate.Starts, Per: time.Duration(d.Rate.Per), Burst: d.Rate.Burst}
		}
		if d.Computed {
			rules[i].On, rules[i].OnHeaders = nil, nil
			rules[i].Key = func(context.Context, *asynq.Task) ([]string, error) { return nil, automutex.NoLock }
		}
	}
	return rules
}

// policyOf returns the policy with that text.
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

// UniqueRule is a rule of package unique as data.
type UniqueRule struct {
	fleet.Rule
	Queue, Until, Duplicate string
}

// UntilShown is how long a task blocks its key.
func (r UniqueRule) UntilShown() string {
	return printable.Timed(strings.TrimPrefix(r.Until, "until "))
}

// UniqueRules returns rules of package unique as data, and as automutex.NewKeyMaker takes them.
func UniqueRules(rules []unique.Rule) (described []UniqueRule, guarded []automutex.Rule) {
	for _, r := range rules {
		described = append(described, UniqueRule{
			fleet.Rule{Name: r.Task, Task: r.Task, Scope: r.Scope, On: r.On, OnHeaders: r.OnHeaders, Computed: r.Key != nil, Optional: r.Optional},
			cmp.Or(r.Queue, "default"), r.Until.String(), r.Duplicate.String(),
		})
		guarded = append(guarded, automutex.Rule{Task: r.Task, On: r.On, OnHeaders: r.OnHeaders, Key: r.Key, Optional: r.Optional, Payload: r.Payload, Scope: r.Scope})
	}
	return described, guarded
}

// Unique is what a producer makes of a task that it enqueues once.
type Unique struct {
	Rule UniqueRule
	Key  string // Redis key of the lock
	// TaskID or Claim keeps duplicates out: the ID of the task, or the Redis key of its claim. The other one is empty.
	TaskID, Claim string
}

// UniqueOf returns what a producer with these rules makes of a task; nil if no rule matches, the rule's Key answers
// automutex.NoLock, or the task lacks a field of an Optional rule. keys is of the same rules. The error says why no key
// can be made: a producer then enqueues nothing.
func UniqueOf(ctx context.Context, keys *automutex.KeyMaker, rules []UniqueRule, t *asynq.Task) (*Unique, error) {
	var byTask tasktype.Map[UniqueRule]
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
		u.TaskID = mark.TaskID(u.Key)
	} else {
		u.Claim = mark.Key(u.Key)
	}
	return u, nil
}

package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keytext"
	"github.com/automutex/automutex/internal/nearest"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/tasktype"
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

// FromFleet makes rules of what processes say they run. What a function of the program decides is not known: a
// rule with a Key gives no lock, and a policy that FromFleet does not know is AfterFailure.
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
			rules[i].Key = func(context.Context, *asynq.Task) ([]string, error) {
				return nil, automutex.NoLock
			}
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
	if _, err := fmt.Sscanf(strings.ReplaceAll(text, ",", ""), "%d per %s burst %d", &r.Starts, &per, &r.Burst); err != nil {
		return automutex.Rate{}
	}
	var err error
	if r.Per, err = time.ParseDuration(per); err != nil {
		return automutex.Rate{}
	}
	return r
}

// Unknown says why no task has a target, as far as rules tell; empty if a task may have it.
// meant is the target that was probably meant; empty without one. hashed: the values of keys
// are hashed.
func Unknown(rules []fleet.Rule, hashed bool, prefix, target string) (why, meant string) {
	if len(rules) == 0 {
		return "", ""
	}
	name := InBraces(Key(prefix, target))
	scope, values, valued := strings.Cut(name, "|")
	var its []fleet.Rule
	for _, r := range rules {
		// A scope alone may also be as the program has it: neither escaped nor hashed.
		if r.Has(scope) || !valued && (r.IsFor(scope) || r.Has(keytext.Scope(scope))) {
			its = append(its, r)
		}
	}
	if len(its) == 0 {
		return fmt.Sprintf("No rule has the scope of %s.", printable.Short(name)), meantBy(rules, scope, values)
	}
	beginning := func(r fleet.Rule) bool {
		its, byType := r.ScopeText()
		return byType && its == scope && strings.HasSuffix(scope, ":")
	}
	parts := strings.Split(values, "|")
	isHash := len(parts) == 1 && strings.HasPrefix(values, "~")
	fits := func(r fleet.Rule) bool { return r.Computed || len(r.On)+len(r.OnHeaders) == len(parts) }
	switch {
	case valued && slices.ContainsFunc(its, beginning):
		return fmt.Sprintf("The rule for %s has no scope, so each task type has one of its own: %[1]s alone is none of them. Name a whole type in the key.", printable.Short(scope)), ""
	case valued && hashed && !isHash:
		return fmt.Sprintf("The keys of these rules are hashed, so no task has the key %s. Take the key that automutex key prints.", printable.Short(name)), ""
	case valued && !isHash && !slices.ContainsFunc(its, fits):
		return fmt.Sprintf("No task has the key %s: it has %s, and the keys of rule %s have %d.",
			printable.Short(name), printable.Count(len(parts), "value"), printable.Short(its[0].Name), len(its[0].On)+len(its[0].OnHeaders)), ""
	}
	return "", ""
}

// meantBy finds the target that a scope was probably meant to be: that of a rule with such a
// scope, task or name.
func meantBy(rules []fleet.Rule, scope, values string) string {
	scopes := map[string]string{} // what may have been typed to the scope
	var names []string
	add := func(name, scope string) {
		if _, known := scopes[name]; !known && name != "" {
			scopes[name], names = scope, append(names, name)
		}
	}
	for _, r := range rules {
		its, byType := r.ScopeText()
		if byType && strings.HasSuffix(its, ":") && values != "" {
			continue // the beginning of scopes, and no key has it
		}
		add(its, its)
		add(r.Name, its)
		add(r.Task, its)
		add(r.Task[strings.LastIndexByte(r.Task, ':')+1:], its)
	}
	name, ok := nearest.Name(scope, names)
	if !ok {
		return ""
	}
	meant := scopes[name]
	if values != "" {
		meant += "|" + values
	}
	return meant
}

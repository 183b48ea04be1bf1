package automutex

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/tasktype"
)

// ruleSet finds the rules that apply to a task, and the locks that it needs. It is immutable.
type ruleSet struct {
	byTask tasktype.Map[[]*compiledRule] // in order of declaration
	rules  []*compiledRule               // the same, of all Tasks
	parks  bool                          // some rule has the policy Park
	log    *slog.Logger
	secret string                            // Config.HashKeys
	decode func(*asynq.Task) ([]byte, error) // Config.Decode; nil: none
}

type target struct {
	rule  *compiledRule
	also  []*compiledRule // further rules whose key is the same
	key   string          // as in Redis
	scope string
	limit int
	pace  engine.Pace
}

func newRuleSet(rules []*compiledRule) *ruleSet {
	rs := &ruleSet{rules: rules}
	for _, rule := range rules {
		same, _ := rs.byTask.At(rule.Task)
		rs.byTask.Add(rule.Task, append(same, rule))
		rs.parks = rs.parks || rule.Busy.row().parks
		rule.rank = slices.IndexFunc(rules, func(first *compiledRule) bool { return first.Scope == rule.Scope })
		if rule.InOrder { // taken first, so that no task holds a lock while it waits for its turn; it has one turn at most
			rule.rank = -1
		}
	}
	return rs
}

// match returns rules in the order of declaration. Callers must not change the slice.
func (rs *ruleSet) match(taskType string) []*compiledRule {
	rules, _ := rs.byTask.Find(taskType)
	return rules
}

// ordered is the rule with InOrder.
func ordered(rules []*compiledRule) *compiledRule {
	if i := slices.IndexFunc(rules, func(rule *compiledRule) bool { return rule.InOrder }); i >= 0 {
		return rules[i]
	}
	return nil
}

func (rs *ruleSet) isScope(name string) bool {
	return slices.ContainsFunc(rs.rules, func(c *compiledRule) bool { return c.scope(c.Task) == name })
}

// targets returns the locks that a task needs, in the order of locking: by the rank of the scope, then by key. All
// tasks take the same locks in the same order, so tasks cannot wait for each other in a circle. Rules with equal keys
// share one target, under the rule declared first. A rule whose Key returns NoLock has none.
//
// The error is or wraps a *KeyError, or is a *temporaryKeyError.
func (rs *ruleSet) targets(ctx context.Context, t *asynq.Task, prefix string) ([]target, error) {
	var first error
	targets := rs.targetsNeeded(ctx, nil, t, prefix, rs.match(t.Type()), func(_ *compiledRule, err error) {
		if first == nil {
			first = err
		}
	})
	if first != nil {
		return nil, first
	}
	return targets, nil
}

// targetsNeeded appends those of the rules to targets: it calls failed for each without a key, and leaves it out.
func (rs *ruleSet) targetsNeeded(
	ctx context.Context, targets []target, t *asynq.Task, prefix string, rules []*compiledRule,
	failed func(*compiledRule, error),
) []target {
	t, undecoded := rs.decoded(rules, t)
	for _, rule := range rules {
		scope := rule.scope(t.Type())
		var parts []string
		var err error
		if undecoded != nil && rule.readsPayload() {
			err = rule.failed("Config.Decode", undecoded)
		} else {
			parts, err = rule.parts(ctx, t)
		}
		lacks := rule.Optional && isAbsent(err)
		its := target{rule: rule, scope: scope}
		if err == nil {
			its.limit, err = rule.limitOf(ctx, t)
		}
		if err == nil {
			its.pace, err = rule.paceOf(ctx, t)
		}
		switch {
		case err == nil:
			rs.warnWhole(rule, parts)
			its.key = keys.HashedKey(rs.secret, prefix, scope, parts...)
			targets = append(targets, its)
		case !lacks && !isNoLock(err):
			failed(rule, err)
		}
	}
	if len(targets) > 1 {
		slices.SortStableFunc(targets, func(a, b target) int {
			return cmp.Or(cmp.Compare(a.rule.rank, b.rule.rank), strings.Compare(a.key, b.key))
		})
		targets = mergeEqual(targets)
	}
	return targets
}

// warnWhole warns once of a field of a rule that is an object or a list.
func (rs *ruleSet) warnWhole(rule *compiledRule, parts []string) {
	for i, path := range rule.On {
		if !strings.ContainsAny(parts[i][:1], "{[") {
			continue
		}
		if bare, _ := keys.CutOptional(path); bare != "." {
			rule.whole.Do(func() {
				rs.log.Warn("automutex: "+rule.where()+": On: a field is an object or a list: tasks take turns only if all of it "+
					"is equal; name a field within it", "field", path)
			})
		}
	}
}

// decoded returns the task with the payload that Config.Decode returns. It calls Decode once for all rules, and only if
// one reads the payload. With an error it returns t itself, for the rules that do not.
func (rs *ruleSet) decoded(rules []*compiledRule, t *asynq.Task) (*asynq.Task, error) {
	if rs.decode == nil || !slices.ContainsFunc(rules, (*compiledRule).readsPayload) {
		return t, nil
	}
	payload, err := rs.decode(t)
	if err != nil {
		return t, err
	}
	return asynq.NewTaskWithHeaders(t.Type(), payload, t.Headers()), nil
}

func (c *compiledRule) parts(ctx context.Context, t *asynq.Task) (parts []string, err error) {
	if c.Key != nil {
		parts, err = callKey(ctx, c.Key, t)
		return parts, c.failed("the rule's Key", err)
	}
	if c.fields != nil {
		var failed *keys.Error
		if parts, failed = c.fields.Parts(t.Payload()); failed != nil {
			unfit := fieldError(t, failed, "the rule's On")
			if unfit.absent {
				unfit.advice += adviceOptional
			}
			return nil, unfit
		}
	}
	return headersParts(t, parts, c.OnHeaders)
}

func mergeEqual(targets []target) []target {
	merged := targets[:1]
	for _, t := range targets[1:] {
		last := &merged[len(merged)-1]
		if t.key == last.key {
			last.also = append(last.also, t.rule)
			continue
		}
		merged = append(merged, t)
	}
	return merged
}

func (t *target) isFor(name string) bool {
	return t.rule.Name == name || slices.ContainsFunc(t.also, func(c *compiledRule) bool { return c.Name == name })
}

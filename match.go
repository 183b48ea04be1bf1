package automutex

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hibiken/asynq"
)

// ruleSet finds the rules of a task and, in one order for all tasks, the keys
// that it needs. It is immutable.
type ruleSet struct {
	exact    map[string]*pattern
	prefixes []*pattern                        // all patterns, longest first
	declared []*pattern                        // all patterns, in order of their first rule
	parks    bool                              // some rule has the policy Park
	secret   string                            // Config.HashKeys
	decode   func(*asynq.Task) ([]byte, error) // Config.Decode; nil: none
}

// pattern is what the rules with one Task have in common.
type pattern struct {
	task   string
	rules  []*compiled // in order of declaration
	fields *fieldSet   // the On of all rules, in that order; nil when none has any

	readsPayload bool // some rule does
}

// target is one lock that a task needs.
type target struct {
	rule  *compiled
	also  []*compiled // further rules with this key
	key   string      // in Redis
	scope string
}

func newRuleSet(rules []*compiled) (*ruleSet, []error) {
	rs := &ruleSet{exact: map[string]*pattern{}}
	for _, rule := range rules {
		p := rs.exact[rule.Task]
		if p == nil {
			p = &pattern{task: rule.Task}
			rs.exact[rule.Task] = p
			rs.declared = append(rs.declared, p)
		}
		p.rules = append(p.rules, rule)
		rs.parks = rs.parks || rule.Busy == Park
	}
	rs.prefixes = slices.Clone(rs.declared)
	slices.SortStableFunc(rs.prefixes, func(a, b *pattern) int {
		return cmp.Compare(len(b.task), len(a.task))
	})

	ranks, problems := orderScopes(rules, rs.declared)
	for _, rule := range rules {
		rule.rank = ranks[rule.Scope]
	}
	for _, p := range rs.declared {
		p.gatherFields()
	}
	return rs, problems
}

// gatherFields makes one field set of the On of all rules, so that a payload is
// read once however many rules apply to it.
func (p *pattern) gatherFields() {
	var paths []string
	for _, rule := range p.rules {
		rule.onFrom = len(paths)
		paths = append(paths, rule.On...)
		p.readsPayload = p.readsPayload || rule.readsPayload()
		rule.onTo = len(paths)
		if len(rule.On) > 0 {
			rule.fields, _ = newFieldSet(rule.On)
		}
	}
	if len(paths) > 0 {
		p.fields, _ = newFieldSet(paths) // a malformed path was reported by check
	}
}

// find gives the pattern for a task type as asynq's ServeMux does: the one that
// equals it, else the longest that it begins with.
func (rs *ruleSet) find(taskType string) *pattern {
	if p := rs.exact[taskType]; p != nil {
		return p
	}
	for _, p := range rs.prefixes {
		if strings.HasPrefix(taskType, p.task) {
			return p
		}
	}
	return nil
}

// match gives the rules that apply to a task type, in order of declaration.
// It allocates nothing; the slice is not to be changed.
func (rs *ruleSet) match(taskType string) []*compiled {
	if p := rs.find(taskType); p != nil {
		return p.rules
	}
	return nil
}

// mergeEqual makes one target of neighbours with one key.
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

// serves tells whether the target is that of the rule called name.
func (t target) serves(name string) bool {
	return t.rule.Name == name || slices.ContainsFunc(t.also, func(c *compiled) bool { return c.Name == name })
}

// scopeOrder says that a rule takes its scope after another one.
type scopeOrder struct {
	before string
	rule   *compiled
}

// orderScopes ranks the explicit scopes so that for every pattern they are in
// the order in which its rules declare them; scopes that no pattern relates are
// in the order of their first declaration. A rule without a Scope is the only
// one of its pattern, and needs no rank.
func orderScopes(rules []*compiled, patterns []*pattern) (ranks map[string]int, problems []error) {
	after := map[string][]scopeOrder{} // by the scope that comes later
	for _, p := range patterns {
		var scopes []string
		for _, rule := range p.rules {
			if rule.Scope == "" || slices.Contains(scopes, rule.Scope) {
				continue
			}
			if len(scopes) > 0 {
				before := scopes[len(scopes)-1]
				after[rule.Scope] = append(after[rule.Scope], scopeOrder{before, rule})
			}
			scopes = append(scopes, rule.Scope)
		}
	}
	var open []string // scopes without a rank
	for _, rule := range rules {
		if rule.Scope != "" && !slices.Contains(open, rule.Scope) {
			open = append(open, rule.Scope)
		}
	}

	ranks = map[string]int{}
	waits := func(scope string) int { // for which of after[scope], -1 for none
		return slices.IndexFunc(after[scope], func(o scopeOrder) bool {
			_, ranked := ranks[o.before]
			return !ranked
		})
	}
	for len(open) > 0 {
		next := slices.IndexFunc(open, func(scope string) bool { return waits(scope) < 0 })
		if next < 0 {
			// Every open scope waits for an open one: there is a circle. Take
			// it apart at one place, to find the others too.
			circle := findCircle(open[0], after, waits)
			problems = append(problems, circleError(circle))
			scope := circle[0].rule.Scope
			after[scope] = slices.DeleteFunc(after[scope], func(o scopeOrder) bool { return o.before == circle[0].before })
			continue
		}
		ranks[open[next]] = len(ranks)
		open = slices.Delete(open, next, next+1)
	}
	return ranks, problems
}

// findCircle goes back from a scope, along what it waits for, until it meets a
// scope again.
func findCircle(scope string, after map[string][]scopeOrder, waits func(string) int) []scopeOrder {
	var trail []scopeOrder
	for {
		order := after[scope][waits(scope)]
		if i := slices.IndexFunc(trail, func(o scopeOrder) bool { return o.rule.Scope == scope }); i >= 0 {
			return trail[i:]
		}
		trail = append(trail, order)
		scope = order.before
	}
}

func circleError(circle []scopeOrder) error {
	steps := make([]string, 0, len(circle))
	for _, order := range circle {
		steps = append(steps, fmt.Sprintf("%s takes the scope %q after %q", order.rule.where(), order.rule.Scope, order.before))
	}
	return fmt.Errorf("automutex: %s: Scope: the rules contradict each other on the order of locks: %s; declare these scopes in one order for every Task",
		circle[0].rule.where(), strings.Join(steps, ", "))
}

// notices tells of what is allowed but may surprise.
func (rs *ruleSet) notices() (notices []string) {
	for _, p := range rs.declared {
		if strings.Contains(p.task, "*") {
			notices = append(notices, fmt.Sprintf("automutex: %s: Task: %q matches only types that have that * in them: "+
				"a Task is a type or its beginning, and needs no *", p.rules[0].where(), p.task))
		}
	}
	for _, p := range rs.declared {
		for _, rule := range p.rules {
			if notice := rule.noticeLongWait(); notice != "" {
				notices = append(notices, notice)
			}
		}
	}
	for _, p := range rs.declared {
		notices = append(notices, p.noticeReplaceThenEnd()...)
	}
	for _, p := range rs.declared {
		i := slices.IndexFunc(rs.prefixes, func(shorter *pattern) bool {
			return len(shorter.task) < len(p.task) && strings.HasPrefix(p.task, shorter.task)
		})
		if i >= 0 {
			notices = append(notices, fmt.Sprintf(
				"automutex: %s hides %s from tasks whose type begins with %q: the longest Task wins; declare the latter for that Task too if both are meant",
				p.rules[0].where(), rs.prefixes[i].rules[0].where(), p.task))
		}
	}
	for _, p := range rs.declared {
		for _, rule := range p.rules {
			if rule.Scope == "" {
				continue
			}
			other := rs.find(rule.Scope)
			if other == nil || other.rules[0].Scope != "" {
				continue
			}
			if shared := other.rules[0]; shared.Limit != rule.Limit || shared.TTL != rule.TTL {
				notices = append(notices, fmt.Sprintf(
					"automutex: a task of type %q would share the scope of %s under %s, which has another Limit or TTL; if there is such a task, give the latter a Scope",
					rule.Scope, rule.where(), shared.where()))
			}
		}
	}
	return notices
}

// noticeReplaceThenEnd tells of a rule with the policy Replace whose lock is taken
// before that of a rule which may end the task unrun: then neither runs, the older
// task, which was asked to stop, nor the newer one.
func (p *pattern) noticeReplaceThenEnd() (notices []string) {
	for _, replaces := range p.rules {
		if replaces.Busy.kind != policyReplace {
			continue
		}
		for _, ends := range p.rules {
			kind := ends.Busy.kind
			if (kind == policySkip || kind == policyArchive || kind == policyFail) && ends.rank >= replaces.rank {
				notices = append(notices, fmt.Sprintf("automutex: %s has the policy replace, and takes its lock before %s, which has %s: "+
					"a task may stop the older one and then not run itself; declare the latter first, or give it another policy", replaces.where(), ends.where(), ends.Busy))
			}
		}
	}
	return notices
}

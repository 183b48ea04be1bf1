package automutex

import (
	"fmt"
	"slices"
	"strings"
)

// scopeOrder says that a rule takes its scope after another one.
type scopeOrder struct {
	before string
	rule   *compiledRule
}

// orderScopes ranks the explicit scopes so that for every pattern they are in
// the order in which its rules declare them; scopes that no pattern relates are
// in the order of their first declaration. A rule without a Scope is the only
// one of its pattern, and needs no rank.
func orderScopes(rules []*compiledRule, patterns []*pattern) (ranks map[string]int, problems []*FieldError) {
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
			// Every open scope waits for another open one, so there is a circle. Remove
			// one step of it, to find other circles too.
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

func circleError(circle []scopeOrder) *FieldError {
	steps := make([]string, 0, len(circle))
	for _, order := range circle {
		steps = append(steps, fmt.Sprintf("%s takes the scope %q after %q", order.rule.where(), order.rule.Scope, order.before))
	}
	first := circle[0].rule
	return &FieldError{Rule: first.index, RuleName: first.Name, Field: "Scope", Element: -1, Err: fmt.Errorf(
		"the rules contradict each other on the order of locks: %s; declare these scopes in one order for every Task", strings.Join(steps, ", "))}
}

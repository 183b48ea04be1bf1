package web

import (
	"strings"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keytext"
)

// ruleInfo is a rule as the page names it.
type ruleInfo struct {
	Name string
	automutex.Rule
	scope  string // escaped, as keys have it; of the rule's own types when types is set
	byType bool   // each task type has a scope of its own, which begins with scope
}

// ruleInfos names rules as the guard does.
func ruleInfos(rules []automutex.Rule) []ruleInfo {
	infos := make([]ruleInfo, 0, len(rules))
	for i, r := range rules {
		info := ruleInfo{Name: inspect.RuleName(rules, i), Rule: r, scope: keytext.Escape(r.Scope)}
		if r.Scope == "" {
			info.scope, info.byType = keytext.Escape(r.Task), true
		}
		infos = append(infos, info)
	}
	return infos
}

// namesFor gives the names of rulesFor, joined.
func (p *page) namesFor(scope string) string { return strings.Join(p.rulesFor(scope), ", ") }

// rulesFor gives the names of the rules whose locks have that scope: those that name the
// scope, else those with the longest Task that the scope begins with. Scopes that no rule
// makes give none.
func (p *page) rulesFor(scope string) (names []string) {
	longest := 0
	for _, r := range p.rules {
		switch {
		case !r.byType && r.scope == scope:
			if longest < len(scope)+1 {
				names, longest = nil, len(scope)+1
			}
			names = append(names, r.Name)
		case r.byType && strings.HasPrefix(scope, r.scope) && len(r.scope) >= longest:
			if len(r.scope) > longest {
				names, longest = nil, len(r.scope)
			}
			names = append(names, r.Name)
		}
	}
	return names
}

// scopeOf is the scope in a lock's key, escaped as the key has it.
func scopeOf(key string) string {
	scope, _, _ := strings.Cut(inspect.InBraces(key), "|")
	return scope
}

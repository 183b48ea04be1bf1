package demo

import (
	"strings"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/config"
)

// ruleFile is what -config declares. A row of the chart is then a key of the
// first rule that applies to a task.
type ruleFile struct {
	path string
	cfg  automutex.Config
}

// loadRules reads -config; each mistake in it is a line.
func loadRules(path string) (*ruleFile, error) {
	cfg, _, err := config.Load(path)
	if err != nil {
		return nil, err
	}
	return &ruleFile{path: path, cfg: cfg}, nil
}

// entityOf is entityOf by the rules: like that, by the demo's own means. A rule
// that takes more than payload fields has no row of its own.
func (f *ruleFile) entityOf(kind string, payload []byte) (string, bool) {
	rule := f.ruleOf(kind)
	if rule == nil || len(rule.OnHeaders) > 0 {
		return "", false
	}
	scope := rule.Scope
	if scope == "" {
		scope = kind
	}
	if len(rule.On) == 0 {
		return scope, true
	}
	entity, ok := entityOf(payload, rule.On)
	return scope + " " + entity, ok
}

// ruleOf finds the first rule whose Task is the longest that kind begins with.
func (f *ruleFile) ruleOf(kind string) (found *automutex.Rule) {
	for i, rule := range f.cfg.Rules {
		if strings.HasPrefix(kind, rule.Task) && (found == nil || len(rule.Task) > len(found.Task)) {
			found = &f.cfg.Rules[i]
		}
	}
	return found
}

// judge gives each row the limit of its rule.
func (f *ruleFile) judge(t *timeline, events []event) {
	limits := map[string]int{}
	for _, e := range events {
		if entity, ok := f.entityOf(e.Type, e.Payload); ok {
			limits[entity] = max(f.ruleOf(e.Type).Limit, 1)
		}
	}
	for i := range t.rows {
		r := &t.rows[i]
		limit, ok := limits[r.label]
		if !ok {
			continue // the tasks of no rule
		}
		r.limit, r.overlaps = limit, 0
		for _, s := range r.stays {
			if s.depth > limit {
				r.overlaps++
			}
		}
	}
}

package metrics

import (
	"strings"
	"sync"
	"unicode/utf8"
)

const (
	// other is the label value of the types that have none of their own.
	other = "other"
	// maxType is the length of the longest type that has one, in bytes.
	maxType = 128
)

// types gives task types their label values, at most so many for a rule. A type keeps its value for good: a gauge that
// was raised under it is lowered under it.
type types struct {
	most int

	mu    sync.Mutex // guards known and what is in it; held for a look-up, or to add one
	known map[string]*ruleTypes
}

// ruleTypes are the types of one rule.
type ruleTypes struct {
	labels map[string]string // by type, at most as many as types.most
	others bool              // the value other is in use
}

// label is the label value of a type. first: the rule has not had it before.
func (ts *types) label(rule, task string) (label string, first bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	of := ts.known[rule]
	if of == nil {
		of = &ruleTypes{labels: map[string]string{}}
		ts.known[rule] = of
	}
	if label, ok := of.labels[task]; ok {
		return label, false
	}
	if len(task) > maxType || len(of.labels) >= ts.most {
		first = !of.others
		of.others = true
		return other, first
	}
	label = valid(task)
	of.labels[task] = label
	return label, true
}

// valid is the text as Prometheus takes it: in UTF-8.
func valid(text string) string { return strings.ToValidUTF8(text, string(utf8.RuneError)) }

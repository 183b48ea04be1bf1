package automutex

import "fmt"

// FieldError is one mistake in a [Config]. The error of [New], and that of unique.New, joins
// one for each mistake; errors.As finds the first. Use its fields to show a mistake where the
// value was written.
type FieldError struct {
	// Rule is the index of the rule in Config.Rules, or -1 for a field of Config itself.
	Rule int
	// RuleName is the rule's Name, or the one that New gives it; empty for Config itself.
	RuleName string
	// Field is the name of the Go field, such as "OnHeaders".
	Field string
	// Element is the index in Field if Field is a list, or else -1.
	Element int
	// Err says what is wrong and what to do, without the rule and the field.
	Err error
}

// Error names the rule and the field, says what is wrong and what to do.
func (e *FieldError) Error() string {
	if e.Rule < 0 {
		return fmt.Sprintf("Config.%s: %v", e.Field, e.Err)
	}
	element := ""
	if e.Element >= 0 {
		element = fmt.Sprintf("[%d]", e.Element)
	}
	return fmt.Sprintf("%s: %s%s: %v", ruleAt(e.RuleName, e.Rule), e.Field, element, e.Err)
}

// Unwrap returns Err.
func (e *FieldError) Unwrap() error { return e.Err }

// ruleAt names a rule in an error or a log line.
func ruleAt(name string, index int) string { return fmt.Sprintf("rule %q (Rules[%d])", name, index) }

// fieldErrors collects the mistakes of a Config, or of one rule of it.
type fieldErrors struct {
	rule *compiledRule // nil: of Config itself
	all  []*FieldError
}

// addf adds a mistake in a field.
func (f *fieldErrors) addf(field, format string, args ...any) {
	f.add(field, -1, fmt.Errorf(format, args...))
}

// add adds a mistake in an element of a field; -1: in the field itself.
func (f *fieldErrors) add(field string, element int, err error) {
	e := &FieldError{Rule: -1, Field: field, Element: element, Err: err}
	if f.rule != nil {
		e.Rule, e.RuleName = f.rule.index, f.rule.Name
	}
	f.all = append(f.all, e)
}

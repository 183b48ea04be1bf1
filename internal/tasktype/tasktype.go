// Package tasktype finds what is declared for a task type, as asynq's ServeMux finds a handler: by the pattern that
// equals the type, else by the longest pattern that the type begins with.
package tasktype

import (
	"cmp"
	"slices"
	"strings"
)

// Map holds a value for each pattern. The zero value is empty. Reading is safe for concurrent use, adding is not.
type Map[V any] struct {
	exact   map[string]V
	longest []string // all patterns, longest first
}

// Add sets the value of a pattern.
func (m *Map[V]) Add(pattern string, v V) {
	if m.exact == nil {
		m.exact = map[string]V{}
	}
	if _, known := m.exact[pattern]; !known {
		m.longest = append(m.longest, pattern)
		slices.SortStableFunc(m.longest, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	}
	m.exact[pattern] = v
}

// Patterns returns all patterns, the longest first. Callers must not change the slice.
func (m *Map[V]) Patterns() []string { return m.longest }

// At returns the value of the pattern itself.
func (m *Map[V]) At(pattern string) (v V, ok bool) {
	v, ok = m.exact[pattern]
	return v, ok
}

// Find returns the value of the pattern for a task type: the type itself, or else the longest pattern that it begins
// with.
func (m *Map[V]) Find(taskType string) (v V, ok bool) {
	v, ok = m.exact[m.Pattern(taskType)]
	return v, ok
}

// Pattern returns that pattern; empty: there is none.
func (m *Map[V]) Pattern(taskType string) string {
	if _, ok := m.exact[taskType]; ok {
		return taskType
	}
	for _, pattern := range m.longest {
		if strings.HasPrefix(taskType, pattern) {
			return pattern
		}
	}
	return ""
}

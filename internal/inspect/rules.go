package inspect

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/keytext"
	"github.com/automutex/automutex/internal/tasktype"
)

// RuleName returns the name that the i-th rule has, or that automutex.New gives it.
func RuleName(rules []automutex.Rule, i int) string {
	rule := rules[i]
	if rule.Name != "" {
		return rule.Name
	}
	unnamed := 1
	for _, before := range rules[:i] {
		if before.Name == "" && before.Task == rule.Task {
			unnamed++
		}
	}
	if unnamed > 1 {
		return fmt.Sprintf("%s#%d", rule.Task, unnamed)
	}
	return rule.Task
}

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
	start := prefix + ":{"
	if rule.Scope == "" {
		return strings.HasPrefix(key, start+keytext.Escape(rule.Task))
	}
	rest, ok := strings.CutPrefix(key, start+keytext.Escape(rule.Scope))
	return ok && (rest == "}" || strings.HasPrefix(rest, "|"))
}

// LimitText is how many tasks may hold a key of the rule at once, for people.
func LimitText(rule automutex.Rule) string {
	if rule.LimitOf != nil {
		return "of the task"
	}
	return strconv.Itoa(max(rule.Limit, 1))
}

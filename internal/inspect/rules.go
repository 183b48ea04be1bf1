package inspect

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/keytext"
	"github.com/automutex/automutex/internal/limitfield"
	"github.com/automutex/automutex/internal/printable"
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

// LimitText is how many tasks may hold a key of the rule at once, for people: the number,
// the payload field that has it, or "of the task" where a function of the program says it.
func LimitText(rule automutex.Rule) string {
	if rule.LimitOf == nil {
		return strconv.Itoa(max(rule.Limit, 1))
	}
	field := limitfield.Of(rule.LimitOf)
	if field == nil {
		return "of the task"
	}
	var bounds []string
	if field.Fallback > 0 {
		bounds = append(bounds, fmt.Sprintf("default %d", field.Fallback))
	}
	if field.Most > 0 {
		bounds = append(bounds, fmt.Sprintf("most %d", field.Most))
	}
	text := "<" + field.Path + ">"
	if len(bounds) > 0 {
		text += " (" + strings.Join(bounds, ", ") + ")"
	}
	return text
}

// Also lists what a rule says beside its key, Limit, TTL, Wait and Busy, for people.
func Also(rule automutex.Rule) (also []string) {
	if rule.Rate.Starts > 0 {
		also = append(also, "rate "+rateText(rule.Rate))
	}
	if rule.Cooldown > 0 {
		also = append(also, "cooldown "+printable.Exact(rule.Cooldown))
	}
	if rule.MaxHold > 0 {
		also = append(also, "held for at most "+printable.Exact(rule.MaxHold))
	}
	return also
}

// rateText is what a rule says of its rate: 100 per 1m, burst 10.
func rateText(rate automutex.Rate) string {
	return fmt.Sprintf("%d per %s, burst %d", rate.Starts, printable.Exact(rate.Per), cmp.Or(rate.Burst, rate.Starts))
}

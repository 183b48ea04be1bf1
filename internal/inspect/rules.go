package inspect

import (
	"context"
	"encoding/json"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/tasktype"
)

// Describe returns rules as data, named as automutex.New names them.
func Describe(rules []automutex.Rule) []fleet.Rule {
	var file struct {
		Rules []fleet.Rule `json:"rules"`
	}
	text, err := json.Marshal(automutex.Config{Rules: rules})
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil {
		panic(err) // both have the same form
	}
	return file.Rules
}

// ByTask finds the indexes of the rules that apply to a task type.
func ByTask(rules []automutex.Rule) *tasktype.Map[[]int] {
	var byTask tasktype.Map[[]int]
	for i, rule := range rules {
		before, _ := byTask.At(rule.Task)
		byTask.Add(rule.Task, append(before, i))
	}
	return &byTask
}

// FromFleet makes rules of what processes say they run: as much of them as keys and doctor need. What a function of the program
// decides is not known: a rule with a Key gives no lock.
func FromFleet(described []fleet.Rule) []automutex.Rule {
	rules := make([]automutex.Rule, len(described))
	for i, d := range described {
		rules[i] = automutex.Rule{Name: d.Name, Task: d.Task, Scope: d.Scope, On: d.On, OnHeaders: d.OnHeaders, Optional: d.Optional, Wait: time.Duration(d.Wait), Busy: automutex.Retry}
		if d.BusyShown() == automutex.Park.String() {
			rules[i].Busy = automutex.Park
		}
		if d.Computed {
			rules[i].On, rules[i].OnHeaders = nil, nil
			rules[i].Key = func(context.Context, *asynq.Task) ([]string, error) { return nil, automutex.NoLock }
		}
	}
	return rules
}

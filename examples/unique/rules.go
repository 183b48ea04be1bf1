package main

import (
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// wish is a rule of package unique, and what it promises.
type wish struct {
	task string // the type, by which the chart calls it
	text string
	rule *unique.Rule // nil: asynq alone

	// newest: the last run sees the last version.
	newest bool
	// most is how many runs there may be of what was asked.
	most func(asked []ask) int
}

const (
	window   = time.Second
	debounce = 2 * time.Second
)

var wishes = []wish{
	{task: "asynq alone", text: "every change runs", newest: true},
	{task: "until done", text: "once until it is done", rule: &unique.Rule{}},
	{task: "until start", text: "one runs, at most one waits", newest: true,
		rule: &unique.Rule{Until: unique.UntilStart, Duplicate: unique.Join}},
	{task: "for 1s", text: "at most once in a second", rule: &unique.Rule{Until: unique.For(window)},
		most: func(asked []ask) int { return int(asked[len(asked)-1].at/window) + 1 }},
	{task: "replace", text: "one runs, the newest waits",
		rule: &unique.Rule{Until: unique.UntilStart, Duplicate: unique.Replace}},
	{task: "postpone 2s", text: "when changes have ceased for two seconds", newest: true,
		rule: &unique.Rule{Until: unique.UntilStart, Duplicate: unique.Postpone(debounce), MaxPostpone: time.Hour},
		most: func(asked []ask) int { return 1 + pauses(asked, debounce) }},
}

// pauses counts those that may have been as long as d: a busy machine makes some.
// An ask is noted when it has its answer, so what looks like half of d may be it.
func pauses(asked []ask, d time.Duration) int {
	n := 0
	for i := 1; i < len(asked); i++ {
		if asked[i].at-asked[i-1].at > d/2 {
			n++
		}
	}
	return n
}

// uniqueRules are the rules for the producer.
func uniqueRules(queue string) []unique.Rule {
	var rules []unique.Rule
	for _, w := range wishes {
		if w.rule == nil {
			continue
		}
		r := *w.rule
		r.Task, r.On, r.Queue = w.task, []string{"document"}, queue
		rules = append(rules, r)
	}
	return rules
}

// guardRules are those of the worker: an equal Task and On, so that UntilStart
// ends when the handler begins. They also keep two from running at once, those of
// asynq alone excepted.
func guardRules() []automutex.Rule {
	var rules []automutex.Rule
	for _, w := range wishes {
		if w.rule == nil {
			continue
		}
		rule := automutex.Rule{Task: w.task, On: []string{"document"}}
		if w.rule.Duplicate == unique.Replace {
			// A task that stands in line in a worker is out of the producer's reach;
			// one that was handed back is not.
			rule.Busy = automutex.RetryIn(time.Second)
		}
		rules = append(rules, rule)
	}
	return rules
}

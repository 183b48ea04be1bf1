package main

import (
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// wish is a rule of package unique, and what it promises.
type wish struct {
	task, text string       // the type, by which the chart calls it, and what the rule means
	rule       *unique.Rule // nil: asynq alone
	newest     bool         // the last run sees the last version
	most       int          // how many runs there may be; 0: any number
}

// wishes are the rules side by side, for a document that changes for so long.
func wishes(changing time.Duration) []wish {
	return []wish{
		{task: "asynq alone", text: "every change runs"},
		{task: "until done", text: "once until it is done", rule: &unique.Rule{}},
		{task: "until start", text: "one runs, at most one waits", newest: true,
			rule: &unique.Rule{Until: unique.UntilStart, Duplicate: unique.Join}},
		{task: "for 1s", text: "at most once in a second", most: int(changing/time.Second) + 1,
			rule: &unique.Rule{Until: unique.For(time.Second)}},
		{task: "replace", text: "one runs, the newest waits",
			rule: &unique.Rule{Until: unique.UntilStart, Duplicate: unique.Replace}},
		{task: "postpone 2s", text: "when changes have ceased for two seconds", newest: true,
			rule: &unique.Rule{Until: unique.UntilStart, Duplicate: unique.Postpone(2 * time.Second), MaxPostpone: time.Hour}},
	}
}

// rules are those of the producer, and those of the worker: an equal Task and On, so that UntilStart ends when the
// handler begins. They also keep two from running at once, those of asynq alone excepted.
func rules(queue string) (producer []unique.Rule, worker []automutex.Rule) {
	for _, w := range wishes(0) {
		if w.rule == nil {
			continue
		}
		rule := automutex.Rule{Task: w.task, On: []string{"document"}}
		if w.rule.Duplicate == unique.Replace {
			// A task that stands in line in a worker is out of the producer's reach; one that was handed back is not.
			rule.Busy = automutex.RetryIn(time.Second)
		}
		w.rule.Task, w.rule.On, w.rule.Queue = rule.Task, rule.On, queue
		producer, worker = append(producer, *w.rule), append(worker, rule)
	}
	return producer, worker
}

package inspect

import (
	"cmp"
	"context"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/claim"
	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/tasktype"
	"github.com/automutex/automutex/unique"
)

// UniqueRules returns rules of package unique as data, and as automutex.NewKeyMaker takes them.
func UniqueRules(rules []unique.Rule) (described []fleet.Rule, guarded []automutex.Rule) {
	for _, r := range rules {
		described = append(described, fleet.Rule{
			Name: r.Task, Task: r.Task, Scope: r.Scope, On: r.On, OnHeaders: r.OnHeaders, Computed: r.Key != nil, Optional: r.Optional,
			Queue: cmp.Or(r.Queue, "default"), Until: r.Until.String(), Duplicate: r.Duplicate.String(),
		})
		guarded = append(guarded, automutex.Rule{Task: r.Task, On: r.On, OnHeaders: r.OnHeaders, Key: r.Key, Optional: r.Optional, Payload: r.Payload, Scope: r.Scope})
	}
	return described, guarded
}

// Unique is what a producer makes of a task that it enqueues once.
type Unique struct {
	Rule fleet.Rule
	Key  string // Redis key of the lock
	// TaskID or Claim keeps duplicates out: the ID of the task, or the Redis key of its claim.
	// The other one is empty.
	TaskID, Claim string
}

// UniqueOf returns what a producer with these rules makes of a task; nil if no rule matches, the rule's Key
// answers automutex.NoLock, or the task lacks a field of an Optional rule. keys is of the same rules. The error
// says why no key can be made: a producer then enqueues nothing.
func UniqueOf(ctx context.Context, keys *automutex.KeyMaker, rules []fleet.Rule, t *asynq.Task) (*Unique, error) {
	var byTask tasktype.Map[fleet.Rule]
	for _, r := range rules {
		if _, known := byTask.At(r.Task); !known {
			byTask.Add(r.Task, r)
		}
	}
	names, err := keys.Keys(ctx, t)
	rule, ok := byTask.Find(t.Type())
	if err != nil || !ok || len(names) == 0 {
		return nil, err
	}
	u := &Unique{Rule: rule, Key: names[0]} // a producer has one rule for each Task
	if rule.Until == unique.UntilDone.String() && (rule.Duplicate == unique.Reject.String() || rule.Duplicate == unique.Join.String()) {
		u.TaskID = claim.TaskID(u.Key)
	} else {
		u.Claim = claims.Key(u.Key)
	}
	return u, nil
}

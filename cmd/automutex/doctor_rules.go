package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/lock"
)

// asynqLease is how long asynq lets a task be without a sign of life from its
// server before it takes it back.
const asynqLease = 30 * time.Second

// kind is what is known of the tasks of one type.
type kind struct {
	tasks   int
	onlyOne int // of those that may still run: have one attempt
}

// rules looks at whether the rules fit the tasks that there are.
func (d *doctor) rules(ctx context.Context, cfg automutex.Config, most int, checkEvery time.Duration) error {
	kinds, queues, err := d.kinds(ctx, most)
	if err != nil {
		return err
	}
	d.unmatched(cfg, kinds, queues)
	d.attempts(cfg, kinds)
	for i, rule := range cfg.Rules {
		if rule.TTL > asynqLease {
			d.foundf(note, "TTL", "rule %q: %s is longer than asynq's lease of %s: a task whose worker died is run again before its own key is free",
				ruleName(cfg, i), rule.TTL, asynqLease)
		}
	}
	return d.parked(ctx, cfg, checkEvery)
}

// kinds looks at the tasks of all queues, at most so many of each state.
func (d *doctor) kinds(ctx context.Context, most int) (map[string]*kind, []string, error) {
	inspector := asynq.NewInspectorFromRedisClient(d.rdb)
	queues, err := inspector.Queues()
	switch {
	case denied(err):
		d.foundf(note, "tasks", "this user may not read asynq's queues: rules were not held against tasks")
		return nil, nil, nil
	case err != nil:
		return nil, nil, backend(err)
	}
	type lister func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error)
	kinds := map[string]*kind{}
	for _, queue := range queues {
		for _, list := range []lister{
			inspector.ListPendingTasks, inspector.ListActiveTasks, inspector.ListScheduledTasks,
			inspector.ListRetryTasks, inspector.ListArchivedTasks, inspector.ListCompletedTasks,
		} {
			const page = 100
			for n := 0; n*page < most && ctx.Err() == nil; n++ {
				tasks, err := list(queue, asynq.PageSize(page), asynq.Page(n+1))
				if errors.Is(err, asynq.ErrQueueNotFound) {
					break // deleted meanwhile
				}
				if err != nil {
					return nil, nil, backend(err)
				}
				for _, t := range tasks {
					count(kinds, t)
				}
				if len(tasks) < page {
					break
				}
			}
		}
	}
	return kinds, queues, ctx.Err()
}

// count adds a task to those of its type.
func count(kinds map[string]*kind, t *asynq.TaskInfo) {
	k := kinds[t.Type]
	if k == nil {
		k = &kind{}
		kinds[t.Type] = k
	}
	k.tasks++
	if t.MaxRetry == 0 && t.State != asynq.TaskStateArchived && t.State != asynq.TaskStateCompleted {
		k.onlyOne++
	}
}

// unmatched finds rules for tasks that nobody enqueues.
func (d *doctor) unmatched(cfg automutex.Config, kinds map[string]*kind, queues []string) {
	if len(kinds) == 0 {
		if kinds != nil {
			d.foundf(note, "tasks", "there are none in any of %d queues: the rules were not held against tasks", len(queues))
		}
		return
	}
	used := map[int]bool{}
	for taskType := range kinds {
		for _, i := range applying(cfg, taskType) {
			used[i] = true
		}
	}
	idle := 0
	for i, rule := range cfg.Rules {
		if !used[i] {
			idle++
			d.foundf(note, "tasks", "rule %q matches no task seen in any of %d queues; is the Task %q written as the tasks' type is?",
				ruleName(cfg, i), len(queues), rule.Task)
		}
	}
	if idle == 0 {
		d.foundf(fine, "tasks", "each of %d rules matches tasks seen in %d queues", len(cfg.Rules), len(queues))
	}
}

// attempts finds tasks that cannot be handed back: with no attempts left they
// wait in their workers.
func (d *doctor) attempts(cfg automutex.Config, kinds map[string]*kind) {
	types := make([]string, 0, len(kinds))
	for taskType := range kinds {
		types = append(types, taskType)
	}
	slices.Sort(types)
	for _, taskType := range types {
		k := kinds[taskType]
		if k.onlyOne == 0 {
			continue
		}
		for _, i := range applying(cfg, taskType) {
			if busy := cfg.Rules[i].Busy; handsBack(busy) {
				d.foundf(bad, "attempts", "rule %q is to %s, but %d of %d tasks of type %q have MaxRetry 0: a busy one is not handed back, it waits in its worker; give them a MaxRetry of 1 or more",
					ruleName(cfg, i), busy, k.onlyOne, k.tasks, taskType)
			}
		}
	}
}

// handsBack tells whether a policy needs attempts.
func handsBack(p automutex.Policy) bool {
	return p == automutex.Retry || p == automutex.Park || strings.HasPrefix(p.String(), "retry in ")
}

// parked compares how long parked tasks' locks are held with how often an idle
// server looks for tasks: each release wakes some tasks, which wait for that.
func (d *doctor) parked(ctx context.Context, cfg automutex.Config, checkEvery time.Duration) error {
	var parks []int
	for i, rule := range cfg.Rules {
		if rule.Busy == automutex.Park {
			parks = append(parks, i)
		}
	}
	if len(parks) == 0 {
		return nil
	}
	ages := map[int][]time.Duration{}
	now, err := serverTime(ctx, d.rdb)
	if err != nil {
		return err
	}
	locker := lock.New(d.rdb, lock.Options{Prefix: d.prefix})
	defer func() { _ = locker.Close() }() // never fails
	for some, err := range batches(ctx, locker, d.rdb) {
		if err != nil {
			return err
		}
		for _, s := range some {
			for _, i := range parks {
				if s.Since != nil && isOf(cfg.Rules[i], d.prefix, s.Key) {
					ages[i] = append(ages[i], max(now.Sub(*s.Since), 0))
				}
			}
		}
	}
	for _, i := range parks {
		d.judge(ruleName(cfg, i), ages[i], checkEvery)
	}
	return nil
}

// judge judges one rule. Of a stay that is seen at any moment half is over on
// average, so the stays last about twice as long as the ages seen.
func (d *doctor) judge(rule string, ages []time.Duration, checkEvery time.Duration) {
	const far = 10
	if len(ages) == 0 {
		d.foundf(note, "Park", "rule %q: nothing of it is held now, so its hold times are not known; TaskCheckInterval (%s) should not be far above them", rule, checkEvery)
		return
	}
	slices.Sort(ages)
	hold := 2 * ages[len(ages)/2]
	if checkEvery > far*hold {
		d.foundf(bad, "Park", "rule %q: its keys are held for about %s, but an idle server looks for tasks only every %s (TaskCheckInterval): a hot key idles between parked tasks; lower it",
			rule, short(hold), checkEvery)
		return
	}
	d.foundf(fine, "Park", "rule %q: its keys are held for about %s, TaskCheckInterval is %s", rule, short(hold), checkEvery)
}

// isOf tells whether a key is one that a rule gives.
func isOf(rule automutex.Rule, prefix, key string) bool {
	scope := rule.Scope
	if scope == "" {
		return strings.HasPrefix(key, strings.TrimSuffix(lock.Key(prefix, rule.Task), "}"))
	}
	rest, ok := strings.CutPrefix(key, strings.TrimSuffix(lock.Key(prefix, scope), "}"))
	return ok && (rest == "}" || strings.HasPrefix(rest, "|"))
}

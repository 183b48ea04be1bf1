package doctor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// asynqLease is how long asynq lets a task be without a sign of life from its
// server before it takes it back.
const asynqLease = 30 * time.Second

// kind is what is known of the tasks of one type.
type kind struct {
	tasks   int
	onlyOne int // of those that may still run: have one attempt

	timeouts map[time.Duration]int // of those that may still run, by Timeout; without those that have none
}

// rules looks at whether the rules fit the tasks that there are.
func (d *doctor) rules(ctx context.Context, cfg automutex.Config) error {
	trials, err := newKeyTrials(cfg)
	if err != nil {
		return err
	}
	kinds, queues, err := d.kinds(ctx, trials)
	if err != nil {
		return err
	}
	d.unmatched(cfg, kinds, queues)
	d.elsewhere(cfg, queues)
	d.keys(trials)
	d.attempts(cfg, kinds)
	d.timeouts(cfg, kinds)
	for i, rule := range cfg.Rules {
		if rule.TTL > asynqLease {
			d.foundf(Note, "TTL", "rule %q: %s is longer than asynq's lease of %s: a task whose worker died is run again before its own key is free",
				inspect.RuleName(cfg.Rules, i), printable.Exact(rule.TTL), asynqLease)
		}
	}
	return d.parked(ctx, cfg)
}

// kinds reads the tasks of all queues, at most Options.Tasks of each state, and tries
// their keys.
func (d *doctor) kinds(ctx context.Context, trials *keyTrials) (map[string]*kind, []string, error) {
	inspector := asynq.NewInspectorFromRedisClient(d.rdb)
	queues, err := inspector.Queues()
	switch {
	case denied(err):
		d.foundf(Note, "tasks", "this user may not read asynq's queues: rules were not held against tasks")
		return nil, nil, nil
	case err != nil:
		return nil, nil, inspect.Backend(err)
	}
	type lister func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error)
	kinds := map[string]*kind{}
	for _, queue := range queues {
		for _, list := range []lister{
			inspector.ListPendingTasks, inspector.ListActiveTasks, inspector.ListScheduledTasks,
			inspector.ListRetryTasks, inspector.ListArchivedTasks, inspector.ListCompletedTasks,
		} {
			const page = 100
			for n := 0; n*page < d.Tasks && ctx.Err() == nil; n++ {
				tasks, err := list(queue, asynq.PageSize(page), asynq.Page(n+1))
				if errors.Is(err, asynq.ErrQueueNotFound) {
					break // deleted meanwhile
				}
				if err != nil {
					return nil, nil, inspect.Backend(err)
				}
				for _, t := range tasks {
					count(kinds, t)
					trials.try(ctx, t)
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
		k = &kind{timeouts: map[time.Duration]int{}}
		kinds[t.Type] = k
	}
	k.tasks++
	if t.State == asynq.TaskStateArchived || t.State == asynq.TaskStateCompleted {
		return
	}
	if t.MaxRetry == 0 {
		k.onlyOne++
	}
	if t.Timeout > 0 {
		k.timeouts[t.Timeout]++
	}
}

// elsewhere finds rules that park although asynq has no queue on the Redis of the
// locks: a Guard without Config.Inspector looks for parked tasks there.
func (d *doctor) elsewhere(cfg automutex.Config, queues []string) {
	if len(queues) > 0 {
		return
	}
	for i, rule := range cfg.Rules {
		if rule.Busy == automutex.Park {
			d.foundf(Note, "Inspector", "rule %q parks tasks, but asynq has no queue on this Redis: if asynq uses another Redis or database, set Config.Inspector to an asynq.Inspector there, or parked tasks are not called",
				inspect.RuleName(cfg.Rules, i))
			return
		}
	}
}

// unmatched finds rules for tasks that nobody enqueues.
func (d *doctor) unmatched(cfg automutex.Config, kinds map[string]*kind, queues []string) {
	if len(kinds) == 0 {
		if kinds != nil {
			d.foundf(Note, "tasks", "there are none in %s: the rules were not held against tasks", printable.Count(len(queues), "queue"))
		}
		return
	}
	used := map[int]bool{}
	for taskType := range kinds {
		for _, i := range inspect.RulesFor(cfg.Rules, taskType) {
			used[i] = true
		}
	}
	idle := 0
	for i, rule := range cfg.Rules {
		if !used[i] {
			idle++
			d.foundf(Note, "tasks", "rule %q matches no task seen in %s; is the Task %q written as the tasks' type is?",
				inspect.RuleName(cfg.Rules, i), printable.Count(len(queues), "queue"), rule.Task)
		}
	}
	if idle == 0 {
		d.foundf(Fine, "tasks", "every rule matches tasks seen in %s", printable.Count(len(queues), "queue"))
	}
}

// attempts finds tasks that cannot be handed back: with no attempts left they
// wait in their workers.
func (d *doctor) attempts(cfg automutex.Config, kinds map[string]*kind) {
	for _, taskType := range slices.Sorted(maps.Keys(kinds)) {
		k := kinds[taskType]
		if k.onlyOne == 0 {
			continue
		}
		for _, i := range inspect.RulesFor(cfg.Rules, taskType) {
			if busy := cfg.Rules[i].Busy; handsBack(busy) {
				d.foundf(Bad, "attempts", "rule %q is to %s, but %d of %s of type %q with MaxRetry 0 were seen: a busy one is not handed back, it waits in its worker; give them a MaxRetry of 1 or more",
					inspect.RuleName(cfg.Rules, i), printable.Timed(busy.String()), k.onlyOne, printable.Count(k.tasks, "task"), taskType)
			}
		}
	}
}

// timeouts finds tasks whose time may be up before their Wait is: the time in line counts
// as part of a task's Timeout, and a wait ends a second before it at the latest.
func (d *doctor) timeouts(cfg automutex.Config, kinds map[string]*kind) {
	for _, taskType := range slices.Sorted(maps.Keys(kinds)) {
		for _, i := range inspect.RulesFor(cfg.Rules, taskType) {
			wait, tasks, shortest := cfg.Rules[i].Wait, 0, time.Duration(0)
			for timeout, n := range kinds[taskType].timeouts {
				if wait < timeout {
					continue
				}
				if tasks += n; shortest == 0 || timeout < shortest {
					shortest = timeout
				}
			}
			if tasks > 0 && wait > 0 {
				d.foundf(Note, "Wait", "rule %q: a Wait of %s is no shorter than the Timeout of %s of type %q (%s): time in line is part of a task's Timeout, so its handler may be left with a second; make Wait shorter, or Timeout longer",
					inspect.RuleName(cfg.Rules, i), printable.Exact(wait), printable.Count(tasks, "task"), taskType, printable.Exact(shortest))
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
func (d *doctor) parked(ctx context.Context, cfg automutex.Config) error {
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
	now, err := inspect.ServerTime(ctx, d.rdb)
	if err != nil {
		return err
	}
	locker := lock.New(d.rdb, lock.Options{Prefix: d.Prefix})
	defer func() { _ = locker.Close() }() // never fails
	for some, err := range inspect.Walk(ctx, locker, d.rdb) {
		if err != nil {
			return err
		}
		for _, s := range some {
			for _, i := range parks {
				if s.Since != nil && inspect.IsKeyOf(cfg.Rules[i], d.Prefix, s.Key) {
					ages[i] = append(ages[i], max(now.Sub(*s.Since), 0))
				}
			}
		}
	}
	for _, i := range parks {
		d.checkInterval(inspect.RuleName(cfg.Rules, i), ages[i])
	}
	return nil
}

// checkInterval compares TaskCheckInterval with how long one rule's keys are held. At
// any moment half of a hold is over on average, so holds last about twice as long as the
// ages seen. That needs several of them: one key taken a moment ago says nothing.
func (d *doctor) checkInterval(rule string, ages []time.Duration) {
	const far, enough = 10, 5
	if len(ages) == 0 {
		d.foundf(Note, "Park", "rule %q: nothing of it is held now, so its hold times are not known; TaskCheckInterval should not be far above them, and is %s", rule, d.intervalText())
		return
	}
	slices.Sort(ages)
	if len(ages) < enough {
		d.foundf(Note, "Park", "rule %q: only %d of its keys are held now, one for %s, so its hold times are not known; TaskCheckInterval should not be far above them, and is %s",
			rule, len(ages), printable.Duration(ages[len(ages)-1]), d.intervalText())
		return
	}
	hold := 2 * ages[len(ages)/2]
	if d.TaskCheckInterval > far*hold {
		d.foundf(Bad, "Park", "rule %q: its keys are held for about %s, but an idle server looks for tasks only every TaskCheckInterval: a hot key idles between parked tasks; lower it from %s",
			rule, printable.Duration(hold), d.intervalText())
		return
	}
	d.foundf(Fine, "Park", "rule %q: its keys are held for about %s, TaskCheckInterval is %s", rule, printable.Duration(hold), d.intervalText())
}

// intervalText shows TaskCheckInterval, and whether it is known.
func (d *doctor) intervalText() string {
	if d.Assumed {
		return printable.Exact(d.TaskCheckInterval) + " (assumed, as asynq's default; give --task_check_interval where yours differs)"
	}
	return printable.Exact(d.TaskCheckInterval)
}

package doctor

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/nearest"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/tasktype"
)

// fleet tells what does not fit together in what Guards run. Without a Config their rules are held against the tasks.
func (d *doctor) fleet(ctx context.Context) (err error) {
	if d.guards, err = fleet.Read(ctx, d.rdb, d.Prefix); err != nil {
		return d.unable("rules", err)
	}
	differ := fleet.Differences(d.guards)
	for _, difference := range differ {
		d.foundf(Bad, "rules", "%s", printable.OneLine(difference.String()))
	}
	if len(d.guards) == 0 && len(d.prefixes) > 0 {
		d.foundf(Note, "prefix", "no Guard says that it has the prefix %s; there are Guards with %s: give that with --prefix", d.Prefix, strings.Join(d.prefixes, ", "))
	} else if len(d.guards) > 0 && len(differ) == 0 {
		d.foundf(Fine, "rules", "%s; what they run fits together", printable.Count(len(d.guards), "Guard"))
	}
	if rules := fleet.Rules(d.guards); d.Config == nil && len(rules) > 0 {
		cfg := automutex.Config{Prefix: d.Prefix, Rules: inspect.FromFleet(rules), Logger: slog.New(slog.DiscardHandler)}
		if _, err := automutex.NewKeyMaker(cfg); err != nil {
			d.foundf(Note, "rules", "not held against the tasks: those of different Guards make no one set")
		} else {
			d.Config = &cfg
		}
	} else if d.Config == nil {
		d.foundf(Note, "rules", "not looked at: no Guard says which it runs; give the FILE of the rules")
	}
	return nil
}

// paused tells what operators have paused or limited: it keeps tasks from running, and little else shows why.
func (d *doctor) paused(ctx context.Context) error {
	list, err := d.locker.Controls().List(ctx)
	if said := redis.Error(nil); errors.As(err, &said) {
		d.foundf(Bad, "paused", "pauses and limits cannot be read, so programs that start obey none: %s", printable.OneLine(err.Error()))
	} else if err != nil {
		return err
	}
	for _, c := range list {
		d.foundf(Note, "paused", "%s is %s", c.Target, inner.ControlText(c))
	}
	return nil
}

// blocked names ordered keys whose next task does not run.
func (d *doctor) blocked(ctx context.Context) error {
	keys, err := blocked.List(ctx, d.locker, d.asynq)
	if err != nil {
		return d.unable("order", err)
	}
	for _, key := range keys[:min(most, len(keys))] {
		d.foundf(Bad, "order", "%s of key %s behind %s, which %s", printable.Count(key.Behind, "task"), key.Key, key.Task, printable.OneLine(key.Why))
	}
	if more := len(keys) - most; more > 0 {
		d.foundf(Bad, "order", "and %s; automutex blocked lists all", printable.Count(more, "more key"))
	}
	return nil
}

// tasks holds the rules against asynq's queues and tasks.
func (d *doctor) tasks(ctx context.Context) error {
	queues, err := d.asynq.Queues()
	if err != nil {
		return d.unable("tasks", err)
	}
	for _, queue := range queues {
		if info, err := d.asynq.GetQueueInfo(queue); err == nil && info.Paused {
			d.foundf(Note, "paused", "asynq's queue %s is: a task in it whose turn has come keeps those behind it waiting", queue)
		}
	}
	if d.Config == nil {
		return nil
	}
	parks := slices.ContainsFunc(d.Config.Rules, func(r automutex.Rule) bool { return r.Busy == automutex.Park })
	if len(queues) == 0 && parks {
		d.foundf(Note, "Inspector", "rules park tasks, but asynq has no queue in this database: if asynq uses another Redis or database, set Config.Inspector to an asynq.Inspector there, or parked tasks are not called")
	}
	return d.trial(ctx, *d.Config, queues)
}

// trial holds rules against the tasks that there are.
func (d *doctor) trial(ctx context.Context, cfg automutex.Config, queues []string) error {
	cfg.Logger = slog.New(slog.DiscardHandler)
	maker, err := automutex.NewKeyMaker(cfg)
	if err != nil {
		return err
	}
	var byTask tasktype.Map[[]int]
	for i, rule := range cfg.Rules {
		before, _ := byTask.At(rule.Task)
		byTask.Add(rule.Task, append(before, i))
	}
	types, noKey, short := map[string]bool{}, map[string]int{}, map[int]int{}
	err = d.eachTask(ctx, queues, func(task *asynq.TaskInfo) {
		types[task.Type] = true
		if task.State == asynq.TaskStateArchived || task.State == asynq.TaskStateCompleted {
			return // it may have had another form
		}
		if _, err := maker.Keys(ctx, asynq.NewTaskWithHeaders(task.Type, task.Payload, task.Headers)); err != nil {
			why, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "automutex: "), "; enqueue the task")
			noKey[printable.OneLine(why)]++
		}
		its, _ := byTask.Find(task.Type)
		for _, i := range its {
			if rule := cfg.Rules[i]; rule.Busy != automutex.Park && rule.Wait > 0 && task.Timeout > 0 && task.Timeout <= rule.Wait {
				short[i]++
			}
		}
	})
	if err != nil {
		return d.unable("tasks", err)
	}
	reasons := slices.SortedFunc(maps.Keys(noKey), func(a, b string) int { return noKey[b] - noKey[a] })
	for _, why := range reasons[:min(most, len(reasons))] {
		d.foundf(Bad, "keys", "%s (%s); a worker archives such a task unrun", why, printable.Count(noKey[why], "task"))
	}
	for i, rule := range inspect.Describe(cfg.Rules) {
		if n := short[i]; n > 0 {
			d.foundf(Note, "Wait", "rule %q: its Wait of %s is no shorter than the Timeout of %s: time in line is part of a task's Timeout; make Wait shorter, or Timeout longer",
				rule.Name, rule.Wait, printable.Count(n, "task"))
		}
	}
	d.slips(cfg.Rules, &byTask, types)
	return nil
}

// eachTask calls f for the tasks of the queues, Options.Tasks of each state at most.
func (d *doctor) eachTask(ctx context.Context, queues []string, f func(*asynq.TaskInfo)) error {
	type lister func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error)
	in, page := d.asynq, 100
	for _, queue := range queues {
		for _, list := range []lister{in.ListPendingTasks, in.ListActiveTasks, in.ListScheduledTasks, in.ListRetryTasks, in.ListArchivedTasks, in.ListCompletedTasks} {
			for n := 0; n*page < d.Tasks && ctx.Err() == nil; n++ {
				tasks, err := list(queue, asynq.PageSize(page), asynq.Page(n+1))
				if err != nil && !errors.Is(err, asynq.ErrQueueNotFound) { // deleted meanwhile
					return err
				}
				for _, task := range tasks {
					f(task)
				}
				if len(tasks) < page {
					break
				}
			}
		}
	}
	return ctx.Err()
}

// slips finds rules that nothing serves, while a type that looks alike is served and has no rule.
func (d *doctor) slips(rules []automutex.Rule, byTask *tasktype.Map[[]int], types map[string]bool) {
	for _, p := range d.guards {
		for _, served := range p.Serves {
			types[served] = true
		}
	}
	matched, loose := map[string]bool{}, map[string]bool{}
	for taskType := range types {
		if its, found := byTask.Find(taskType); found {
			matched[rules[its[0]].Task] = true
			continue
		}
		for end := range taskType {
			if taskType[end] == ':' {
				loose[taskType[:end+1]] = true // a rule with a prefix may be meant for it
			}
		}
		loose[taskType] = true
	}
	for _, rule := range rules {
		for _, taskType := range slices.Sorted(maps.Keys(loose)) {
			if !matched[rule.Task] && nearest.IsSlip(taskType, rule.Task) {
				d.foundf(Bad, "tasks", "nothing serves %q, which a rule is for, and no rule is for %q: did you mean that?", rule.Task, taskType)
				break
			}
		}
	}
}

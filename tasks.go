package automutex

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// parkTasks returns asynq's tasks; without an Inspector if no rule parks.
func parkTasks(rdb lock.Client, cfg Config) (*blocked.Tasks, error) {
	i := slices.IndexFunc(cfg.Rules, func(r Rule) bool { return r.Busy == Park })
	if i < 0 {
		return &blocked.Tasks{}, nil
	}
	tasks, err := tasksFor(rdb, cfg, fmt.Sprintf("the policy park of Rules[%d], which is that of a rule without Busy; "+
		"give one, or a redis.UniversalClient as the client, or set Busy to automutex.Retry", i))
	if err != nil || !cfg.WakeAtFront {
		return tasks, err
	}
	front, universal := rdb.(redis.UniversalClient)
	if !universal {
		return nil, configError("WakeAtFront", "needs a redis.UniversalClient, not a %T", rdb)
	}
	tasks.Front = front
	return tasks, nil
}

// tasksFor returns asynq's tasks as cfg.Inspector, whose Redis is not known, or one made from rdb sees them.
func tasksFor(rdb lock.Client, cfg Config, what string) (*blocked.Tasks, error) {
	if cfg.Inspector != nil {
		return &blocked.Tasks{Inspector: cfg.Inspector}, nil
	}
	client, universal := rdb.(redis.UniversalClient)
	if !universal {
		return nil, configError("Inspector", "is nil, and none can be made from a %T for %s", rdb, what)
	}
	return &blocked.Tasks{Inspector: asynq.NewInspectorFromRedisClient(client), Redis: client}, nil
}

// turnIn is about when a parked task's turn comes if the holder's process has died, and each before it holds the key
// for a second. Behind an archived task that is late: an operator wakes the next one.
func (e *BusyError) turnIn() time.Duration {
	if e.Reason == ReasonArchived {
		return time.Hour
	}
	return max(e.ExpiresIn, 5*time.Second) + time.Duration(min(e.Place, 1e6))*time.Second
}

const inspectorHint = "are the locks on another Redis, or in another database, than asynq? Give the Guard a client " +
	"of that database, or set Config.Inspector to an asynq.Inspector there"

// checkInspector warns once if the Inspector does not see the task that parks. One goroutine asks at a time, until
// one got an answer. It ends with the timeouts of the Inspector's client.
func (f *facts) checkInspector() {
	g := f.guard
	if !g.inspectorAsked.CompareAndSwap(false, true) {
		return
	}
	g.engine.Life().Spawn(func() { // not after Close: nobody has to know
		_, _, err := g.tasks.Find(f.queue, f.id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
			g.tasks.Blind.Store(true)
			g.warnOnce("inspector", "Config.Inspector does not see the tasks of this server, so parked tasks are not woken "+
				"and return late, and a key in order stands when its next task is deleted; "+
				inspectorHint, "queue", f.queue, "task", f.note)
		case err != nil:
			g.inspectorAsked.Store(false)
		}
	})
}

func (g *Guard) wakeParked(ctx context.Context, key, note string) engine.Fate {
	if item, ordered := engine.ParseItem(note); ordered {
		return g.wakeInOrder(ctx, key, item)
	}
	return g.tasks.WakeParked(ctx, key, note)
}

func (g *Guard) reportBlocked(ctx context.Context, e Event) {
	g.log.Warn("automutex: a task in order is archived and holds its key: run it again, or skip it", "rule", e.Rule, "key",
		e.Key, "task", tasknote.Of(e.Queue, e.TaskID))
	e.Kind = EventBlocked
	g.observe(ctx, e)
}

func orderedKey(key string) engine.Ref {
	return engine.Ref{Key: key, Limit: 1, Ordered: true}
}

// Blocked is an ordered key whose next task does not run, and keeps those behind it waiting.
type Blocked struct {
	Key    string    // the lock's key
	Task   string    // that task, as "queue/id"
	Since  time.Time // since when the key is held, or when a task that is to be retried last came to a worker
	Why    string    // what keeps the task from running, and what ends that
	Behind int       // how many tasks wait behind it
}

// Blocked returns the keys under the Guard's prefix whose next task, in order, does not run: it is archived and holds
// its key ([HoldKey]), has failed and is retried later, is gone, or waits in a queue that is paused or that no server
// serves. Held keys come first, then those whose task has failed, the longest blocked first. A key without a task
// behind that one is only listed while it is held. Blocked walks all keys with SCAN: call it for operators, not for
// each task.
func (g *Guard) Blocked(ctx context.Context) ([]Blocked, error) {
	found, err := blocked.List(ctx, g.engine, g.tasks.Sighted())
	if err != nil {
		return nil, fmt.Errorf("automutex: Blocked: %w", err)
	}
	keys := make([]Blocked, len(found))
	for i, key := range found {
		keys[i] = Blocked(key)
	}
	return keys, nil
}

// SkipHead gives up the place of task ("queue/id"), the next task of key, as [Guard.Blocked] has them. The task is not
// changed: if asynq runs it later, it takes its old place again, and may hold the key again.
//
// If the task runs now, or is not the next one of the key, that is an error, and nothing has changed. After an error
// that Is [lock.ErrBackend] the task may be skipped or not.
func (g *Guard) SkipHead(ctx context.Context, key, task string) error {
	if err := blocked.Skip(ctx, g.engine, g.tasks.Inspector, key, task, 0); err != nil {
		return fmt.Errorf("automutex: SkipHead: %w", err)
	}
	e := Event{Kind: EventHeadSkipped, Key: key}
	e.Queue, e.TaskID, _ = tasknote.Parse(task)
	if rule := g.orderedRule(key); rule != nil {
		e.Rule = rule.Name
	}
	g.observe(ctx, e)
	g.log.Info("automutex: an operator has skipped the next task of an ordered key", "key", key, "task", task)
	return nil
}

// orderedRule is the rule that makes the key. A hashed scope tells only a type that the rule names, or that came here.
func (g *Guard) orderedRule(key string) (found *compiledRule) {
	text, _ := strings.CutPrefix(key, g.cfg.Prefix+":{")
	scope, _, _ := strings.Cut(strings.TrimSuffix(text, "}"), "|")
	if scope == keys.ControlScope {
		scope = keys.Controls
	}
	came := slices.DeleteFunc(g.served.List(), func(t string) bool { return keys.Scope(t) != scope })
	for _, rule := range g.rules.rules {
		switch {
		case !rule.InOrder:
		case keys.RuleHas(rule.Scope, rule.Task, scope) && rule.Scope != "":
			return rule
		case rule.Scope != "" || found != nil && len(rule.Task) <= len(found.Task):
		case keys.RuleHas("", rule.Task, scope), len(came) > 0 && slices.Contains(g.rules.match(came[0]), rule):
			found = rule
		}
	}
	return found
}

func (g *Guard) wakeInOrder(ctx context.Context, key string, item engine.OrderItem) engine.Fate {
	queue, id, _ := tasknote.Parse(item.Note)
	rule := g.orderedRule(key)
	if rule == nil {
		return engine.FateUnsure
	}
	return g.tasks.WakeInOrder(ctx, blocked.OrderedKey{
		Engine: g.engine, Key: orderedKey(key), Holds: rule.OnArchive == HoldKey,
		Archived: func(info *asynq.TaskInfo) {
			g.reportBlocked(ctx, Event{Rule: rule.Name, Key: key, Task: info.Type, Queue: queue, TaskID: id})
		},
		Stands: func(why string) {
			g.log.Warn("automutex: a key in order stands, since its next task "+why, "rule", rule.Name, "key", key, "task",
				item.Note)
		},
	}, item)
}

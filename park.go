package automutex

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
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

func (d *delivery) park(t target, busy *BusyError) error {
	delay := d.inTime(decide.Delay(decide.AtTurn, busy.turnIn()))
	d.checkInspector()
	d.observe(t, Event{Kind: EventParked, Policy: t.rule.Busy, Delay: delay, Busy: busy})
	return d.comeBackIn(delay, busy)
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
// one got an answer. It ends with the timeouts of the Inspector's client; Close waits for it.
func (d *delivery) checkInspector() {
	g := d.guard
	if !g.inspectorAsked.CompareAndSwap(false, true) {
		return
	}
	g.life.Spawn(func() { // not after Close: nobody has to know
		_, _, err := g.tasks.Find(d.queue, d.id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
			g.tasks.Blind.Store(true)
			g.warnOnce("inspector", "Config.Inspector does not see the tasks of this server, so parked tasks are not woken "+
				"and return late, and a key in order stands when its next task is deleted; "+
				inspectorHint, "queue", d.queue, "task", d.note)
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

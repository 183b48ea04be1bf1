package automutex

import (
	"slices"
	"time"

	"github.com/automutex/automutex/lock"
)

// Controls returns the orders of operators for the keys of this Guard's Prefix: a pause, another limit or rate, for a
// scope or one key. Every Guard and Locker with the prefix obeys them within 2 seconds.
//
// A task whose key is paused returns to asynq, its attempt not spent, whatever the policy, until the pause ends, or for
// 30 to 90 seconds. Under [Park] it keeps its place in line, and is woken when the pause ends. A task on its last
// attempt waits in its worker.
func (g *Guard) Controls() *lock.Controls { return g.controls }

// checkPaused looks for a paused key before the task takes any lock, for nothing. A task that can park goes on, and
// parks when it comes to that lock; a task on its last attempt waits there.
func (d *delivery) checkPaused() obstacle {
	for _, t := range d.targets {
		if d.last || t.rule.Busy.row().parks && d.note != "" || d.without[t.key] || d.holds(t.key) {
			continue
		}
		err := d.guard.engine.Know(d.ctx, t.key)
		if err == nil {
			pause, left := d.guard.pauseOf(t.key)
			if pause == nil {
				continue
			}
			err = &BusyError{Rule: t.rule.Name, Key: t.key, Reason: ReasonPaused, ExpiresIn: left, Pause: pause}
		}
		return d.report(d.refused(t, err))
	}
	return nothing
}

// pauseOf returns the pause of a key, nil if it is not paused, and how long it lasts; 0 if it has no end.
func (g *Guard) pauseOf(key string) (*lock.Control, time.Duration) {
	stop, left := g.engine.Controls().StopOf(key)
	if stop == nil {
		return nil, 0
	}
	return &lock.Control{Target: stop.Target, Paused: true, PausedUntil: stop.PausedUntil, Why: stop.Why, By: stop.By,
		Since: stop.Since}, left
}

func (rs *ruleSet) isScope(name string) bool {
	return slices.ContainsFunc(rs.rules, func(c *compiledRule) bool { return c.scope(c.Task) == name })
}

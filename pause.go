package automutex

import (
	"math/rand/v2"
	"time"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/lock"
)

// Controls returns the orders of operators for the keys of this Guard's Prefix: a pause, or
// another limit, for a scope or one key. Every Guard and Locker with the prefix obeys
// them within 2 seconds.
//
// A task whose key is paused returns to asynq, its attempt not spent, whatever the policy of
// its rule. It comes back when the pause ends, or tries again after 30 to 90 seconds. Under
// [Park] it keeps its place in line, and is woken when the pause ends. A task on its last
// attempt waits in its worker, since asynq would archive it.
func (g *Guard) Controls() *lock.Controls { return g.controls }

// A paused task tries again after half to one and a half times pauseLook if its pause lasts for longer than that: an operator
// may end it before.
const (
	pauseLook      = time.Minute
	minPauseSpread = 5 * time.Second
)

// pauseDelay returns after how long a task returns whose key is paused for the time left; 0
// means until it is resumed. It is random, so that tasks do not return together.
func pauseDelay(left time.Duration) time.Duration {
	if left > 0 && left <= pauseLook {
		return left + rand.N(max(minPauseSpread, left/2)) //nolint:gosec // jitter, no secret
	}
	return pauseLook/2 + rand.N(pauseLook) //nolint:gosec // jitter, no secret
}

// checkPaused looks for a paused key before the task takes any lock: otherwise it would take the
// locks before that one for nothing. A task that can park goes on, and parks when it comes to
// that lock; a task on its last attempt waits there.
func (d *delivery) checkPaused() obstacle {
	for _, t := range d.targets {
		if d.last || t.rule.Busy.row().parks && d.note != "" || d.without[t.key] || d.holds(t.key) {
			continue
		}
		err := d.pausedError(t)
		if err == nil {
			continue
		}
		if t.rule.Busy.kind == policyReplace {
			// The newest wins, whatever the order in which they come back.
			if failed := d.registerArrival(t); failed != nil {
				err = failed
			}
		}
		return d.report(d.refused(t, err))
	}
	return obstacle{why: decide.Nothing}
}

// pausedError returns a *BusyError if the key of t is paused, nil if it is not, or the error
// of Redis if that is not known.
func (d *delivery) pausedError(t target) error {
	if err := d.guard.engine.Know(d.ctx, t.key); err != nil {
		return err
	}
	pause, left := d.guard.pauseOf(t.key)
	if pause == nil {
		return nil
	}
	return &BusyError{Rule: t.rule.Name, Key: t.key, Reason: ReasonPaused, ExpiresIn: left, Pause: pause}
}

// pauseOf returns the pause of a key, nil if it is not paused, and how long it lasts; 0 if it has no end.
func (g *Guard) pauseOf(key string) (*lock.Control, time.Duration) {
	order, left := g.engine.Controls().PauseOf(key)
	if order == nil {
		return nil, 0
	}
	pause := lock.Control(order.Control())
	return &pause, left
}

// isScope reports whether a rule has a scope of that very name.
func (rs *ruleSet) isScope(name string) bool {
	for _, rule := range rs.rules {
		if rule.Scope == name || rule.Scope == "" && rule.Task == name {
			return true
		}
	}
	return false
}

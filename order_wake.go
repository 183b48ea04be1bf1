package automutex

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keytext"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// This file looks for ordered tasks in asynq, and has asynq run the parked ones.

// orderedRule returns the ordered rule whose scope is that of a lock's key, or nil.
func (rs *ruleSet) orderedRule(prefix, key string) *compiledRule {
	text, _ := strings.CutPrefix(key, prefix+":{")
	scope, _, _ := strings.Cut(strings.TrimSuffix(text, "}"), "|")
	var found *compiledRule
	for _, p := range rs.declared {
		for _, rule := range p.rules {
			switch {
			case !rule.InOrder || !keytext.RuleHas(rule.Scope, rule.Task, scope):
			case rule.Scope != "":
				return rule
			case found == nil || len(rule.Task) > len(found.Task):
				found = rule
			}
		}
	}
	return found
}

// wakeInOrder handles a task that package lock names: a parked task of an ordered key whose turn is near, or a head
// that keeps others waiting and should have come.
func (g *Guard) wakeInOrder(ctx context.Context, key string, item inside.OrderItem) inside.Fate {
	queue, id, ok := tasknote.Parse(item.Note)
	rule := g.rules.orderedRule(g.cfg.Prefix, key)
	if !ok || rule == nil || g.paused.isPaused(queue, g.inspector) {
		return inside.FateUnsure
	}
	m := inner.ByOrder(g.locker, key)
	for backoff := 500 * time.Microsecond; backoff <= retryWrittenIn; backoff *= 2 {
		info, missing, err := blocked.Find(g.inspector, g.asynqRedis, queue, id)
		if err == nil {
			g.blind.Store(false)
		}
		act, after := seenInOrder(info, missing && !g.blind.Load(), err, item, rule, key)
		switch {
		case act == lookFailed:
			g.log.Debug("automutex: an ordered task could not be looked at; it is tried again", "key", key, "task", item.Note, "error", err)
			return inside.FateUnsure
		case act == lookWake:
			if by, bounded := ctx.Deadline(); bounded && time.Now().After(by) {
				return inside.FateUnsure
			}
			if g.inspector.RunTask(queue, id) == nil { // it has no typed errors, so the state is read again
				g.moveToFront(ctx, queue, id)
				return inside.FateComing
			}
		case item.Call && info != nil && info.State == asynq.TaskStatePending:
			return inside.FateComing
		case item.Call && info != nil && info.State == asynq.TaskStateActive:
			// asynq has not moved the task to retry yet, or the task runs again already.
		default:
			if err := inner.ActOrder(ctx, m, act, item, after); err != nil {
				g.log.Debug("automutex: what was seen of an ordered task could not be stored; it is looked for again", "key", key, "task", item.Note, "error", err)
			} else if act == inside.ActArchived {
				g.observeSafely(ctx, Event{Kind: EventBlocked, Rule: rule.Name, Key: key, Task: info.Type, Queue: queue, TaskID: id})
			}
			return inside.FateUnsure
		}
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
		}
	}
	return inside.FateUnsure
}

// What a look may find besides an act.
const (
	lookFailed inside.OrderAct = ""     // asynq's Redis does not answer
	lookWake   inside.OrderAct = "wake" // the task is parked: have asynq run it
)

// seenInOrder is what follows from a look at the task in asynq. after is how long the task stays away by itself.
func seenInOrder(info *asynq.TaskInfo, missing bool, err error, item inside.OrderItem, rule *compiledRule, key string) (act inside.OrderAct, after time.Duration) {
	switch {
	case missing:
		return inside.ActGone, 0
	case err != nil:
		return lookFailed, 0
	case nonceOf(info, item.Note) != item.Nonce && !strings.HasPrefix(item.Nonce, "~"):
		return inside.ActGone, 0 // another task with the same ID
	}
	switch info.State {
	case asynq.TaskStateArchived:
		if rule.OnArchive == HoldKey {
			return inside.ActArchived, 0
		}
		return inside.ActLeft, 0
	case asynq.TaskStateCompleted:
		return inside.ActLeft, 0
	case asynq.TaskStateRetry:
		if strings.Contains(info.LastErr, blocked.ParkedOn(key)) {
			return lookWake, 0
		}
		return inside.ActPresent, max(0, time.Until(info.NextProcessAt)) + time.Second
	case asynq.TaskStateScheduled:
		return inside.ActPresent, max(0, time.Until(info.NextProcessAt)) + time.Second
	case asynq.TaskStateActive, asynq.TaskStatePending, asynq.TaskStateAggregating:
	}
	return inside.ActPresent, 0
}

// sighted returns the Guard's Inspector, or nil if that does not see this server's tasks.
func (g *Guard) sighted() *asynq.Inspector {
	if g.blind.Load() {
		return nil
	}
	return g.inspector
}

func nonceOf(info *asynq.TaskInfo, note string) string {
	s, _ := stamp.Of(info.Headers, note)
	return s.Nonce
}

// lookInOrder is one look at a task, for a producer. It wakes nobody.
func (c *Client) lookInOrder(ctx context.Context, m *lock.Lock, item inside.OrderItem, rule *compiledRule) {
	queue, id, _ := tasknote.Parse(item.Note)
	info, missing, err := blocked.Find(c.inspector, c.asynqRedis, queue, id)
	act, after := seenInOrder(info, missing, err, item, rule, m.Key())
	if act == lookWake {
		act = inside.ActPresent
	}
	if act != lookFailed {
		err = inner.ActOrder(ctx, m, act, item, after)
	}
	if act == lookFailed && errors.Is(err, asynq.ErrQueueNotFound) {
		c.blind.Do(func() {
			c.log.Warn("automutex: Config.Inspector does not see the queue of a task in order, so a full key counts tasks of producers that have died; "+
				inspectorHint, "key", m.Key(), "task", item.Note)
		})
	}
	if err != nil {
		c.log.Debug("automutex: a stamp could not be looked for", "key", m.Key(), "task", item.Note, "error", err)
	}
}

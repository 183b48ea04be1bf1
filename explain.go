package automutex

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// Explanation says what a task has to wait for at one of its locks, at one moment.
type Explanation struct {
	// Rule is the name of the rule. Key is the lock's key. Limit is how many tasks may hold
	// the key at once: the number of the rule, or that of a control.
	Rule, Key string
	Limit     int
	// Controls are the orders of operators in force for the lock's scope and for its key;
	// see [Guard.Controls].
	Controls []lock.Control
	// Holders are the holders of the key, at most 1,000, the earliest deadline first.
	Holders []HolderInfo
	// Closed says why the key's gate is closed until Opens: [ReasonRate], [ReasonClosed] or
	// [ReasonCooldown]. Nobody gets the lock before, even if the limit is not reached. Empty:
	// the gate is open.
	Closed string
	Opens  time.Time
	// Waiting is how many tasks wait in line in their workers. Parked is how many are
	// parked and were not woken. Called is how many were woken and have not arrived yet.
	Waiting, Parked, Called int
	// Queued is how many tasks of an ordered key are in order and do not hold it. The numbers above
	// do not count them.
	Queued int
	// Behind is the next task of an ordered key, as "queue/id", if it keeps others waiting and does not
	// run. BehindWhy says why: "failed and is retried in 40s", for example. Both are empty otherwise.
	Behind, BehindWhy string
	// Place is how many tasks are in line before this parked task, or before this task in order. It is -1
	// if the task is neither on this lock, or if its queue and ID are not known.
	Place int
	// NextWake is when the line moves at the latest if nobody releases the lock: at the end of
	// a pause; or else at the first holder's deadline if no slot is free; or else when the
	// gate opens; or else now. Deadlines move on while the holders live. NextWake is zero if
	// the pause has no end, if a slot is free and nobody is in line, or if Behind is set. For a parked task that
	// asynq retries earlier, [Guard.ExplainTask] gives the time of that retry.
	NextWake time.Time
}

// HolderInfo is one holder of a lock.
type HolderInfo struct {
	// Owner is the holder's label. Task is its "queue/task-id", or empty if the holder is not
	// a task.
	Owner, Task string
	// Since is when the holder took the lock, by Redis' clock. It is zero with a Limit above
	// 1, since Redis stores only the newest grant.
	Since time.Time
	// Until is the holder's deadline, which moves on while the holder lives.
	Until time.Time
}

// String describes the lock in a few lines, for an operator.
func (e Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rule %q: key %s: %d of %d held; %d waiting, %d parked, %d called", e.Rule, e.Key, len(e.Holders), e.Limit, e.Waiting, e.Parked, e.Called)
	if e.Queued > 0 {
		fmt.Fprintf(&b, ", %d in order", e.Queued)
	}
	if e.Behind != "" {
		fmt.Fprintf(&b, "; behind %s, which %s", e.Behind, e.BehindWhy)
	}
	if e.Closed != "" {
		fmt.Fprintf(&b, "; %s until %s", inner.GateText(e.Closed), e.Opens.Format(time.RFC3339Nano))
	}
	switch {
	case e.Place >= 0 && e.Queued > 0:
		fmt.Fprintf(&b, "; this task is at place %d", e.Place+1)
	case e.Place >= 0:
		fmt.Fprintf(&b, "; this task is parked at place %d", e.Place+1)
	}
	if !e.NextWake.IsZero() {
		fmt.Fprintf(&b, "; the line moves by %s", e.NextWake.Format(time.RFC3339Nano))
	}
	for _, c := range e.Controls {
		fmt.Fprintf(&b, "\n  %s: %s", c.Target, inner.ControlText(c))
	}
	for _, h := range e.Holders {
		b.WriteString("\n  ")
		switch {
		case h.Task != "":
			fmt.Fprintf(&b, "task %s on %s", h.Task, h.Owner)
		default:
			b.WriteString(h.Owner)
		}
		if !h.Since.IsZero() {
			b.WriteString(" since " + h.Since.Format(time.RFC3339Nano))
		}
		b.WriteString(" until " + h.Until.Format(time.RFC3339Nano))
	}
	return b.String()
}

// Explain returns, for each lock of a task, who holds it and who is in line, in the order in
// which the task takes its locks. It returns none if no rule matches. It only reads. Place
// is set if ctx is the context of the task's handler; for a task in a queue use
// [Guard.ExplainTask]. The error wraps a [*KeyError], the error of a function in the Config
// that makes keys, or lock.ErrBackend if Redis could not be asked.
func (g *Guard) Explain(ctx context.Context, t *asynq.Task) ([]Explanation, error) {
	if t == nil {
		return nil, errors.New("automutex: Explain: the task is nil")
	}
	queue, _ := asynq.GetQueueName(ctx)
	note := ""
	if id, ok := asynq.GetTaskID(ctx); ok {
		note = tasknote.Of(queue, id)
	}
	return g.explain(ctx, t, note)
}

// ExplainTask is [Guard.Explain] for a task as asynq's Inspector returns it, with its
// place in line.
func (g *Guard) ExplainTask(ctx context.Context, info *asynq.TaskInfo) ([]Explanation, error) {
	if info == nil {
		return nil, errors.New("automutex: ExplainTask: the TaskInfo is nil; Inspector.GetTaskInfo gives it")
	}
	all, err := g.explain(ctx, asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers), tasknote.Of(info.Queue, info.ID))
	for i := range all {
		if info.State == asynq.TaskStateRetry && all[i].Place >= 0 && info.NextProcessAt.Before(all[i].NextWake) {
			all[i].NextWake = info.NextProcessAt
		}
	}
	return all, err
}

func (g *Guard) explain(ctx context.Context, t *asynq.Task, note string) ([]Explanation, error) {
	targets, err := g.rules.targets(ctx, t, g.cfg.Prefix)
	if err != nil {
		return nil, err
	}
	var controls []lock.Control
	if len(targets) > 0 {
		if controls, err = g.Controls().List(ctx); err != nil {
			return nil, fmt.Errorf("automutex: rule %q: %w", targets[0].rule.Name, err)
		}
	}
	all := make([]Explanation, 0, len(targets))
	for _, target := range targets {
		var options []lock.Option
		if target.rule.InOrder {
			s, _ := stamp.Of(t.Headers(), note)
			options = append(options, inner.InOrder(inside.Place{Nonce: s.Nonce, Ticket: s.Ticket}))
		}
		info, err := inner.Inspect(ctx, g.lockAt(target, note, options...))
		if err != nil {
			return nil, fmt.Errorf("automutex: rule %q: %w", target.rule.Name, err)
		}
		now := time.Now()
		e := Explanation{
			Rule: target.rule.Name, Key: target.key, Limit: target.limit,
			Waiting: info.Waiting, Parked: info.Parked, Called: info.Called, Queued: info.Queued, Place: info.Place,
		}
		if info.Head.MayBlock() && info.Head.Note != note {
			if e.BehindWhy = blocked.Why(blocked.In(g.sighted()).Look(info.Head)); e.BehindWhy != "" {
				e.Behind = info.Head.Note
			}
		}
		its, limit, pause := inner.ControlsFor(controls, target.key)
		if e.Controls = its; limit > 0 {
			e.Limit = limit
		}
		for _, h := range info.Holders {
			holder := HolderInfo{Owner: h.Owner, Task: h.Note, Until: now.Add(h.ExpiresIn)}
			if len(info.Holders) == 1 && e.Limit == 1 {
				holder.Since = now.Add(-info.Granted)
			}
			e.Holders = append(e.Holders, holder)
		}
		if info.Gate.OpensIn > 0 {
			e.Closed, e.Opens = info.Gate.Reason, now.Add(info.Gate.OpensIn)
		}
		switch {
		case pause != nil:
			e.NextWake = pause.PausedUntil
		case len(e.Holders) >= e.Limit:
			e.NextWake = e.Holders[0].Until
		case e.Behind != "": // nobody knows when an operator acts; Why has the time of a retry
		case e.Waiting+e.Parked+e.Called+e.Queued > 0:
			e.NextWake = now
			if e.Closed != "" {
				e.NextWake = e.Opens
			}
		}
		all = append(all, e)
	}
	return all, nil
}

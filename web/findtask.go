package web

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/printable"
)

// foundTask is a task whose ID somebody searched for.
type foundTask struct {
	Task  task
	State string
	Keys  []string
	Why   string // there are no Keys
}

// mostQueues is in how many queues a task is looked for.
const mostQueues = 20

// findTask asks asynq for the task with that ID, in each queue or in that of <queue>/<ID>, and
// makes its keys. Most of what people search for is no ID, so a text that cannot be one is
// not asked for.
func (p *page) findTask(ctx context.Context, text string) []foundTask {
	text = strings.TrimSpace(text)
	if len(text) < 3 || len(text) > 300 || strings.ContainsAny(text, " *?[") {
		return nil
	}
	infos := p.states.find(ctx, text)
	found := make([]foundTask, 0, len(infos))
	for _, info := range infos {
		one := foundTask{Task: p.taskOf(info.Queue + "/" + info.ID), State: printable.Short(info.Type) + ", " + info.State.String() + " in asynq"}
		k := p.known.Load()
		keys, err := k.keyMaker.Keys(ctx, asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers))
		switch {
		case k.hashed:
			one.Why = "its keys are hashed, and the page does not have the secret"
		case err != nil:
			one.Why = printable.Short(err.Error())
		case len(keys) == 0:
			one.Why = "no rule that the page knows gives it a key"
		default:
			one.Keys = keys
		}
		found = append(found, one)
	}
	return found
}

// find gives the tasks with that ID. Like ask it returns within s.within, and its goroutine
// keeps a slot until the Inspector has answered.
func (s *taskStates) find(ctx context.Context, id string) []*asynq.TaskInfo {
	ctx, cancel := context.WithTimeout(ctx, s.within)
	defer cancel()
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	answer := make(chan []*asynq.TaskInfo, 1) // has room: one that comes late blocks nobody
	until := time.Now().Add(s.within)
	go func() { // ends when the Inspector returns
		defer func() { <-s.slots }()
		answer <- lookUp(s.inspector, id, until)
	}()
	select {
	case found := <-answer:
		return found
	case <-ctx.Done():
		return nil
	}
}

// lookUp asks each queue for a task, one after the other, and begins no question after until.
func lookUp(inspector *asynq.Inspector, id string, until time.Time) (found []*asynq.TaskInfo) {
	queues, err := inspector.Queues()
	if err != nil {
		return nil
	}
	slices.SortStableFunc(queues, func(a, b string) int { // the one that is named first
		return cmp.Compare(boolInt(strings.HasPrefix(id, b+"/")), boolInt(strings.HasPrefix(id, a+"/")))
	})
	for _, queue := range queues[:min(len(queues), mostQueues)] {
		name := id
		if its, ok := strings.CutPrefix(id, queue+"/"); ok {
			name = its
		}
		if time.Now().After(until) {
			break
		}
		if info, err := inspector.GetTaskInfo(queue, name); err == nil {
			found = append(found, info)
		}
	}
	return found
}

package e2e

import (
	"context"
	"errors"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

var errUpstream = errors.New("429 Too Many Requests")

// A task's arrival under Replace is forgotten however the task ends.
func TestReplace_arrivalsAreForgotten(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		nothing := automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error { return nil })
		rules := []automutex.Rule{{Task: "work", Scope: "doc", On: []string{"id"}, Busy: automutex.Replace}}
		for _, end := range []automutex.Policy{automutex.Skip, automutex.Archive, automutex.Fail, nothing} {
			rules = append(rules,
				automutex.Rule{Task: end.String(), Name: end.String() + " doc", Scope: "doc", On: []string{"id"}, Busy: automutex.Replace},
				automutex.Rule{Task: end.String(), Name: end.String() + " all", Scope: "all", Busy: end})
		}
		r := start(t, s, setup{rules: rules})
		r.take("all")
		for end, state := range map[automutex.Policy]asynq.TaskState{
			automutex.Skip: asynq.TaskStateCompleted, automutex.Archive: asynq.TaskStateArchived, automutex.Fail: asynq.TaskStateArchived, nothing: asynq.TaskStateCompleted,
		} {
			r.await(r.enqueue(end.String(), one, asynq.MaxRetry(0)), state)
			r.awaitForgotten("doc", "1")
		}
		for _, answer := range []error{nil, errUpstream, asynq.SkipRetry} {
			id := r.enqueue("work", one, asynq.MaxRetry(0))
			r.stage.next(t).returns(answer)
			r.await(id, map[bool]asynq.TaskState{true: asynq.TaskStateCompleted, false: asynq.TaskStateArchived}[answer == nil])
			r.awaitForgotten("doc", "1")
		}
	})
}

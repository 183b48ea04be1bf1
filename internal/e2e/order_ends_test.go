package e2e

import (
	"context"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// A task of an ordered key that another rule ends unrun leaves its place at once: were each looked for first, eight of them would
// take longer than the test has.
func TestInOrder_endedByAnotherRule(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]automutex.Policy{"skip": automutex.Skip, "archive": automutex.Archive} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				r, c := orderRig(t, s, setup{workers: 2, rules: []automutex.Rule{
					{Task: "work", Name: "order", Scope: "order", On: []string{"id"}, InOrder: true, OnArchive: automutex.Continue},
					{Task: "work", Name: "other", Scope: "other", Busy: busy},
				}, handler: func(context.Context, *asynq.Task) error { t.Error("it runs"); return nil }})
				held := r.take("other")
				state := asynq.TaskStateCompleted
				if busy == automutex.Archive {
					state = asynq.TaskStateArchived
				}
				var last string
				for range 8 {
					last = r.enqueueInOrder(c, 1)
				}
				r.await(last, state)
				r.free(held)
			})
		})
	}
}

package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// A key in Redis that is no lock disturbs no other.
func TestOutage_ofAForeignKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Retry}}, handler: func(context.Context, *asynq.Task) error { return nil }})
		redistest.Must(t, r.rdb.LPush(t.Context(), r.lockOf("work", "1").Key(), "another program's").Err())
		id := r.enqueue("work", one)
		r.awaitRetried(id, 0)
		for i := range 5 {
			r.await(r.enqueue("work", map[string]int{"id": i + 2}), asynq.TaskStateCompleted)
			r.rerun(id)
			r.await(id, asynq.TaskStateRetry)
		}
		if text := r.log.Text(0); strings.Count(text, "cannot be asked for locks") > 1 {
			t.Errorf("log: %s", text)
		}
	})
}

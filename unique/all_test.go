package unique

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/redistest"
)

// Many tasks, a result for each, in their order.
func TestEnqueueAll(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, Rule{Task: "a", On: onID}, Rule{Task: "newest", On: onID, Until: UntilStart, Duplicate: Replace},
			Rule{Task: "joined", On: onID, Duplicate: Join})
		var tasks []*asynq.Task
		for i := range 30 {
			for _, name := range []string{"a", "newest", "joined", "plain"} {
				tasks = append(tasks, task(name, fmt.Sprint(i%10), fmt.Sprint(i)))
			}
		}
		tasks = append(tasks, nil, asynq.NewTask("a", []byte(`{}`)))
		results := r.EnqueueAll(t.Context(), tasks, asynq.Queue(r.queue), asynq.MaxRetry(4))
		for i, result := range results[:120] {
			round, name := i/4, []string{"a", "newest", "joined", "plain"}[i%4]
			switch {
			case name == "a" && round >= 10:
				var dup *DuplicateError
				if !errors.As(result.Err, &dup) || dup.ID != results[i%40].Info.ID {
					t.Errorf("task %d: %+v, %v", i, result.Info, result.Err)
				}
			case result.Err != nil || result.Info.Type != name || result.Info.MaxRetry != 4:
				t.Errorf("task %d: %+v, %v", i, result.Info, result.Err)
			case name == "joined" && result.Info.ID != results[i%40].Info.ID:
				t.Errorf("task %d joined %s", i, result.Info.ID)
			}
		}
		if results = results[120:]; len(results) != 2 || results[0].Err == nil || results[1].Err == nil {
			t.Errorf("tasks that are none: %+v", results)
		}
		if got := texts(r.tasks(r.queue, "newest")); !slices.Equal(got,
			[]string{"20", "21", "22", "23", "24", "25", "26", "27", "28", "29"}) {
			t.Errorf("newest are %q", got)
		}
		if n := len(r.tasks(r.queue, "plain")); n != 30 {
			t.Errorf("%d tasks without a rule", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if results := r.EnqueueAll(ctx, []*asynq.Task{task("a", "late", "")}); len(results) != 1 ||
			!errors.Is(results[0].Err, context.Canceled) {
			t.Errorf("after the end of its context: %v", results)
		}
	})
}

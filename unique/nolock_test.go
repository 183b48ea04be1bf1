package unique

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// A Key that answers NoLock has the task enqueued each time, in the rule's queue;
// one that fails has nothing enqueued, and tells the producer.
func TestKey_noLockAndFailure(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		reset := errors.New("db: connection reset")
		for _, until := range []Until{UntilDone, UntilStart} {
			r := start(t, s, Rule{Task: "reindex", Until: until, Key: func(_ context.Context, t *asynq.Task) ([]string, error) {
				if len(t.Payload()) == 0 {
					return nil, reset
				}
				return nil, automutex.NoLock
			}})
			for range 2 {
				r.must(r.Enqueue(task("reindex", "7", "again")))
			}
			if n := len(r.tasks(r.queue, "reindex")); n != 2 {
				t.Errorf("%s: %d tasks, want 2", until, n)
			}
			if _, err := r.Enqueue(asynq.NewTask("reindex", nil)); !errors.Is(err, reset) {
				t.Errorf("%s: got %v", until, err)
			}
			for _, result := range r.EnqueueAll(t.Context(), []*asynq.Task{task("reindex", "7", "a"), asynq.NewTask("reindex", nil)}) {
				if (result.Info == nil) == (result.Err == nil) {
					t.Errorf("%s: %+v", until, result)
				}
			}
			if n := len(r.tasks(r.queue, "reindex")); n != 3 {
				t.Errorf("%s: %d tasks, want 3", until, n)
			}
		}
	})
}

// A task that lacks a field of an Optional rule is enqueued each time. Any other one that has no key is refused, with
// what to do.
func TestRule_optional(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilDone, UntilStart} {
			r := start(t, s, Rule{Task: "reindex", On: []string{"id"}, Optional: true, Until: until}, Rule{Task: "strict", On: []string{"id"}, Until: until})
			for _, payload := range []string{`{}`, `{"id":""}`, `{"id":null}`, `{}`} {
				r.must(r.Enqueue(asynq.NewTask("reindex", []byte(payload))))
			}
			r.must(r.Enqueue(asynq.NewTask("reindex", []byte(`{"id":1}`))))
			if _, err := r.Enqueue(asynq.NewTask("reindex", []byte(`{"id":1}`))); !errors.Is(err, asynq.ErrDuplicateTask) {
				t.Errorf("%s: with the field: %v", until, err)
			}
			if n := len(r.tasks(r.queue, "reindex")); n != 5 {
				t.Errorf("%s: %d tasks, want 5", until, n)
			}
			var never *automutex.KeyError
			if _, err := r.Enqueue(asynq.NewTask("reindex", []byte(`no JSON`))); !errors.As(err, &never) {
				t.Errorf("%s: %v", until, err)
			}
			if _, err := r.Enqueue(asynq.NewTask("strict", []byte(`{}`))); !errors.As(err, &never) || !strings.HasSuffix(err.Error(), ", or set its Optional") {
				t.Errorf("%s: %v", until, err)
			}
		}
	})
}

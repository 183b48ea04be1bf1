package unique

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// While processes with another stored format are there a producer enqueues no task that a rule matches. When they have
// gone, it does.
func TestFormat_anotherIsRefused(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilDone, UntilStart} {
			r := start(t, s, Rule{Task: "work", On: []string{"id"}, Until: until})
			key := r.prefix + ":{control}:format"
			r.rdb.Set(t.Context(), key, "999", time.Minute)
			_, err := r.Enqueue(task("work", "7", ""))
			if !errors.Is(err, lock.ErrBackend) || !strings.Contains(err.Error(), "store format 999") {
				t.Errorf("%v: %v, want ErrBackend that names the format", until, err)
			}
			if found := r.tasks(r.queue, "work", asynq.TaskStatePending); len(found) > 0 {
				t.Errorf("%v: enqueued: %v", until, texts(found))
			}
			r.rdb.Del(t.Context(), key)
			r.must(r.Enqueue(task("work", "7", "")))
			if got := r.rdb.Get(t.Context(), key).Val(); got != "1" {
				t.Errorf("%v: the format is %q", until, got)
			}
		}
	})
}

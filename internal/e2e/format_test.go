package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// While processes with another stored format are there a Client gives no task a place in order, and enqueues none that
// needs one. When they have gone, it does.
func TestFormat_producerIsRefused(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, prefix := s.Client(t), redistest.Name(t)
		c, err := automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb), automutex.Config{
			Prefix: prefix, Rules: []automutex.Rule{{Task: "work", On: []string{"id"}, InOrder: true}},
		})
		redistest.Must(t, err)
		key, queue := prefix+":{control}:format", asynq.Queue(redistest.Name(t))
		rdb.Set(t.Context(), key, "999", time.Minute)
		work := asynq.NewTask("work", []byte(`{"id":7}`))
		unknown := (*automutex.EnqueueError)(nil)
		if _, err := c.Enqueue(work, queue); !errors.Is(err, lock.ErrBackend) || !strings.Contains(err.Error(), "store format 999") || errors.As(err, &unknown) && unknown.Unknown {
			t.Errorf("%v, want ErrBackend that names the format, and that nothing is enqueued", err)
		}
		if keys := rdb.Keys(t.Context(), prefix+":*{work*").Val(); len(keys) > 0 {
			t.Errorf("written: %v", keys)
		}
		rdb.Del(t.Context(), key)
		if _, err := c.Enqueue(work, queue); err != nil {
			t.Error(err)
		}
	})
}

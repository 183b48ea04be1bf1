package e2e

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Parked tasks outlive the processes and servers that know of them.

// The Redis of the locks restarts without its data, that of asynq does not:
// nobody knows of the line any more, and asynq brings its tasks back.
func TestPark_linesLost(t *testing.T) {
	t.Parallel()
	s, locks := redistest.Real(t), redistest.StartReal(t)
	rdb := s.Client(t)
	prefix := redistest.Name(t)
	r := start(t, s, setup{
		rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}, workers: 1, prefix: prefix,
		locks:   locks.Client(t, func(o *redis.UniversalOptions) { o.MaxRetries = -1 }),
		guarded: func(c *automutex.Config) { c.Inspector = asynq.NewInspectorFromRedisClient(rdb) },
	})
	others := lock.New(locks.Client(t), lock.Options{Prefix: prefix, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { _ = others.Close() })
	if _, err := others.Mutex("work", lock.Parts("1")).TryLock(t.Context()); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for i := range 2 {
		id := r.enqueue("work", one)
		info := r.awaitParked(id)
		// The holder might live on for the 30 s of its lease.
		if until := time.Until(info.NextProcessAt); until < 25*time.Second || until > 10*time.Minute {
			t.Errorf("%d: asynq has it in %s", i, until)
		}
		ids = append(ids, id)
	}
	locks.Restart(t)
	for _, id := range ids {
		r.comesBack(id)
		redistest.Eventually(t, patience, func() bool {
			info, err := r.inspector.GetTaskInfo(r.queue, id)
			if err == nil && info.State == asynq.TaskStateRetry { // the connection was broken still
				_ = r.inspector.RunTask(r.queue, id)
			}
			return len(r.stage.started) > 0
		}, "%s comes back", id)
		r.finish(id)
	}
}

// Whatever others have for a note or a name, asynq can store what a task parked
// behind them says.
func TestPark_holderIsNoText(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}, workers: 1})
		m := r.others.Mutex("work", lock.Parts("1"), lock.Note("\xff\x00\xfe"))
		held, err := m.TryLock(t.Context())
		redistest.Must(t, err)
		id := r.enqueue("work", one)
		if info := r.awaitParked(id); !strings.Contains(info.LastErr, `held by task \xff\u0000\xfe on `) {
			t.Errorf("the last error is %q", info.LastErr)
		}
		r.free(held)
		r.finish(id)
	})
}

package unique

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Two schedulers, so that one may fail, enqueue a task each at a tick: it runs once, also if the second one comes when
// the first has ended.
func TestDoubledSchedulers(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s)
		var began, skipped atomic.Int32
		guard, err := automutex.New(r.rdb, automutex.Config{
			Prefix: r.prefix,
			Rules:  []automutex.Rule{{Task: "cron:digest", Cooldown: time.Hour, Busy: automutex.Skip}},
			Observe: func(_ context.Context, e automutex.Event) {
				if e.Kind == automutex.EventSkipped {
					skipped.Add(1)
				}
			},
		})
		redistest.Must(t, err)
		r.serve(func(context.Context, *asynq.Task) error { began.Add(1); return nil }, guard)
		for range 2 {
			_, err := r.plain.Enqueue(asynq.NewTask("cron:digest", nil), asynq.Queue(r.queue))
			redistest.Must(t, err)
		}
		eventually(t, func() bool { return skipped.Load()+began.Load() == 2 }, "both running or being skipped")
		if began.Load() != 1 {
			t.Errorf("%d runs of one tick", began.Load())
		}
	})
}

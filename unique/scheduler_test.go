package unique

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Two schedulers, so that one may fail: each tick runs once, and a run that ends
// in the archive does not block the next.
func TestDoubledSchedulers(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const tick, cooldown, ticks, failing = "@every 2s", 1500 * time.Millisecond, 3, 2
		r := start(t, s)
		var mu sync.Mutex // guards what follows
		var began []time.Time
		skipped, enqueued := 0, map[int]int{}
		guard, err := automutex.New(r.rdb, automutex.Config{
			Prefix: r.prefix,
			Rules:  []automutex.Rule{{Task: "cron:digest", Cooldown: cooldown, Busy: automutex.Skip}},
			Observe: func(_ context.Context, e automutex.Event) {
				if e.Kind == automutex.EventSkipped {
					mu.Lock()
					defer mu.Unlock()
					skipped++
				}
			},
		})
		redistest.Must(t, err)
		r.serve(func(context.Context, *asynq.Task) error {
			mu.Lock()
			defer mu.Unlock()
			began = append(began, time.Now())
			if len(began) == failing {
				return asynq.SkipRetry
			}
			return nil
		}, guard)

		var schedulers []*asynq.Scheduler
		for i := range 2 {
			scheduler := asynq.NewSchedulerFromRedisClient(r.rdb, &asynq.SchedulerOpts{
				Logger: redistest.Silent{},
				PostEnqueueFunc: func(_ *asynq.TaskInfo, err error) {
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Errorf("scheduler %d: %v", i, err)
					}
					enqueued[i]++
				},
			})
			if _, err := scheduler.Register(tick, asynq.NewTask("cron:digest", nil), asynq.Queue(r.queue)); err != nil {
				t.Fatal(err)
			}
			schedulers = append(schedulers, scheduler)
		}
		for _, scheduler := range schedulers {
			redistest.Must(t, scheduler.Start())
		}
		redistest.Eventually(t, longest, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return enqueued[0] >= ticks && enqueued[1] >= ticks
		}, "%d ticks of both schedulers", ticks)
		for _, scheduler := range schedulers {
			scheduler.Shutdown()
		}
		redistest.Eventually(t, longest, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(began)+skipped == enqueued[0]+enqueued[1]
		}, "every task running or being skipped")

		mu.Lock()
		defer mu.Unlock()
		// The tick that failed may be made up for by its second copy.
		if most, least := max(enqueued[0], enqueued[1])+1, min(enqueued[0], enqueued[1]); len(began) < least || len(began) > most || skipped < least-1 {
			t.Errorf("%v ticks: %d runs, %d skipped", enqueued, len(began), skipped)
		}
		for i := range began[1:] {
			if apart := began[i+1].Sub(began[i]); apart < cooldown-50*time.Millisecond && i+1 != failing {
				t.Errorf("runs %d and %d are %s apart", i, i+1, apart)
			}
		}
		if !slices.IsSortedFunc(began, time.Time.Compare) || len(r.tasks(r.queue, "cron:digest", asynq.TaskStateArchived)) != 1 {
			t.Error("one of them is to be in the archive")
		}
	})
}

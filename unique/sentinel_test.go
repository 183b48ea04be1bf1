package unique

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Sentinels replace the master between enqueue and run: what the new one knows is
// still unique, runs, and then makes room.
func TestSentinel(t *testing.T) {
	t.Parallel()
	master := redistest.StartReal(t)
	redistest.StartReplica(t, master)
	watch := redistest.StartSentinels(t, master, 1)
	r := &rig{t: t, prefix: redistest.Name(t), queue: redistest.Name(t), rdb: watch.Client(t)}
	r.plain, r.inspector = asynq.NewClientFromRedisClient(r.rdb), asynq.NewInspectorFromRedisClient(r.rdb)
	r.Client = r.producer(r.rdb,
		Rule{Task: "done", On: []string{"id"}},
		Rule{Task: "started", On: []string{"id"}, Until: UntilStart})

	types := []string{"done", "started"}
	ids := map[string]string{}
	for _, taskType := range types {
		ids[taskType] = r.must(r.Enqueue(task(taskType, "1", "before"))).ID
	}
	// The replica has it: what replication loses is not the matter here.
	if n, err := r.rdb.(*redis.Client).Wait(t.Context(), 1, longest/10).Result(); err != nil || n != 1 {
		t.Fatalf("%d replicas have it: %v", n, err)
	}
	old := watch.Master(t)
	master.Kill(t)
	redistest.Eventually(t, longest, func() bool { now := watch.Master(t); return now != "" && now != old }, "another master")
	redistest.Eventually(t, longest, func() bool { return r.rdb.Set(t.Context(), r.prefix, "", 0).Err() == nil }, "clients that found it")

	for _, taskType := range types {
		info, err := r.Enqueue(task(taskType, "1", "after"))
		r.mustBeDuplicate(info, err, ids[taskType], asynq.TaskStatePending)
	}
	var mu sync.Mutex // guards ran
	var ran []string
	r.serve(func(_ context.Context, task *asynq.Task) error {
		mu.Lock()
		defer mu.Unlock()
		ran = append(ran, task.Type()+": "+string(task.Payload()))
		return nil
	}, r.guard(automutex.Rule{Task: "started", On: []string{"id"}}))
	for _, taskType := range types {
		r.awaitGone(r.queue, ids[taskType]) // done, and not retained
		redistest.Eventually(t, longest, func() bool {
			_, err := r.Enqueue(task(taskType, "1", "then"))
			if err != nil && !errors.Is(err, asynq.ErrDuplicateTask) {
				t.Errorf("enqueue after the run: %v", err)
			}
			return err == nil
		}, "room for another")
	}
	redistest.Eventually(t, longest, func() bool { mu.Lock(); defer mu.Unlock(); return len(ran) == 4 }, "four runs")
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(ran)
	want := []string{
		`done: {"id":"1","text":"before"}`, `done: {"id":"1","text":"then"}`,
		`started: {"id":"1","text":"before"}`, `started: {"id":"1","text":"then"}`,
	}
	if !slices.Equal(ran, want) {
		t.Errorf("ran %q, want %q", ran, want)
	}
}

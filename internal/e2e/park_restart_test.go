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

// parkedRig is a rig of one worker with the key of id 1 taken and n tasks parked
// on it.
func parkedRig(t *testing.T, s *redistest.Server, n int, o setup) (r *rig, free func(), ids []string) {
	t.Helper()
	o.workers = 1
	r, free = busyRig(t, s, automutex.Rule{Busy: automutex.Park}, o)
	for range n {
		id := r.enqueue("work", one)
		r.awaitParked(id)
		ids = append(ids, id)
	}
	return r, free, ids
}

// successor is a rig that takes over the queue and the locks of another.
func (r *rig) successor(s *redistest.Server) *rig { return r.successorWith(s, nil) }

func (r *rig) successorWith(s *redistest.Server, served func(*asynq.Config)) *rig {
	r.t.Helper()
	return start(r.t, s, setup{
		rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}, workers: 1,
		queue: r.queue, prefix: r.cfg.Prefix, served: served,
	})
}

// The holder ends while its server shuts down: its release calls the first of
// the line, which the next server runs, and so on. (Where the old server got hold of
// it before it had stopped, its closed Guard handed it back, for a second or some.)
func TestPark_shutdownCallsTheNext(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		old := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}, workers: 2})
		holder := old.enqueue("work", one)
		run := old.stage.next(t)
		var ids []string
		for range 3 {
			id := old.enqueue("work", one)
			old.awaitParked(id)
			ids = append(ids, id)
		}
		old.closeUnder(t, run)
		old.await(holder, asynq.TaskStateCompleted)
		old.stage.none(t)
		r := old.successorWith(s, comingBack)
		r.finishAll(ids...)
		r.awaitStored(0, 0, "work", "1")
	})
}

// The key comes free while nobody is there to call: asynq brings the first of
// them back when its retry is due, whichever that is, and it brings the others.
func TestPark_shutdownAndAnother(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		old, free, ids := parkedRig(t, s, 3, setup{})
		began := time.Now()
		old.stop()
		if took := time.Since(began); took > patience/2 {
			t.Errorf("Close and Shutdown took %s with tasks parked", took)
		}
		free()
		r := old.successor(s)
		for _, id := range ids {
			info := r.awaitParked(id)
			if until := time.Until(info.NextProcessAt); until > 10*time.Minute {
				t.Errorf("asynq has it in %s", until)
			}
		}
		r.comesBack(ids[1])
		r.finishAll(ids...)
		r.awaitStored(0, 0, "work", "1")
	})
}

// Redis restarts with its data: the lines are there, and looked after as before.
func TestPark_redisRestarted(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.StartReal(t, "--appendonly", "yes", "--appendfsync", "always")
	r, free, ids := parkedRig(t, s, 3, setup{})
	s.Stop(t)
	stopped := time.Now()
	redistest.Eventually(t, patience, func() bool { return time.Since(stopped) > 3*time.Second/4 }, "a look after the line fails")
	s.Start(t)
	for _, id := range ids {
		info := r.awaitParked(id)
		if until := time.Until(info.NextProcessAt); until < time.Second || until > 10*time.Minute {
			t.Errorf("asynq has it in %s", until)
		}
	}
	r.awaitStored(0, 3, "work", "1")
	free()
	r.finishAll(ids...)
	r.awaitStored(0, 0, "work", "1")
}

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

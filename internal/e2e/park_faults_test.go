package e2e

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// What goes wrong, or is done by others, while tasks are parked. In none of
// these tests does asynq look at retries by itself: a task that comes back was
// called, or the test has brought it back.

// isScript tells whether a command runs a script whose n-th key ends so. Keys
// count from 0.
func isScript(cmd redis.Cmder, n int, suffix string) bool {
	args := cmd.Args()
	if name := cmd.Name(); name != "evalsha" && name != "eval" || len(args) < 4+n {
		return false
	}
	key, ok := args[3+n].(string)
	return ok && strings.HasSuffix(key, suffix)
}

// The process that released is gone before it has called anybody: the one that
// parked repeats the call.
func TestPark_releaserKilled(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var hook redistest.FailHook
		var vain atomic.Int64
		hook.Before(func(redis.Cmder) error {
			vain.Add(1)
			return errors.New("this process is dead")
		})
		dead := s.Client(t)
		dead.AddHook(&hook)
		rules := []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}
		a := start(t, s, setup{rules: rules, workers: 1, guarded: func(c *automutex.Config) {
			c.Inspector = asynq.NewInspectorFromRedisClient(dead)
		}})
		b := start(t, s, setup{rules: rules, workers: 1, prefix: a.cfg.Prefix})
		holder := a.enqueue("work", one)
		run := a.stage.next(t)
		first := b.enqueue("work", one)
		b.awaitParked(first)
		second := b.enqueue("work", one)
		b.awaitParked(second)
		run.returns(nil)
		a.await(holder, asynq.TaskStateCompleted)
		redistest.Eventually(t, patience, func() bool { // on a busy machine, b may see the release first
			info, err := b.inspector.GetTaskInfo(b.queue, first)
			return vain.Load() > 0 || err == nil && info.State != asynq.TaskStateRetry
		}, "the release calls")
		b.finishAll(first, second)
	})
}

// A holder that dies leaves nobody who releases. Those that are parked have no
// timer of their own: the look-after sees the deadline.
func TestPark_holderKilled(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}, workers: 1})
		const ttl = 2 * time.Second
		_, err := r.others.Mutex("work", lock.Parts("1"), lock.TTL(ttl), lock.NoRenew()).TryLock(t.Context())
		taken := time.Now()
		redistest.Must(t, err)
		first := r.enqueue("work", one)
		r.awaitParked(first)
		second := r.enqueue("work", one)
		r.finish(first)
		if took := time.Since(taken); took < ttl-50*time.Millisecond {
			t.Errorf("it began %s after a lease of %s was taken", took, ttl)
		}
		r.finish(second)
	})
}

// A paused queue keeps its tasks, and nobody else's.
func TestPark_pausedQueue(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rules := []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}
		a := start(t, s, setup{rules: rules, workers: 1})
		b := start(t, s, setup{rules: rules, workers: 1, prefix: a.cfg.Prefix})
		lease := a.take("work", "1")
		var paused, others []string
		for range 2 {
			paused = append(paused, a.enqueue("work", one))
			a.awaitParked(paused[len(paused)-1])
			others = append(others, b.enqueue("work", one))
			b.awaitParked(others[len(others)-1])
		}
		redistest.Must(t, a.inspector.PauseQueue(a.queue))
		a.free(lease)
		b.finishAll(others...)
		for _, id := range paused {
			if info, err := a.inspector.GetTaskInfo(a.queue, id); err != nil || info.State != asynq.TaskStateRetry {
				t.Errorf("in the paused queue: %+v, %v", info, err)
			}
		}
		a.stage.none(t)
		a.awaitStored(0, 2, "work", "1")
		redistest.Must(t, a.inspector.UnpauseQueue(a.queue))
		a.finishAll(paused...)
		a.awaitStored(0, 0, "work", "1")
	})
}

// The task behind an entry is gone, and another of its ID is there: whatever
// that is, it is not run before its time, nor again.
func TestPark_revivesNobody(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{workers: 1})
		begin := map[string]func(id string){
			"scheduled": func(id string) {
				r.enqueue("work", one, asynq.TaskID(id), asynq.ProcessIn(time.Hour))
				r.await(id, asynq.TaskStateScheduled)
			},
			"completed": func(id string) { r.finish(r.enqueue("other", nil, asynq.TaskID(id))) },
			"failed": func(id string) {
				r.enqueue("other", nil, asynq.TaskID(id))
				r.stage.next(t).returns(errors.New("its own"))
				r.awaitRetried(id, 1)
			},
			"archived": func(id string) {
				r.enqueue("other", nil, asynq.TaskID(id))
				r.stage.next(t).returns(asynq.SkipRetry)
				r.await(id, asynq.TaskStateArchived)
			},
		}
		ends := map[string]asynq.TaskState{
			"scheduled": asynq.TaskStateScheduled, "completed": asynq.TaskStateCompleted,
			"failed": asynq.TaskStateRetry, "archived": asynq.TaskStateArchived,
		}
		for id := range begin {
			r.enqueue("work", one, asynq.TaskID(id))
			r.awaitParked(id)
		}
		last := r.enqueue("work", one)
		r.awaitParked(last)
		for id, begins := range begin {
			r.operate(id, r.inspector.DeleteTask)
			begins(id)
		}
		free()
		r.finish(last)
		r.awaitStored(0, 0, "work", "1")
		for id, state := range ends {
			if info := r.await(id, state); info.Retried > 1 {
				t.Errorf("%s: %+v", id, info)
			}
		}
		if r.stage.count() != len(begin) { // all but the scheduled one, and the last
			t.Errorf("%d runs", r.stage.count())
		}
	})
}

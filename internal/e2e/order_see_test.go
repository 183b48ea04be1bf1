package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// A task says which one it is behind and why: one that failed, and one that is archived. The observer sees that a
// key is blocked, and that an operator skips its head.
func TestInOrder_isSeen(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 3, served: func(c *asynq.Config) {
			comingBack(c)
			c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Hour }
		}})
		first := r.enqueueInOrder(c, 1, asynq.MaxRetry(1))
		second := r.enqueueInOrder(c, 1)
		run := r.stage.next(t)
		seen := func() automutex.Blocked {
			t.Helper()
			keys, err := r.guard.Blocked(t.Context())
			if err != nil || len(keys) != 1 {
				t.Fatalf("%v, %v", keys, err)
			}
			return keys[0]
		}
		run.returns(errors.New("the bank is closed"))
		r.await(first, asynq.TaskStateRetry)
		if e := seen(); e.Task != r.queue+"/"+first || e.Behind != 1 || !strings.Contains(e.Why, "failed and is retried in") || !strings.Contains(e.Why, "the bank is closed") {
			t.Errorf("%+v", e)
		}
		redistest.Must(t, r.inspector.RunTask(r.queue, first))
		r.stage.next(t).returns(errors.New("no such account"))
		r.await(first, asynq.TaskStateArchived)
		e := seen()
		if e.Task != r.queue+"/"+first || !strings.Contains(e.Why, "is archived; run it again or skip it to go on: no such account") {
			t.Errorf("%+v", e)
		}
		got := r.awaitEvent(automutex.EventBlocked, first)
		if got.Key != e.Key || got.Rule != "work" || got.Task != "work" || got.Err == nil || !strings.Contains(got.Err.Error(), "no such account") {
			t.Errorf("%+v", got)
		}
		redistest.Must(t, r.guard.SkipHead(t.Context(), e.Key, r.queue+"/"+first))
		if got := r.awaitEvent(automutex.EventHeadSkipped, first); got.Key != e.Key || got.Rule != "work" || got.Queue != r.queue {
			t.Errorf("%+v", got)
		}
		r.stage.next(t).returns(nil)
		r.await(second, asynq.TaskStateCompleted)
		if n := len(r.seen.list(automutex.EventBlocked)); n != 1 {
			t.Errorf("%d events that the key is blocked, want 1", n)
		}
	})
}

// A task whose queue is paused, or served by nobody, keeps the tasks behind it waiting: operators are told so.
func TestInOrder_behindAQuietQueue(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		quiet := redistest.Name(t)
		r, c := orderRig(t, s, setup{workers: 2})
		first := r.enqueueInOrder(c, 1, asynq.Queue(quiet))
		second := r.enqueueInOrder(c, 1)
		r.awaitParked(second)
		blocked := func(why string) string {
			t.Helper()
			keys, err := r.guard.Blocked(t.Context())
			redistest.Must(t, err)
			if len(keys) != 1 || keys[0].Task != quiet+"/"+first || keys[0].Behind != 1 || keys[0].Why != why {
				t.Fatalf("want %q, is %+v", why, keys)
			}
			return keys[0].Key
		}
		key := blocked("waits in queue " + quiet + ", which no server serves; start one or skip the task")
		redistest.Must(t, r.inspector.PauseQueue(quiet))
		blocked("waits in queue " + quiet + ", which is paused; unpause it or skip the task")
		redistest.Must(t, r.guard.SkipHead(t.Context(), key, quiet+"/"+first))
		r.finish(second)
	})
}

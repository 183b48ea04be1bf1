package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Where two features meet, or a feature meets a slow Redis.

// A Wait that is over before Redis has answered does not make a free key busy.
func TestWait_slowRedisMakesNoFreeKeyBusy(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	const wait = 100 * time.Millisecond
	var hook redistest.FailHook
	var slow atomic.Bool
	hook.Before(func(cmd redis.Cmder) error {
		if slow.Load() && strings.HasPrefix(cmd.Name(), "eval") {
			<-time.After(2 * wait) // what is tested is this delay
		}
		return nil
	})
	locks := s.Client(t)
	locks.AddHook(&hook)
	var ran atomic.Int32
	r := start(t, s, setup{
		locks:   locks,
		rules:   []automutex.Rule{{Task: "work", On: []string{"id"}, Wait: wait, Busy: automutex.Skip}},
		handler: func(context.Context, *asynq.Task) error { ran.Add(1); return nil },
	})
	r.await(r.enqueue("work", map[string]int{"id": 0}), asynq.TaskStateCompleted)
	slow.Store(true)
	for i := range 3 {
		r.await(r.enqueue("work", map[string]int{"id": 1 + i}), asynq.TaskStateCompleted)
	}
	slow.Store(false)
	if ran.Load() != 4 {
		t.Errorf("%d of 4 tasks ran, each with a free key; %v", ran.Load(), r.seen.list(automutex.EventBusy, automutex.EventSkipped))
	}
}

// The inner one of two Middlewares leaves RetryAfter to the outer one, which has the locks.
func TestRetryAfter_middlewareInstalledTwice(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const pause = 2 * time.Second
		returned := make(chan struct{})
		var runs atomic.Int32
		r := start(t, s, setup{
			rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Retry}},
			handler: func(context.Context, *asynq.Task) error {
				if runs.Add(1) == 1 {
					defer close(returned)
					return automutex.RetryAfter(pause, errors.New("later"))
				}
				return nil
			},
			wrap: func(g *automutex.Guard, h asynq.Handler) asynq.Handler { return g.Middleware(g.Middleware(h)) },
		})
		id := r.enqueue("work", one, asynq.MaxRetry(0))
		<-returned
		redistest.Eventually(t, patience, func() bool { return !r.locked("work", "1") || runs.Load() > 1 }, "the lock is free")
		if runs.Load() > 1 {
			t.Error("the lock was held during the pause")
		}
		r.await(id, asynq.TaskStateCompleted)
	})
}

// A task that its handler archives is done: its arrival is forgotten.
func TestReplace_forgetsTheArrivalOfAnArchivedTask(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{
			rules:   []automutex.Rule{replacing(automutex.Rule{})},
			handler: func(context.Context, *asynq.Task) error { return fmt.Errorf("no: %w", asynq.SkipRetry) },
		})
		r.await(r.enqueue("work", one), asynq.TaskStateArchived)
		key := r.lockOf("work", "1").Key() + ":arrivals"
		redistest.Eventually(t, patience, func() bool {
			n, err := r.rdb.Exists(t.Context(), key).Result()
			return err == nil && n == 0
		}, "the arrival is forgotten")
	})
}

// A limit that is lowered below the number of holders: a task still finds its own
// earlier attempt among them, and is not ended by its policy.
func TestSkip_ownAttemptUnderALoweredLimit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Limit: 2, Busy: automutex.Skip}}})
		r.enqueue("work", one)
		other := r.stage.next(t)
		id := r.enqueue("work", one, asynq.Timeout(time.Second))
		own := r.stage.next(t)
		r.awaitRetried(id, 1) // its handler ignores its timeout
		redistest.Must(t, r.guard.Controls().SetLimit(t.Context(), "work|1", 1, "a test"))
		redistest.Eventually(t, patience, func() bool { return len(inner.InForce(r.guard.Controls())) == 1 }, "the limit is in force")
		r.rerun(id)
		redistest.Eventually(t, patience, func() bool { return len(r.seen.list(automutex.EventRetried, automutex.EventSkipped)) > 0 }, "it finds the key taken")
		if skipped := r.seen.list(automutex.EventSkipped); len(skipped) > 0 {
			t.Errorf("skipped while its own earlier attempt runs: %+v", skipped)
		}
		own.returns(nil)
		other.returns(nil)
	})
}

// A task on its last attempt that comes back in its worker, after RetryAfter, waits for
// a newer one at work, as it would with attempts left.
func TestReplace_retryAfterOnTheLastAttemptWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Minute})}})
		id := r.enqueue("work", one, asynq.MaxRetry(0))
		first := r.stage.next(t)
		first.returns(automutex.RetryAfter(time.Second, errors.New("later")))
		newer := r.enqueue("work", one)
		run := r.stage.nextIs(t, newer)
		r.awaitLine(1, "work", "1") // not revoked
		run.returns(nil)
		r.await(newer, asynq.TaskStateCompleted)
		r.finish(id)
	})
}

// The success of another rule says nothing of the rule whose Key fails.
func TestKeyOutage_isOfOneRule(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	r := start(t, s, setup{
		rules: []automutex.Rule{
			{Task: "broken", Key: func(context.Context, *asynq.Task) ([]string, error) { return nil, errors.New("db down") }, Busy: automutex.Retry},
			{Task: "fine", On: []string{"id"}, Busy: automutex.Retry},
		},
		handler: func(context.Context, *asynq.Task) error { return nil },
	})
	for range 3 {
		r.awaitRetried(r.enqueue("broken", one), 0)
		r.await(r.enqueue("fine", one), asynq.TaskStateCompleted)
	}
	if log := r.log.Text(0); strings.Count(log, "db down") != 1 || strings.Contains(log, "works again") {
		t.Errorf("logged: %s", log)
	}
}

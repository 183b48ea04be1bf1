package e2e

import (
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

// Tasks on their last attempt, which wait in their workers for what cannot be
// had: they ask Redis now and then, not all the time, and hear of Close.

// counting refuses each script and SET, or delays it, and counts them.
func counting(sent *atomic.Int64, do func(cmd redis.Cmder) error) *redistest.FailHook {
	hook := &redistest.FailHook{}
	hook.Before(func(cmd redis.Cmder) error {
		if !strings.HasPrefix(cmd.Name(), "eval") && cmd.Name() != "set" {
			return nil
		}
		sent.Add(1)
		return do(cmd)
	})
	return hook
}

// few is how many commands a task may send that pauses between two tries, from
// the beginning of Close to its end; a task that does not sends thousands.
const few = 100

func TestShutdown_lastAttemptWithoutRedis(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, policy := range []automutex.Policy{automutex.Retry, automutex.Park, automutex.Replace} {
			var sent atomic.Int64
			locks := s.Client(t)
			locks.AddHook(counting(&sent, func(redis.Cmder) error { return redistest.ReplyError("ERR not now") }))
			r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: policy}}, locks: locks, served: quickly(2 * time.Second)})
			id := r.enqueue("work", nil, asynq.MaxRetry(0))
			r.awaitEvent(automutex.EventBackendError, id)
			before := sent.Load()
			if err := awaitClosed(t, r.closing(t.Context())); err != nil {
				t.Errorf("%s: Close: %v", policy, err)
			}
			r.shutdown()
			if n := sent.Load() - before; n > few {
				t.Errorf("%s: %d commands from Close to the end of Shutdown", policy, n)
			}
			r.await(id, asynq.TaskStatePending) // asynq has taken it back, unrun
			r.stop()
		}
	})
}

// A lease that is lost each time before the handler can begin.
func TestShutdown_lastAttemptLosesItsLeases(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var sent atomic.Int64
		locks := s.Client(t)
		hook := counting(&sent, func(cmd redis.Cmder) error {
			if strings.Contains(fmt.Sprint(cmd.Args()...), "{second}") {
				time.Sleep(200 * time.Millisecond) // a slow Redis: much longer than the first may be held, since timers may be late
			}
			return nil
		})
		locks.AddHook(hook)
		r := start(t, s, setup{locks: locks, served: quickly(2 * time.Second), rules: []automutex.Rule{
			{Task: "work", Name: "first", Scope: "first", MaxHold: time.Millisecond, Busy: automutex.Retry},
			{Task: "work", Name: "second", Scope: "second", Busy: automutex.Retry},
		}})
		id := r.enqueue("work", nil, asynq.MaxRetry(0))
		began := time.Now()
		redistest.Eventually(t, patience, func() bool { return len(r.seen.list(automutex.EventAcquired)) >= 4 }, "it tries again")
		if took := time.Since(began); took < retakeDelay {
			t.Errorf("two tries within %s", took)
		}
		if err := awaitClosed(t, r.closing(t.Context())); err != nil {
			t.Error(err)
		}
		r.shutdown()
		r.await(id, asynq.TaskStatePending)
		r.stage.none(t)
	})
}

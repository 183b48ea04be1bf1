package automutex

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

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
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, policy := range []Policy{Retry, Park, Replace} {
			var sent atomic.Int64
			locks := s.Client(t)
			locks.AddHook(counting(&sent, func(redis.Cmder) error { return redistest.ReplyError("ERR not now") }))
			r := start(t, s, setup{rules: []Rule{{Task: "work", Busy: policy}}, locks: locks, served: quickly(2 * time.Second)})
			id := r.enqueue("work", nil, asynq.MaxRetry(0))
			r.awaitEvent(EventBackendError, id)
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
		r := start(t, s, setup{locks: locks, served: quickly(2 * time.Second), rules: []Rule{
			{Task: "work", Name: "first", Scope: "first", MaxHold: time.Millisecond},
			{Task: "work", Name: "second", Scope: "second"},
		}})
		id := r.enqueue("work", nil, asynq.MaxRetry(0))
		began := time.Now()
		redistest.Eventually(t, patience, func() bool { return len(r.seen.list(EventAcquired)) >= 4 }, "it tries again")
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

// The pause ends with what makes another try pointless.
func TestAttempt_pause(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), &logged{}, &events{})
	ended, end := context.WithCancel(context.Background())
	end()
	soon, cancel := context.WithTimeout(context.Background(), margin/2)
	defer cancel()
	for name, c := range map[string]struct {
		ctx   context.Context
		d     time.Duration
		again bool
	}{
		"over":                       {context.Background(), time.Millisecond, true},
		"the task's context ended":   {ended, time.Hour, false},
		"the margin before deadline": {soon, time.Hour, false},
	} {
		d := &delivery{guard: guard, ctx: c.ctx}
		if again := d.sleepOnLastAttempt(c.d); again != c.again {
			t.Errorf("%s: %t", name, again)
		}
	}
	d := &delivery{guard: guard, ctx: context.Background(), replacing: newReplaceState()}
	d.replacing.requestStop(target{})
	if d.sleepOnLastAttempt(time.Hour) {
		t.Error("a task that was replaced tries again")
	}
	guard.stop()
	if (&delivery{guard: guard, ctx: context.Background()}).sleepOnLastAttempt(time.Hour) {
		t.Error("a task tries again after Close")
	}
}

package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// The message to the holder's process is lost: the newcomer asks again.
func TestReplace_lostMessage(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		p, locks := behindProxy(t, s)
		prefix := redistest.Name(t)
		rules := []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour})}
		far := start(t, s, setup{rules: rules, prefix: prefix, locks: locks})
		near := start(t, s, setup{rules: rules, prefix: prefix})
		old := far.enqueue("work", one)
		running := far.stage.next(t)
		far.awaitSubscribed()
		p.DropMessages(true)
		dropped := p.DroppedMessages()
		young := near.enqueue("work", one)
		redistest.Eventually(t, patience, func() bool { return p.DroppedMessages() > dropped+1 }, "two messages lost")
		if running.ctx.Err() != nil {
			t.Fatal("it heard all the same")
		}
		p.DropMessages(false)
		running.awaitEnd(t)
		running.returns(context.Cause(running.ctx))
		far.awaitRevoked(old)
		near.stage.next(t).returns(nil)
		near.await(young, asynq.TaskStateCompleted)
	})
}

// A waiter that hears nothing of a newer one behind it is granted the lock first,
// and hands it on.
func TestReplace_handedOn(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix, queue := redistest.Name(t), redistest.Name(t)
		newer := lock.New(s.Client(t), lock.Options{Prefix: prefix}) // and calls nobody
		defer func() { _ = newer.Close() }()
		m := func(options ...lock.Option) *lock.Lock {
			return newer.Mutex("work", append(options, lock.Parts("1"), lock.Note("newer"))...)
		}
		// No call of the waiter gets through before it holds the lock.
		deaf, locks := &redistest.FailHook{}, s.Client(t)
		deaf.Before(func(cmd redis.Cmder) error {
			if !runs(cmd, "stop", "") {
				return nil
			}
			if holders, err := m().Holders(context.Background()); err == nil && len(holders) == 1 && strings.HasPrefix(holders[0].Note, queue) {
				return nil
			}
			return redistest.ReplyError("ERR not now")
		})
		locks.AddHook(deaf)
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour})}, prefix: prefix, queue: queue, locks: locks})
		taken := r.take("work", "1")
		waits := r.enqueue("work", one)
		r.awaitLine(1, "work", "1")
		arrival, _, err := inner.Arrive(t.Context(), m())
		redistest.Must(t, err)
		got := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			lease, err := m(inner.OnStop(arrival, func() {})).Lock(ctx)
			if err == nil {
				err = lease.Unlock(context.Background())
			}
			got <- err
		}()
		r.awaitLine(2, "work", "1")
		r.free(taken)
		redistest.Must(t, <-got)
		if event := r.awaitRevoked(waits); event.Held != 0 {
			t.Errorf("got %+v", event)
		}
		r.stage.none(t)
		if events := r.seen.list(automutex.EventAcquired); len(events) > 0 {
			t.Errorf("got %+v", events)
		}
	})
}

// Redis is restarted and forgets everything: the holder has lost its lease, a
// newcomer that waits gets the lock, and the next one is heard again.
func TestReplace_redisRestarted(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	away := redistest.Mini(t) // asynq's
	r := start(t, away, setup{rules: []automutex.Rule{replacing(automutex.Rule{TTL: 9 * time.Second, Wait: time.Hour})}, locks: s.Client(t)})
	r.enqueue("work", one)
	running := r.stage.next(t)
	young := r.enqueue("work", one)
	running.awaitEnd(t)
	s.Restart(t)
	next := r.stage.next(t) // the first one's lease is lost, and it has been told to stop
	if next.id != young {
		t.Errorf("%s runs", next.id)
	}
	running.returns(context.Cause(running.ctx))
	r.awaitRevoked(running.id)
	newest := r.enqueue("work", one)
	if cause := next.awaitEnd(t); !errors.Is(cause, automutex.ErrReplaced) {
		t.Errorf("the cause is %v", cause)
	}
	next.returns(context.Cause(next.ctx))
	r.awaitRevoked(young)
	r.stage.next(t).returns(nil)
	r.await(newest, asynq.TaskStateCompleted)
}

// Redis does not answer when a task on its last attempt arrives: it waits for
// that in its worker, and then asks older ones to stop like any other.
func TestReplace_lastAttemptAfterAnOutage(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		hook, locks := &redistest.FailHook{}, s.Client(t)
		locks.AddHook(hook)
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour})}, locks: locks})
		old := r.enqueue("work", one)
		running := r.stage.next(t)
		hook.Before(func(cmd redis.Cmder) error {
			if args := cmd.Args(); len(args) > 3 {
				if key, _ := args[3].(string); strings.HasSuffix(key, ":arrivals") {
					return redistest.ReplyError("LOADING not yet")
				}
			}
			return nil
		})
		young := r.enqueue("work", one, asynq.MaxRetry(0))
		r.awaitEvent(automutex.EventBackendError, young)
		hook.Before(nil)
		if cause := running.awaitEnd(t); !errors.Is(cause, automutex.ErrReplaced) {
			t.Errorf("the cause is %v", cause)
		}
		running.returns(context.Cause(running.ctx))
		r.awaitRevoked(old)
		r.stage.next(t).returns(nil)
		r.await(young, asynq.TaskStateCompleted)
	})
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// The tests of the policy Replace. This file has two tasks of one key: the newer one stops
// the older one. newest_test.go tests which task is the newer one, replace_beside_test.go
// Replace together with other features, replace_faults_test.go faults.

// replacing is a rule for tasks of type "work", keyed on id.
func replacing(rule automutex.Rule) automutex.Rule {
	rule.Task, rule.On, rule.Busy = "work", []string{"id"}, automutex.Replace
	return rule
}

// awaitRevoked waits until asynq has the task no more, which is to have ended so.
func (r *rig) awaitRevoked(id string) automutex.Event {
	r.t.Helper()
	event := r.awaitEvent(automutex.EventReplaced, id)
	r.awaitDropped(id)
	return event
}

// awaitForgotten waits until no arrival is known at the key any more.
func (r *rig) awaitForgotten(scope string, parts ...string) {
	r.t.Helper()
	key := r.lockOf(scope, parts...).Key() + ":arrivals"
	redistest.Eventually(r.t, patience, func() bool {
		n, err := r.rdb.Exists(context.Background(), key).Result()
		return err == nil && n == 0
	}, "no arrivals at %s", key)
}

// untouched reports what reaches the server's own functions.
func untouched(t *testing.T) func(*asynq.Config) {
	return func(c *asynq.Config) {
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
			t.Errorf("the ErrorHandler was told: %v", err)
		})
		c.IsFailure = func(err error) bool {
			t.Errorf("IsFailure was asked: %v", err)
			return true
		}
	}
}

// The holder stops with an error, whatever it is: its task is over, neither
// failed nor archived nor retried, on its last attempt too.
func TestReplace_holderReturnsAnError(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{})}, served: untouched(t)})
		for i, answer := range []error{automutex.ErrReplaced, errors.New("cut short"), context.Canceled, fmt.Errorf("no: %w", asynq.SkipRetry)} {
			old := r.enqueue("work", one, asynq.MaxRetry(i%2))
			running := r.stage.next(t)
			young := r.enqueue("work", one)
			if cause := running.awaitEnd(t); !errors.Is(cause, automutex.ErrReplaced) || !errors.Is(running.ctx.Err(), context.Canceled) {
				t.Errorf("the context ended with %v, cause %v", running.ctx.Err(), cause)
			}
			r.awaitLine(1, "work", "1")
			r.stage.none(t) // it has not returned yet
			running.returns(answer)
			next := r.stage.nextIs(t, young)
			event := r.awaitRevoked(old)
			if event.Rule != "work" || event.Key != r.lockOf("work", "1").Key() || event.Policy != automutex.Replace || event.Held <= 0 || event.Waited != 0 {
				t.Errorf("got %+v", event)
			}
			next.returns(nil)
			r.await(young, asynq.TaskStateCompleted)
			if kinds := r.seen.kindsOf(old); !slices.Equal(kinds, []automutex.EventKind{automutex.EventAcquired, automutex.EventReplaced, automutex.EventReleased}) {
				t.Errorf("events of the old one: %v", kinds)
			}
			if kinds := r.seen.kindsOf(young); !slices.Equal(kinds, []automutex.EventKind{automutex.EventWaiting, automutex.EventWaited, automutex.EventAcquired, automutex.EventReleased}) {
				t.Errorf("events of the new one: %v", kinds)
			}
		}
		r.awaitForgotten("work", "1")
		if text := r.log.Text(0); text != "" { // at Info and above
			t.Errorf("logged:\n%s", text)
		}
	})
}

// The holder finishes all the same: it is done.
func TestReplace_holderReturnsNil(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{})}, served: untouched(t)})
		old := r.enqueue("work", one)
		running := r.stage.next(t)
		young := r.enqueue("work", one)
		running.awaitEnd(t)
		running.returns(nil)
		r.await(old, asynq.TaskStateCompleted)
		r.stage.next(t).returns(nil)
		r.await(young, asynq.TaskStateCompleted)
		if kinds := r.seen.kindsOf(old); !slices.Equal(kinds, []automutex.EventKind{automutex.EventAcquired, automutex.EventReleased}) {
			t.Errorf("events of the old one: %v", kinds)
		}
		r.awaitForgotten("work", "1")
	})
}

// The holder does not listen: its lease is renewed for as long as it runs, and it
// is not overlapped.
func TestReplace_holderDoesNotListen(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const ttl = 9 * time.Second // a renewal may be late on a busy machine
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{TTL: ttl, Wait: time.Hour})}})
		old := r.enqueue("work", one)
		running := r.stage.next(t)
		lease, _ := automutex.Lease(running.ctx)
		young := r.enqueue("work", one)
		running.awaitEnd(t)
		asked := time.Now()
		redistest.Eventually(t, patience, func() bool { return lease.Deadline().After(asked.Add(ttl)) }, "renewed after it was asked to stop")
		r.awaitLine(1, "work", "1")
		r.stage.none(t)
		running.returns(errors.New("at last"))
		r.stage.next(t).returns(nil)
		r.await(young, asynq.TaskStateCompleted)
		r.awaitRevoked(old)
		if most := r.stage.mostAtOnce("work"); most != 1 {
			t.Errorf("%d at once", most)
		}
	})
}

// The holder takes longer than the newcomer's Wait, or its TTL where there is
// none: the newcomer goes back, unspent, and comes again.
func TestReplace_waitPasses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for long, rule := range map[time.Duration]automutex.Rule{
			300 * time.Millisecond: {Wait: 300 * time.Millisecond, Busy: automutex.Retry},
			5 * time.Second:        {TTL: 5 * time.Second, Busy: automutex.Retry},
		} {
			r := start(t, s, setup{rules: []automutex.Rule{replacing(rule)}, served: untouched(t)})
			old := r.enqueue("work", one)
			running := r.stage.next(t)
			young := r.enqueue("work", one)
			info := r.awaitRetried(young, 0)
			if !strings.Contains(info.LastErr, r.lockOf("work", "1").Key()) || !strings.Contains(info.LastErr, old) {
				t.Errorf("the last error is %q", info.LastErr)
			}
			if event := r.awaitEvent(automutex.EventBusy, young); event.Waited < long-50*time.Millisecond || event.Policy != automutex.Replace {
				t.Errorf("got %+v", event)
			}
			if event := r.awaitEvent(automutex.EventRetried, young); event.Delay < time.Second || event.Delay > 5*time.Second || event.Policy != automutex.Replace {
				t.Errorf("got %+v", event)
			}
			running.awaitEnd(t)
			running.returns(errors.New("stopped"))
			r.awaitRevoked(old)
			r.rerun(young)
			r.stage.next(t).returns(nil)
			r.await(young, asynq.TaskStateCompleted)
			r.stop()
		}
	})
}

// A newcomer that waits is replaced by a newer one, and never runs.
func TestReplace_waiting(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour})}, served: untouched(t)})
		old := r.enqueue("work", one)
		running := r.stage.next(t)
		var waits string
		for i := range 3 {
			young := r.enqueue("work", one, asynq.MaxRetry(i)) // on its last attempt, too
			if waits != "" {
				if event := r.awaitRevoked(waits); event.Waited <= 0 || event.Held != 0 || event.Rule != "work" || event.Policy != automutex.Replace {
					t.Errorf("got %+v", event)
				}
				if kinds := r.seen.kindsOf(waits); !slices.Equal(kinds, []automutex.EventKind{automutex.EventWaiting, automutex.EventWaited, automutex.EventBusy, automutex.EventReplaced}) {
					t.Errorf("events %v", kinds)
				}
			}
			waits = young
			r.awaitLine(1, "work", "1")
		}
		r.stage.none(t)
		running.returns(context.Cause(running.ctx))
		next := r.stage.nextIs(t, waits)
		next.returns(nil)
		r.awaitRevoked(old)
		r.await(waits, asynq.TaskStateCompleted)
		if n := r.stage.count(); n != 2 {
			t.Errorf("%d runs", n)
		}
		r.awaitForgotten("work", "1")
	})
}

// A holder that panics when it is asked fails like any other.
func TestReplace_panic(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var first sync.Once
		running := make(chan struct{})
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{})}, handler: func(ctx context.Context, _ *asynq.Task) error {
			first.Do(func() {
				close(running)
				<-ctx.Done()
				panic("boom")
			})
			return nil
		}})
		old := r.enqueue("work", one)
		<-running
		young := r.enqueue("work", one)
		r.await(young, asynq.TaskStateCompleted)
		if info := r.awaitRetried(old, 1); !strings.Contains(info.LastErr, "boom") {
			t.Errorf("the last error is %q", info.LastErr)
		}
	})
}

// Close: newcomers go back to asynq, and the holder is left to itself.
func TestReplace_close(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour, Limit: 2})}})
		olds := []string{r.enqueue("work", one), r.enqueue("work", one)}
		runs := []*run{r.stage.next(t), r.stage.next(t)}
		youngs := []string{r.enqueue("work", one), r.enqueue("work", one)}
		r.awaitLine(2, "work", "1")
		for _, run := range runs {
			run.awaitEnd(t)
		}
		closed := r.closing(t.Context())
		for _, id := range youngs {
			if info := r.awaitRetried(id, 0); !strings.Contains(info.LastErr, "closed") {
				t.Errorf("the last error is %q", info.LastErr)
			}
		}
		for _, run := range runs {
			run.returns(context.Cause(run.ctx))
		}
		if err := awaitClosed(t, closed); err != nil {
			t.Error(err)
		}
		for _, id := range olds {
			r.awaitRevoked(id)
		}
		r.stage.none(t)
	})
}

// awaitSubscribed waits until the guard hears messages.
func (r *rig) awaitSubscribed() {
	r.t.Helper()
	prefix := r.cfg.Prefix
	channels := func(rdb redis.UniversalClient) (n int) {
		cluster, ok := rdb.(*redis.ClusterClient)
		if !ok {
			return len(rdb.PubSubChannels(context.Background(), prefix+":*").Val())
		}
		var mu sync.Mutex // ForEachMaster calls at once
		_ = cluster.ForEachMaster(context.Background(), func(ctx context.Context, node *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			n += len(node.PubSubChannels(ctx, prefix+":*").Val())
			return nil
		})
		return n
	}
	redistest.Eventually(r.t, patience, func() bool { return channels(r.rdb) > 0 }, "a subscription")
}

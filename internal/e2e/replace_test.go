package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

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

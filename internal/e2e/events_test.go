package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Every kind of event, with every field that has a meaning for it and no other.
func TestEvents_fields(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		p, locks := behindProxy(t, s)
		r := start(t, s, setup{locks: locks, rules: []automutex.Rule{
			{Task: "work", Name: "turns", On: []string{"id"}, MaxHold: soon, Busy: automutex.Retry},
			{Task: "skip", Busy: automutex.Skip},
		}})
		is := func(event automutex.Event, want automutex.Event) {
			t.Helper()
			want.Queue = r.queue
			want.Waited, want.Held = event.Waited, event.Held // checked by the callers
			want.Err, want.Busy = event.Err, event.Busy
			if event != want {
				t.Errorf("got  %+v\nwant %+v", event, want)
			}
		}
		key := r.lockOf("work", "1").Key()
		base := automutex.Event{Rule: "turns", Key: key, Task: "work"}
		with := func(kind automutex.EventKind, id string) automutex.Event {
			e := base
			e.Kind, e.TaskID = kind, id
			return e
		}

		// Acquired, released; lost and overdue.
		id := r.enqueue("work", one)
		run := r.stage.next(t)
		event := r.awaitEvent(automutex.EventAcquired, id)
		is(event, with(automutex.EventAcquired, id))
		if event.Waited <= 0 || event.Held != 0 || event.Err != nil || event.Busy != nil {
			t.Errorf("got %+v", event)
		}
		run.cut()
		event = r.awaitEvent(automutex.EventOverdue, id)
		is(event, with(automutex.EventOverdue, id))
		if event.Waited != 0 || event.Held <= 0 || !errors.Is(event.Err, context.Canceled) || event.Busy != nil {
			t.Errorf("got %+v", event)
		}
		event = r.awaitEvent(automutex.EventLost, id)
		is(event, with(automutex.EventLost, id))
		if event.Waited != 0 || event.Held < soon-10*time.Millisecond || !errors.Is(event.Err, lock.ErrLost) || event.Busy != nil {
			t.Errorf("got %+v", event)
		}
		run.returns(nil)
		event = r.awaitEvent(automutex.EventReleased, id)
		is(event, with(automutex.EventReleased, id))
		if event.Waited != 0 || event.Held < soon-10*time.Millisecond || event.Err != nil || event.Busy != nil {
			t.Errorf("got %+v", event)
		}

		// Busy, retried, skipped.
		lease := r.take("work", "1")
		id = r.enqueue("work", one)
		event = r.awaitEvent(automutex.EventRetried, id)
		want := with(automutex.EventRetried, id)
		want.Policy, want.Delay = automutex.Retry, event.Delay
		is(event, want)
		if event.Waited != 0 || event.Held != 0 || event.Err != nil || event.Busy != nil || event.Delay < time.Second {
			t.Errorf("got %+v", event)
		}
		event = r.awaitEvent(automutex.EventBusy, id)
		want = with(automutex.EventBusy, id)
		want.Policy = automutex.Retry
		is(event, want)
		if event.Busy == nil || event.Busy.Key != key || event.Busy.Rule != "turns" || event.Err != nil {
			t.Errorf("got %+v", event)
		}
		r.free(lease)
		r.take("skip")
		id = r.enqueue("skip", nil)
		event = r.awaitEvent(automutex.EventSkipped, id)
		is(event, automutex.Event{Kind: automutex.EventSkipped, Rule: "skip", Key: r.lockOf("skip").Key(), Task: "skip", TaskID: id, Policy: automutex.Skip})

		// Key error, backend error.
		id = r.enqueue("work", `{}`)
		event = r.awaitEvent(automutex.EventKeyError, id)
		is(event, automutex.Event{Kind: automutex.EventKeyError, Task: "work", TaskID: id})
		if event.Err == nil {
			t.Errorf("got %+v", event)
		}
		away(p)
		id = r.enqueue("work", one)
		event = r.awaitEvent(automutex.EventBackendError, id)
		is(event, with(automutex.EventBackendError, id))
		if !errors.Is(event.Err, lock.ErrBackend) {
			t.Errorf("got %+v", event)
		}
		p.Heal()
	})
}

// Contention is no news: an operator's log stays empty, whatever the policy.
func TestEvents_quietLog(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		policies := []automutex.Policy{automutex.Retry, automutex.RetryIn(time.Minute), automutex.Skip, automutex.Archive, automutex.Fail, automutex.Allow, automutex.AfterFailure(answers)}
		var rules []automutex.Rule
		for i, policy := range policies {
			rules = append(rules, automutex.Rule{Task: fmt.Sprintf("%d: %s", i, policy), Busy: policy})
		}
		rules = append(rules, automutex.Rule{Task: "waits", Wait: time.Minute, Busy: automutex.Retry})
		r := start(t, s, setup{rules: rules})
		for _, rule := range rules {
			r.enqueue(rule.Task, nil)
			run := r.stage.next(t)
			id := r.enqueue(rule.Task, nil)
			last := ""
			if rule.Task != "waits" {
				r.awaitEvent(automutex.EventBusy, id)
			} else {
				r.awaitLine(1, rule.Task)
				last = id
			}
			run.returns(nil)
			if last != "" || rule.Busy == automutex.Allow {
				r.stage.next(t).returns(nil)
			}
		}
		r.stop()
		if text := r.log.Text(slog.LevelInfo); text != "" {
			t.Errorf("logged: %s", text)
		}
	})
}

// Without Observe and Logger all goes on as well.
func TestEvents_nobodyListens(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{
			rules:   []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Skip}},
			guarded: func(c *automutex.Config) { c.Observe, c.Logger = nil, nil },
		})
		r.take("work", "2")
		for id, state := range map[int]asynq.TaskState{1: asynq.TaskStateCompleted, 2: asynq.TaskStateCompleted} {
			task := r.enqueue("work", map[string]int{"id": id})
			if id == 1 {
				r.stage.next(t).returns(nil)
			}
			r.await(task, state)
		}
	})
}

// The context of an event is the task's: a tracer finds its span there.
func TestEvents_context(t *testing.T) {
	t.Parallel()
	type key struct{}
	var found int
	guard, err := automutex.New(redistest.Mini(t).Client(t), automutex.Config{
		Rules: []automutex.Rule{{Task: "work"}}, Prefix: redistest.Name(t),
		Observe: func(ctx context.Context, _ automutex.Event) {
			if ctx.Value(key{}) == "mine" {
				found++
			}
		},
	})
	redistest.Must(t, err)
	defer func() { _ = guard.Close(t.Context()) }()
	handler := guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	redistest.Must(t, handler.ProcessTask(context.WithValue(t.Context(), key{}, "mine"), asynq.NewTask("work", nil)))
	if found != 2 {
		t.Errorf("%d events with the task's context, want 2", found)
	}
}

// Each observer is called with every event, in order; nil is no observer.
func TestJoinObservers(t *testing.T) {
	t.Parallel()
	var called []string
	observer := func(name string) func(context.Context, automutex.Event) {
		return func(_ context.Context, e automutex.Event) { called = append(called, name+" "+e.Task) }
	}
	automutex.JoinObservers(observer("a"), nil, observer("b"))(t.Context(), automutex.Event{Task: "t"})
	if !slices.Equal(called, []string{"a t", "b t"}) {
		t.Errorf("called %q", called)
	}
	automutex.JoinObservers()(t.Context(), automutex.Event{})
	automutex.JoinObservers(nil)(t.Context(), automutex.Event{})
}

// wantPolicy reports an error if an event of the task names another policy as the one that
// applied.
func (r *rig) wantPolicy(id string, want automutex.Policy) {
	r.t.Helper()
	for _, event := range r.seen.list(automutex.EventBusy, automutex.EventSkipped, automutex.EventRetried, automutex.EventParked, automutex.EventReplaced) {
		if event.TaskID == id && event.Policy != want {
			r.t.Errorf("%s names the policy %s, want %s", event.Kind, event.Policy, want)
		}
	}
}

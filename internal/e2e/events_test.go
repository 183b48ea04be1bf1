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
			{Task: "skip", Name: "skip", On: []string{"id"}, Busy: automutex.Skip},
		}})
		// is checks an event. Of Waited, Held and Delay, which nobody knows, it checks that those are set which want has.
		is := func(want automutex.Event, id string, err error) (got automutex.Event) {
			t.Helper()
			got = r.awaitEvent(want.Kind, id)
			same := got
			for _, d := range [][2]time.Duration{{got.Waited, want.Waited}, {got.Held, want.Held}, {got.Delay, want.Delay}} {
				if (d[0] > 0) != (d[1] > 0) || d[0] < d[1] {
					t.Errorf("%s: %+v, want %s at least", want.Kind, got, d[1])
				}
			}
			same.Waited, same.Held, same.Delay, same.Err, same.Busy = want.Waited, want.Held, want.Delay, nil, nil
			want.Queue, want.TaskID = r.queue, id
			if same != want || !errors.Is(got.Err, err) || (got.Busy != nil) != (want.Kind == automutex.EventBusy) {
				t.Errorf("got  %+v\nwant %+v, %v", got, want, err)
			}
			return got
		}
		const most = soon - 10*time.Millisecond
		of := func(kind automutex.EventKind) automutex.Event {
			return automutex.Event{Kind: kind, Rule: "turns", Key: r.lockOf("work", "1").Key(), Task: "work"}
		}
		held := func(kind automutex.EventKind, d time.Duration) automutex.Event {
			e := of(kind)
			e.Held = d
			return e
		}

		id := r.enqueue("work", one)
		run := r.stage.next(t)
		acquired := of(automutex.EventAcquired)
		acquired.Waited = 1
		is(acquired, id, nil)
		run.cut()
		is(held(automutex.EventOverdue, 1), id, context.Canceled)
		is(held(automutex.EventLost, most), id, lock.ErrLost)
		run.returns(nil)
		is(held(automutex.EventReleased, most), id, nil)

		lease := r.take("work", "1")
		id = r.enqueue("work", one)
		retried, busy := of(automutex.EventRetried), of(automutex.EventBusy)
		retried.Policy, busy.Policy, retried.Delay = automutex.Retry, automutex.Retry, time.Second
		is(retried, id, nil)
		if b := is(busy, id, nil).Busy; b == nil || b.Key != busy.Key || b.Rule != "turns" {
			t.Errorf("got %+v", b)
		}
		r.free(lease)
		r.take("skip", "1")
		id = r.enqueue("skip", one)
		is(automutex.Event{Kind: automutex.EventSkipped, Rule: "skip", Key: r.lockOf("skip", "1").Key(), Task: "skip", Policy: automutex.Skip}, id, nil)

		id = r.enqueue("work", `{}`)
		if e := r.awaitEvent(automutex.EventKeyError, id); e.Err == nil || e.Key != "" || e.Task != "work" || e.Queue != r.queue {
			t.Errorf("got %+v", e)
		}
		away(p)
		is(of(automutex.EventBackendError), r.enqueue("work", one), lock.ErrBackend)
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

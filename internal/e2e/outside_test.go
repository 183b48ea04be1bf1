package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Callers of Lock and parking tasks of one key together are never more than its Limit, and all have their turn.
func TestLock_besideTasks(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		const limit, tasks, callers, calls = 2, 40, 4, 10
		both := newStage()
		moment := func() {
			both.enter("")
			time.Sleep(rand.N(2 * time.Millisecond))
			both.leave("")
		}
		r := start(t, s, setup{workers: 4, rules: []automutex.Rule{{On: onID, Limit: limit}},
			handler: func(context.Context, *asynq.Task) error { moment(); return nil }})
		var ids []string
		for range tasks {
			ids = append(ids, r.enqueueOne())
		}
		var group sync.WaitGroup
		for range callers {
			group.Add(1)
			go func() {
				defer group.Done()
				for range calls {
					lease, err := r.guard.Lock(t.Context(), "work", "1")
					if err != nil {
						t.Error(err)
						return
					}
					moment()
					r.free(lease)
				}
			}()
		}
		group.Wait()
		for _, id := range ids {
			r.awaitDone(id)
		}
		if n, most := both.count(), both.mostAtOnce(""); n != tasks+callers*calls || most > limit {
			t.Errorf("%d runs, %d at once", n, most)
		}
	})
}

// Pauses, limits and rates hold for callers of Lock and for tasks, and a start of either counts.
func TestLock_underOrders(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{
		{On: onID, Limit: 2, Busy: automutex.Retry},
		{Task: "rate", Limit: automutex.Unlimited, Busy: automutex.Skip,
			Rate: automutex.Rate{Starts: 1, Per: time.Hour, Burst: 2}},
	}}, func(t *testing.T, r *rig) {
		locks := func(rule string, parts ...string) *lock.Lease {
			t.Helper()
			lease, err := r.guard.Lock(t.Context(), rule, parts...)
			redistest.Must(t, err)
			return lease
		}
		refuses := func(reason, rule string, parts ...string) {
			t.Helper()
			err := lock.ErrBackend
			for within := 50 * time.Millisecond; errors.Is(err, lock.ErrBackend) && within < patience; within *= 2 {
				ctx, cancel := context.WithTimeout(t.Context(), within)
				_, err = r.guard.Lock(ctx, rule, parts...) // on a busy machine there may be no reply yet
				cancel()
			}
			var busy *lock.BusyError
			if !errors.As(err, &busy) || busy.Reason != reason || !errors.Is(err, context.DeadlineExceeded) ||
				(busy.Pause != nil) != (reason == lock.ReasonPaused) {
				t.Errorf("%v, want busy: %s", err, reason)
			}
		}
		r.pauseTarget("work|1", time.Time{})
		refuses(lock.ReasonPaused, "work", "1")
		r.resumeTarget("work|1")
		redistest.Must(t, r.guard.Controls().SetLimit(t.Context(), "work|1", 1, ""))
		lease := locks("work", "1")
		refuses(lock.ReasonHeld, "work", "1")
		id := r.enqueueOne()
		if busy := r.awaitEvent(automutex.EventBusy, id).Busy; busy.Reason != automutex.ReasonHeld || busy.HolderTask != "" {
			t.Errorf("%+v", busy)
		}
		r.free(lease)
		r.rerun(id)
		r.nextIs(id)
		refuses(lock.ReasonHeld, "work", "1")

		r.finish(r.enqueue("rate", nil))
		r.free(locks("rate"))
		refuses(lock.ReasonRate, "rate")
		if e := r.awaitEvent(automutex.EventSkipped, r.enqueue("rate", nil)); e.Rule != "rate" {
			t.Errorf("%+v", e)
		}
	})
}

// How a lease of Lock may end: each time one event of that follows the EventAcquired.
func TestLock_events(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		for name, ends := range map[string]struct {
			how  func(*testing.T, *automutex.Guard, *lock.Lease)
			kind automutex.EventKind
		}{
			"unlocked": {func(t *testing.T, _ *automutex.Guard, l *lock.Lease) {
				redistest.Must(t, l.Unlock(ctx))
				if err := l.Unlock(ctx); !errors.Is(err, lock.ErrNotHeld) {
					t.Error(err)
				}
			}, automutex.EventReleased},
			"cooled down": {func(t *testing.T, _ *automutex.Guard, l *lock.Lease) {
				redistest.Must(t, l.Cooldown(ctx, time.Millisecond))
			}, automutex.EventReleased},
			"MaxHold": {func(*testing.T, *automutex.Guard, *lock.Lease) {}, automutex.EventLost},
			"closed": {func(t *testing.T, g *automutex.Guard, _ *lock.Lease) {
				redistest.Must(t, g.Close(ctx)) // does not wait
				if _, err := g.Lock(ctx, "turns", "1"); !errors.Is(err, automutex.ErrClosed) {
					t.Error(err)
				}
			}, automutex.EventLost},
			"deleted": {func(t *testing.T, g *automutex.Guard, l *lock.Lease) {
				keys, err := g.Keys(ctx, asynq.NewTask("work", []byte(`{"id": 1}`)))
				redistest.Must(t, err)
				redistest.Must(t, s.Client(t).Del(ctx, keys...).Err())
				if err := l.Unlock(ctx); !errors.Is(err, lock.ErrNotHeld) {
					t.Error(err)
				}
			}, automutex.EventLost},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				seen, rule := &events{}, automutex.Rule{Task: "work", Name: "turns", On: onID, TTL: soon}
				if name == "MaxHold" {
					rule.MaxHold = 100 * time.Millisecond
				}
				g := newGuard(t, s, &redistest.Log{}, seen, rule)
				l, err := g.LockFor(ctx, asynq.NewTask("work", []byte(`{"id": 1}`)))
				redistest.Must(t, err)
				ends.how(t, g, l)
				eventually(t, func() bool { return len(seen.list()) > 1 }, "the second event")
				<-l.Bind(ctx).Done()
				all := seen.list()
				last := all[len(all)-1]
				if len(all) != 2 || all[0].Kind != automutex.EventAcquired || last.Kind != ends.kind || last.Held <= 0 ||
					errors.Is(last.Err, lock.ErrLost) != (ends.kind == automutex.EventLost) || last.Rule != "turns" ||
					last.Key != all[0].Key || last.Task != "" {
					t.Errorf("%+v", all)
				}
			})
		}
	})
}

// What Lock and LockFor refuse takes nothing, and says what to do.
func TestLock_mistakes(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	fails := func(context.Context, *asynq.Task) (int, error) { return 1, nil }
	rate := func(context.Context, *asynq.Task) (automutex.Rate, error) { return automutex.Rate{}, nil }
	field := func(deflt int) *automutex.LimitField { return &automutex.LimitField{Path: "n", Default: deflt} }
	g := newGuard(t, s, &redistest.Log{}, &events{},
		automutex.Rule{Task: "work", On: onID, OnHeaders: []string{"region"}},
		automutex.Rule{Task: "key", Key: automutex.Fields("id")}, automutex.Rule{Task: "of", LimitOf: fails},
		automutex.Rule{Task: "rated", RateOf: rate, Limit: 1},
		automutex.Rule{Task: "dear", Rate: automutex.Rate{Starts: 9, Per: time.Second}, Cost: fails, Limit: 1},
		automutex.Rule{Task: "field", LimitField: field(0)}, automutex.Rule{Task: "default", LimitField: field(2)},
		automutex.Rule{Task: "report:"}, automutex.Rule{Task: "order", InOrder: true},
		automutex.Rule{Task: "two", Name: "from", Scope: "a"}, automutex.Rule{Task: "two", Name: "to", Scope: "b"},
		automutex.Rule{Task: "may", On: onID, Optional: true})
	for _, test := range []struct {
		rule  string
		parts []string
		want  string
	}{
		{"worc", nil, `did you mean "work"?`}, {"nothing like it", nil, `there are ["work"`},
		{"work", []string{"1"}, `["id" "region"], not of 1`}, {"work", []string{"1", ""}, "a part is empty"},
		{"work", []string{"\xff", "eu"}, "a part is empty or not UTF-8"},
		{"key", []string{"1"}, "its Key; use LockFor"}, {"of", nil, "LimitOf"}, {"rated", nil, "RateOf"},
		{"dear", nil, "Cost"}, {"field", nil, "LimitField"}, {"report:", nil, "Scope"}, {"order", nil, "has InOrder"},
		{"default", nil, ""}, {"to", nil, ""},
	} {
		lease, err := g.Lock(t.Context(), test.rule, test.parts...)
		if test.want == "" && err == nil {
			redistest.Must(t, lease.Unlock(t.Context()))
		} else if err == nil || !strings.Contains(err.Error(), test.want) || test.want == "" {
			t.Errorf("%s %q: %v, want %q", test.rule, test.parts, err, test.want)
		}
	}
	for taskType, want := range map[string]string{"order": "has InOrder", "nobody": "no rule is for",
		"two": `["from" "to"]`,
		"may": "needs no lock", "work": `field "id"`, "report:daily": "", "dear": ""} {
		lease, err := g.LockFor(t.Context(), asynq.NewTask(taskType, []byte("{}")))
		if want == "" && err == nil {
			redistest.Must(t, lease.Unlock(t.Context()))
		} else if err == nil || !strings.Contains(err.Error(), want) ||
			errors.Is(err, automutex.NoLock) != (taskType == "may") {
			t.Errorf("%s: %v, want %q", taskType, err, want)
		}
	}
	if left := s.Client(t).Keys(t.Context(), redistest.Name(t)+":*").Val(); slices.ContainsFunc(left,
		func(key string) bool { return !strings.Contains(key, "dear") }) {
		t.Errorf("left: %q", left)
	}
	answer := g.Middleware(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		_, err := g.LockFor(ctx, t)
		return err
	})).ProcessTask(t.Context(), asynq.NewTask("key", []byte(`{"id": 1}`)))
	says(t, fmt.Sprint(answer), "would wait for itself") // in its own handler
}

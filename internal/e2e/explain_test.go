package e2e

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A running holder, one that waits in its worker and two that are parked: each
// is told of, and a parked task its own place.
func TestExplain(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{workers: 2, rules: []automutex.Rule{
			{Task: "work", On: []string{"id"}, Busy: automutex.Park, TTL: time.Minute},
			{Task: "pair", Name: "one", Scope: "pair.one", On: []string{"id"}, Busy: automutex.Retry},
			{Task: "pair", Name: "two", Scope: "pair.two", Limit: 3, Busy: automutex.Retry},
		}})
		before := time.Now()
		holder := r.enqueue("work", map[string]int{"id": 1})
		running := r.stage.next(t)
		// The first of them waits until the second takes the last worker.
		var parked []*asynq.TaskInfo
		for range 2 {
			id := r.enqueue("work", map[string]int{"id": 1})
			parked = append(parked, r.awaitRetried(id, 0))
		}

		task := asynq.NewTask("work", []byte(`{"id": 1}`))
		all, err := r.guard.Explain(context.Background(), task)
		if err != nil || len(all) != 1 {
			t.Fatalf("got %v, %v", all, err)
		}
		e := all[0]
		key := r.lockOf("work", "1").Key()
		if e.Rule != "work" || e.Key != key || e.Limit != 1 || e.Waiting != 0 || e.Parked != 2 || e.Called != 0 || e.Place != -1 || len(e.Holders) != 1 {
			t.Fatalf("got %+v", e)
		}
		h := e.Holders[0]
		within := func(what string, at, from, to time.Time) {
			t.Helper()
			if at.Before(from.Add(-time.Second)) || at.After(to.Add(time.Second)) { // two clocks
				t.Errorf("%s is %s, want %s to %s", what, at, from, to)
			}
		}
		if h.Task != r.queue+"/"+holder || h.Owner != "this-worker" {
			t.Errorf("got %+v", h)
		}
		within("since", h.Since, before, time.Now())
		within("until", h.Until, before.Add(time.Minute), time.Now().Add(time.Minute))
		within("the next wake", e.NextWake, before.Add(time.Minute), time.Now().Add(time.Minute))
		for _, part := range []string{key, holder, "this-worker", "2 parked", "1 of 1"} {
			if !strings.Contains(e.String(), part) {
				t.Errorf("%q does not name %q", e.String(), part)
			}
		}

		for i, info := range parked {
			all, err := r.guard.ExplainTask(context.Background(), info)
			if err != nil || len(all) != 1 || all[0].Place != i {
				t.Fatalf("got %+v, %v, want place %d", all, err, i)
			}
			if !strings.Contains(all[0].String(), "this task is parked at place") {
				t.Errorf("got %q", all[0].String())
			}
			if all[0].NextWake.After(info.NextProcessAt) {
				t.Errorf("next wake %s, after asynq's own retry at %s", all[0].NextWake, info.NextProcessAt)
			}
			early := *info
			early.NextProcessAt = before.Add(10 * time.Second)
			if all, err := r.guard.ExplainTask(context.Background(), &early); err != nil || !all[0].NextWake.Equal(early.NextProcessAt) {
				t.Errorf("next wake %+v, %v; want asynq's own retry, which comes before the holder's deadline", all, err)
			}
		}

		pair, err := r.guard.Explain(running.ctx, asynq.NewTask("pair", []byte(`{"id": 1}`)))
		if err != nil || len(pair) != 2 || pair[0].Rule != "one" || pair[1].Rule != "two" || pair[1].Limit != 3 {
			t.Fatalf("got %+v, %v", pair, err)
		}
		if pair[0].Holders != nil || !pair[0].NextWake.IsZero() || pair[0].Place != -1 {
			t.Errorf("of a free lock: %+v", pair[0])
		}
		running.returns(nil)
		r.stage.end()
		for _, info := range parked {
			r.await(info.ID, asynq.TaskStateCompleted)
		}
	})
}

// Of a semaphore with several holders only the newest grant is known, and nobody
// holds a key in its cooldown.
func TestExplain_sinceIsNotGuessed(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := redistest.Name(t)
		guard := newGuardAt(t, s, prefix, &redistest.Log{}, &events{}, automutex.Rule{Task: "many", Limit: 2, Busy: automutex.Retry}, automutex.Rule{Task: "cool", Busy: automutex.Retry})
		locker := lock.New(s.Client(t), lock.Options{Prefix: prefix})
		defer locker.Close()
		for range 2 {
			lease, err := locker.Semaphore("many", 2, lock.Note("default/x")).TryLock(t.Context())
			redistest.Must(t, err)
			defer lease.Unlock(context.Background())
		}
		all, err := guard.Explain(t.Context(), asynq.NewTask("many", nil))
		if err != nil || len(all) != 1 || len(all[0].Holders) != 2 {
			t.Fatalf("got %+v, %v", all, err)
		}
		for _, h := range all[0].Holders {
			if !h.Since.IsZero() || h.Task != "default/x" {
				t.Errorf("got %+v", h)
			}
		}
		lease, err := locker.Mutex("cool", lock.Note("default/y")).TryLock(t.Context())
		redistest.Must(t, err)
		redistest.Must(t, lease.Cooldown(t.Context(), time.Minute))
		all, err = guard.Explain(t.Context(), asynq.NewTask("cool", nil))
		if err != nil || len(all) != 1 || len(all[0].Holders) != 0 {
			t.Fatalf("got %+v, %v", all, err)
		}
		if left := time.Until(all[0].Opens); all[0].Closed != automutex.ReasonCooldown || left < 30*time.Second || left > time.Minute || !strings.Contains(all[0].String(), "cooling down") {
			t.Errorf("got %+v", all[0])
		}
		if !all[0].NextWake.IsZero() {
			t.Errorf("nobody waits, and the next wake is %s", all[0].NextWake)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var waits sync.WaitGroup
		defer waits.Wait()
		defer cancel()
		redistest.Go(&waits, func() { _, _ = locker.Mutex("cool").Lock(ctx) })
		redistest.Eventually(t, patience, func() bool {
			all, err = guard.Explain(t.Context(), asynq.NewTask("cool", nil))
			return err == nil && all[0].Waiting == 1
		}, "one waits")
		if !all[0].NextWake.Equal(all[0].Opens) {
			t.Errorf("the next wake is %s, want %s, when the key opens", all[0].NextWake, all[0].Opens)
		}
	})
}

func TestExplain_errors(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	guard := newGuard(t, s, &redistest.Log{}, &events{}, automutex.Rule{Task: "work", On: []string{"id"}, Busy: automutex.Retry})
	if all, err := guard.Explain(t.Context(), asynq.NewTask("other", nil)); err != nil || len(all) != 0 {
		t.Errorf("a task without rules: %v, %v", all, err)
	}
	var unkeyed *automutex.KeyError
	if _, err := guard.Explain(t.Context(), asynq.NewTask("work", []byte(`{}`))); !errors.As(err, &unkeyed) || unkeyed.Field != "id" {
		t.Errorf("without its field: %v", err)
	}
	for _, err := range []error{
		func() error { _, err := guard.Explain(t.Context(), nil); return err }(),
		func() error { _, err := guard.ExplainTask(t.Context(), nil); return err }(),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "automutex: ") {
			t.Errorf("nil: %v", err)
		}
	}
	s.Mini().SetError("LOADING")
	if _, err := guard.Explain(t.Context(), asynq.NewTask("work", []byte(`{"id":1}`))); !errors.Is(err, lock.ErrBackend) || !strings.Contains(err.Error(), `"work"`) {
		t.Errorf("without Redis: %v", err)
	}
	s.Mini().SetError("")
}

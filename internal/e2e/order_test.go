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

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// orderRig is a rig whose tasks of type "work" run in order of their id, and a Client.
func orderRig(t *testing.T, s *redistest.Server, o setup) (*rig, *automutex.Client) {
	t.Helper()
	if o.rules == nil {
		o.rules = []automutex.Rule{{Task: "work", On: []string{"id"}, InOrder: true}}
	}
	if o.prefix == "" {
		o.prefix = redistest.Name(t)
	}
	if o.served == nil {
		o.served = atOnce
	}
	r := start(t, s, o)
	c, err := automutex.NewClient(r.rdb, r.client, automutex.Config{Rules: o.rules, Prefix: o.prefix})
	redistest.Must(t, err)
	return r, c
}

// enqueueInOrder enqueues a task of the key with that id.
func (r *rig) enqueueInOrder(c *automutex.Client, id int, options ...asynq.Option) string {
	r.t.Helper()
	options = append([]asynq.Option{asynq.Queue(r.queue), asynq.Retention(time.Hour), asynq.MaxRetry(5), asynq.Timeout(10 * time.Minute)}, options...)
	info, err := c.Enqueue(asynq.NewTask("work", fmt.Appendf(nil, `{"id":%d}`, id)), options...)
	if err != nil {
		r.t.Fatal(err)
	}
	return info.ID
}

// Tasks run in the order of their Enqueue calls, also while some of them fail, with many workers.
func TestInOrder_throughFailures(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const keys, each = 3, 12
		var mu sync.Mutex
		ran, failed := map[string][]string{}, map[string]bool{}
		r, c := orderRig(t, s, setup{workers: 8, handler: func(ctx context.Context, task *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			mu.Lock()
			defer mu.Unlock()
			if n := len(failed); !failed[id] && n%4 == 0 {
				failed[id] = true
				return errors.New("not now")
			}
			failed[id] = true
			ran[string(task.Payload())] = append(ran[string(task.Payload())], id)
			return nil
		}})
		want := map[string][]string{}
		for range each {
			for key := range keys {
				payload := fmt.Sprintf(`{"id":%d}`, key)
				want[payload] = append(want[payload], r.enqueueInOrder(c, key))
			}
		}
		redistest.Eventually(t, patience, func() bool {
			mu.Lock()
			defer mu.Unlock()
			n := 0
			for _, ids := range ran {
				n += len(ids)
			}
			return n == keys*each
		}, "all tasks are done")
		for key, ids := range want {
			if got := strings.Join(ran[key], " "); got != strings.Join(ids, " ") {
				t.Errorf("key %s: ran\n%s, enqueued\n%s", key, got, strings.Join(ids, " "))
			}
		}
	})
}

// An archived head holds its key until an operator skips it.
func TestInOrder_holdKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 3})
		first, second := r.enqueueInOrder(c, 1, asynq.MaxRetry(0)), r.enqueueInOrder(c, 1)
		run := r.stage.nextIs(t, first)
		run.returns(errors.New("broken"))
		if info := r.await(first, asynq.TaskStateArchived); info.LastErr != "broken" || info.Retried != 0 {
			t.Fatalf("%+v", info)
		}
		if info := r.awaitParked(second); !strings.Contains(info.LastErr, "behind task "+r.queue+"/"+first+", which is archived") || time.Until(info.NextProcessAt) < 4*time.Minute {
			t.Errorf("%q, back in %s", info.LastErr, time.Until(info.NextProcessAt))
		}
		r.stage.none(t)
		blocked, err := r.guard.Blocked(t.Context())
		if err != nil || len(blocked) != 1 {
			t.Fatalf("%+v, %v", blocked, err)
		}
		b := blocked[0]
		if b.Task != r.queue+"/"+first || b.Behind != 1 || !strings.Contains(b.Why, "archived") || !strings.Contains(b.Why, "broken") || time.Since(b.Since) > time.Minute {
			t.Fatalf("%+v", b)
		}
		if err := r.guard.SkipHead(t.Context(), b.Key, r.queue+"/"+second); err == nil {
			t.Fatal("skipped a task that is not the head")
		}
		redistest.Must(t, r.guard.SkipHead(t.Context(), b.Key, b.Task))
		run = r.stage.next(t)
		if err := r.guard.SkipHead(t.Context(), b.Key, r.queue+"/"+second); err == nil || !strings.Contains(err.Error(), "runs now") {
			t.Fatalf("skipped a task that runs: %v", err)
		}
		run.returns(nil)
		r.await(second, asynq.TaskStateCompleted)
	})
}

// MaxQueued bounds the tasks of a key.
func TestInOrder_full(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, InOrder: true, MaxQueued: 2}}})
		first, second := r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1)
		_, err := c.Enqueue(asynq.NewTask("work", []byte(`{"id":1}`)), asynq.Queue(r.queue))
		var full *automutex.FullError
		if !errors.Is(err, automutex.ErrFull) || !errors.As(err, &full) || full.Queued != 2 || full.Max != 2 {
			t.Fatalf("%v", err)
		}
		r.enqueueInOrder(c, 2) // another key
		for range 3 {
			r.stage.next(t).returns(nil)
		}
		r.await(first, asynq.TaskStateCompleted)
		r.await(second, asynq.TaskStateCompleted)
		r.enqueueInOrder(c, 1)
		r.stage.next(t).returns(nil)
	})
}

// A task whose key is not the one that it was enqueued for, since the worker's rule differs or its payload was changed,
// gives up its place there, so that those behind it run, and comes after the tasks of its new key.
func TestInOrder_enqueuedForAnotherKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 4})
		older, err := automutex.NewClient(r.rdb, r.client, automutex.Config{Rules: []automutex.Rule{{Task: "work", On: []string{"was"}, InOrder: true}}, Prefix: r.cfg.Prefix})
		redistest.Must(t, err)
		first := r.enqueueInOrder(c, 1)
		running := r.stage.nextIs(t, first)
		moved, err := older.Enqueue(asynq.NewTask("work", []byte(`{"id":1,"was":9}`)), asynq.Queue(r.queue), asynq.Retention(time.Hour))
		redistest.Must(t, err)
		behind := r.enqueueInOrder(c, 9)
		r.stage.nextIs(t, behind).returns(nil)          // at once, not when the stamp before it is overdue
		redistest.Eventually(t, patience, func() bool { // behind may have waited as well, until moved gave up its place
			return slices.ContainsFunc(r.seen.list(automutex.EventWaiting), func(e automutex.Event) bool { return e.TaskID == moved.ID })
		}, "the task has come to its new key")
		second := r.enqueueInOrder(c, 1)
		r.stage.none(t)
		running.returns(nil)
		for _, id := range []string{moved.ID, second} {
			r.stage.nextIs(t, id).returns(nil)
			r.await(id, asynq.TaskStateCompleted)
		}
		if n := strings.Count(r.log.String(), "is not the one that it was enqueued for"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, r.log.String())
		}
	})
}

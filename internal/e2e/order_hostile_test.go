package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Tasks in order, as somebody would use them who wants to break the order.

// orderLog notes which tasks ran, each time that they began.
type orderLog struct {
	mu     sync.Mutex
	starts []string
}

// failOnce is a handler whose tasks fail the first time that they run: the one with that ID, or all of them.
func (l *orderLog) failOnce(which string) asynq.HandlerFunc {
	return func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		again := slices.Contains(l.starts, id)
		l.starts = append(l.starts, id)
		if !again && (which == id || which == "") {
			return errors.New("broken")
		}
		return nil
	}
}

func (l *orderLog) await(t *testing.T, want ...string) {
	t.Helper()
	redistest.Eventually(t, patience, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.starts) >= len(want)
	}, "%d runs", len(want))
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.starts, want) {
		t.Errorf("ran\n%q, want\n%q", l.starts, want)
	}
}

// Keys and IDs may have any text: zero bytes, bars, braces, what is no UTF-8. So with hashed keys.
func TestInOrder_anyText(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, secret := range []string{"", testSecret} {
			rules := []automutex.Rule{{Task: "work", InOrder: true, Key: func(context.Context, *asynq.Task) ([]string, error) {
				return []string{"a\x00b|c{d}%s", "é\u2028"}, nil
			}}}
			log := &orderLog{}
			r := start(t, s, setup{rules: rules, workers: 3, guarded: func(c *automutex.Config) { c.HashKeys = secret }, served: atOnce, handler: log.failOnce("")})
			c, err := automutex.NewClient(r.rdb, r.client, automutex.Config{Rules: rules, Prefix: r.cfg.Prefix, HashKeys: secret})
			redistest.Must(t, err)
			var want []string
			for i := range 3 {
				id := fmt.Sprintf("%d\x00|é{}%%", i)
				r.enqueueInOrder(c, 1, asynq.TaskID(id))
				want = append(want, id, id)
			}
			log.await(t, want...)
		}
	})
}

// Tasks of one key in several queues are in one order; another task with the same ID in another queue is another task.
func TestInOrder_severalQueues(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		second := redistest.Name(t)
		log := &orderLog{}
		r, c := orderRig(t, s, setup{workers: 3, served: func(c *asynq.Config) {
			atOnce(c)
			c.Queues[second] = 1
		}, handler: log.failOnce("b")})
		r.enqueueInOrder(c, 1, asynq.TaskID("a"))
		r.enqueueInOrder(c, 1, asynq.TaskID("b"), asynq.Queue(second))
		r.enqueueInOrder(c, 1, asynq.TaskID("c"))
		r.enqueueInOrder(c, 1, asynq.TaskID("c"), asynq.Queue(second))
		r.enqueueInOrder(c, 1, asynq.TaskID("d"))
		log.await(t, "a", "b", "b", "c", "c", "d")
	})
}

// An ID may be used again as soon as asynq has forgotten the task that had it.
func TestInOrder_usedAgain(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 2})
		for range 3 {
			id := r.enqueueInOrder(c, 1, asynq.TaskID("same"), asynq.Retention(0))
			r.stage.next(t).returns(nil)
			r.awaitDropped(id)
		}
		// An archived one that holds the key, deleted, and its ID used again: the hold stays until it is skipped.
		first := r.enqueueInOrder(c, 1, asynq.TaskID("same"), asynq.MaxRetry(0))
		r.stage.next(t).returns(errors.New("broken"))
		r.await(first, asynq.TaskStateArchived)
		r.operate(first, r.inspector.DeleteTask)
		r.enqueueInOrder(c, 1, asynq.TaskID("same"))
		redistest.Eventually(t, patience, func() bool {
			info, err := r.inspector.GetTaskInfo(r.queue, "same")
			return err == nil && strings.Contains(info.LastErr, "behind task "+r.queue+"/same, which is archived")
		}, "it is behind the earlier one")
		blocked, err := r.guard.Blocked(t.Context())
		if err != nil || len(blocked) != 1 || !strings.Contains(blocked[0].Why, "gone from asynq") {
			t.Fatalf("%+v, %v", blocked, err)
		}
		redistest.Must(t, r.guard.SkipHead(t.Context(), blocked[0].Key, blocked[0].Task))
		r.finish("same")
	})
}

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Past MaxWaiting it parks at once, though workers are free.
func TestPark_maxWaiting(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{guarded: func(c *automutex.Config) { c.MaxWaiting = 1 }})
		waits := r.enqueue("work", one)
		r.awaitStored(1, 0, "work", "1")
		parks := r.enqueue("work", one)
		r.awaitParked(parks)
		r.awaitStored(1, 1, "work", "1")
		free()
		r.finish(waits)
		r.finish(parks)
	})
}

// Tasks of one key that stand in asynq's queue run in its order, with few workers and asynq's
// default TaskCheckInterval, and park twice each on average at most: a task that was woken
// keeps its place however long its server takes to fetch it.
func TestPark_order(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	for _, workers := range []int{2, 4} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			t.Parallel()
			const tasks = 12
			// asynq starts each task on a goroutine of its own: on a busy machine some swap, and one
			// that stands still for seconds is overtaken. When a woken task lost its place half of
			// them ran out of order, each time.
			for play := 1; ; play++ {
				ran, parked := parkInOrder(t, s.Client(t), fmt.Sprint("order", workers, "-", play), workers, tasks)
				if tasks-inOrder(ran) <= 2 && parked <= 2*tasks {
					return
				}
				if t.Logf("they ran %v and parked %d times", ran, parked); play == 3 {
					t.Fatal("tasks ran out of order, or parked more than twice each, in three plays")
				}
			}
		})
	}
}

// inOrder is how many tasks are left when those that ran out of order are taken away.
func inOrder(ran []int) (most int) {
	upTo := make([]int, len(ran)) // the most of them that end with each
	for i := range ran {
		upTo[i] = 1
		for j := range i {
			if ran[j] < ran[i] {
				upTo[i] = max(upTo[i], upTo[j]+1)
			}
		}
		most = max(most, upTo[i])
	}
	return most
}

// parkInOrder has a server run so many tasks of one key, and returns the order in which they
// ran and how often they parked.
func parkInOrder(t *testing.T, rdb redis.UniversalClient, queue string, workers, tasks int) (ran []int, parked int) {
	var mu sync.Mutex // guards both
	done := make(chan struct{})
	g, err := automutex.New(rdb, automutex.Config{Prefix: queue, Rules: []automutex.Rule{{Task: "task", Busy: automutex.Park}}, Observe: func(_ context.Context, e automutex.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Kind == automutex.EventParked {
			parked++
		}
	}})
	redistest.Must(t, err)
	defer g.Close(context.WithoutCancel(t.Context()))
	client := asynq.NewClientFromRedisClient(rdb)
	for i := range tasks {
		if _, err := client.Enqueue(asynq.NewTask("task", nil), asynq.TaskID(fmt.Sprint(i)), asynq.Queue(queue)); err != nil {
			t.Fatal(err)
		}
	}
	server := asynq.NewServerFromRedisClient(rdb, g.ServerConfig(asynq.Config{
		Concurrency: workers, Queues: map[string]int{queue: 1}, ShutdownTimeout: time.Second, LogLevel: asynq.FatalLevel,
	}))
	handler := func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		n, _ := strconv.Atoi(id)
		time.Sleep(100 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		if ran = append(ran, n); len(ran) == tasks {
			close(done)
		}
		return nil
	}
	redistest.Must(t, server.Start(g.Middleware(asynq.HandlerFunc(handler))))
	defer server.Shutdown()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("not all tasks have run within a minute")
	}
	mu.Lock()
	defer mu.Unlock()
	return ran, parked
}

// In a program that wraps single handlers, the workers of the others count too: Park does not
// hold the last worker.
func TestPark_someHandlersWrapped(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{workers: 3, rules: []automutex.Rule{{Task: "work", Busy: automutex.Park}}, wrap: func(g *automutex.Guard, h asynq.Handler) asynq.Handler {
			mux := asynq.NewServeMux()
			mux.Handle("work", g.Middleware(h))
			mux.Handle("other", h)
			return mux
		}})
		first := r.enqueue("work", nil)
		holder := r.stage.next(t)
		long := r.enqueue("other", nil)
		busy := r.stage.next(t)
		second := r.enqueue("work", nil) // waits in the last worker, or parks
		r.awaitParked(second)
		quick := r.enqueue("other", nil)
		r.finish(quick)
		holder.returns(nil)
		r.await(first, asynq.TaskStateCompleted)
		r.finish(second)
		busy.returns(nil)
		r.await(long, asynq.TaskStateCompleted)
	})
}

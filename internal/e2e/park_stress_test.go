package e2e

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Many tasks, several processes, and both kinds of places in one line.

// ledger counts the runs of each task, and how many there are at once for each payload.
type ledger struct {
	mu   sync.Mutex
	runs map[string]int // by task ID
	now  map[string]int // by payload
	most int
}

// enter notes that somebody has the key; the function it gives, that he has not.
func (l *ledger) enter(key string) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now[key]++
	l.most = max(l.most, l.now[key])
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.now[key]--
	}
}

// ProcessTask is a handler.
func (l *ledger) ProcessTask(ctx context.Context, t *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	defer l.enter(string(t.Payload()))()
	runtime.Gosched() // some work
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[id]++
	return nil
}

// await waits until n tasks have run, and checks that each ran once.
func (l *ledger) await(t *testing.T, n int) {
	t.Helper()
	redistest.Eventually(t, 2*patience, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.runs) >= n
	}, "%d tasks have run", n)
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, runs := range l.runs {
		if runs > 1 {
			t.Errorf("%s ran %d times", id, runs)
		}
	}
}

// enqueueMany enqueues n tasks, on several connections at once.
func (r *rig) enqueueMany(n int, taskType string, payload func(i int) string) {
	r.t.Helper()
	const at = 4
	var wg sync.WaitGroup
	for g := range at {
		redistest.Go(&wg, func() {
			for i := g; i < n; i += at {
				_, err := r.client.Enqueue(asynq.NewTask(taskType, []byte(payload(i))), asynq.Queue(r.queue), asynq.MaxRetry(5), asynq.Timeout(10*time.Minute))
				if err != nil {
					r.t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Two processes with a queue each, keys that both have tasks for, and plain lock users: never two at once for a key, and each
// task runs once.
func TestPark_queuesAndProcesses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const n, keys, goroutines, rounds = 24, 3, 2, 10
		runs := &ledger{runs: map[string]int{}, now: map[string]int{}}
		rules := []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}
		a := start(t, s, setup{rules: rules, workers: 3, handler: runs.ProcessTask})
		b := start(t, s, setup{rules: rules, workers: 2, handler: runs.ProcessTask, prefix: a.cfg.Prefix})
		payload := func(i int) string { return fmt.Sprintf(`{"id":%d}`, i%keys) }
		var users sync.WaitGroup
		for i := range keys * goroutines {
			redistest.Go(&users, func() { // ends after its rounds, each of which gets the lock or ends with patience
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				for range rounds {
					err := a.lockOf("work", fmt.Sprint(i%keys)).Do(ctx, func(context.Context) error {
						defer runs.enter(payload(i))()
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		a.enqueueMany(n, "work", payload)
		b.enqueueMany(n, "work", payload)
		runs.await(t, 2*n)
		users.Wait()
		if runs.most != 1 {
			t.Errorf("%d at once", runs.most)
		}
		for i := range keys {
			a.awaitStored(0, 0, "work", fmt.Sprint(i))
		}
	})
}

// The head of the line was called and finds no worker: others take and give back
// the key meanwhile, at once.
func TestPark_allWorkersBusy(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{workers: 1})
		head := r.enqueue("work", one)
		r.awaitParked(head)
		other := r.enqueue("other", nil)
		blocks := r.stage.next(t)
		free()
		r.await(head, asynq.TaskStatePending)
		for range 5 {
			r.free(r.take("work", "1"))
		}
		blocks.returns(nil)
		r.await(other, asynq.TaskStateCompleted)
		r.finish(head)
		r.awaitStored(0, 0, "work", "1")
	})
}

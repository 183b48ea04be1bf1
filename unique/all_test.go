package unique

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/redistest"
)

// Many tasks, a result for each, in their order.
func TestEnqueueAll(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, Rule{Task: "a", On: []string{"id"}}, Rule{Task: "newest", On: []string{"id"}, Until: UntilStart, Duplicate: Replace},
			Rule{Task: "joined", On: []string{"id"}, Duplicate: Join})
		var tasks []*asynq.Task
		for i := range 30 {
			for _, name := range []string{"a", "newest", "joined", "plain"} {
				tasks = append(tasks, task(name, fmt.Sprint(i%10), fmt.Sprint(i)))
			}
		}
		tasks = append(tasks, nil, asynq.NewTask("a", []byte(`{}`)))
		results := r.EnqueueAll(t.Context(), tasks, asynq.Queue(r.queue), asynq.MaxRetry(4))
		if len(results) != len(tasks) {
			t.Fatalf("%d results for %d tasks", len(results), len(tasks))
		}
		for i, result := range results[:120] {
			round, name := i/4, []string{"a", "newest", "joined", "plain"}[i%4]
			switch {
			case name == "a" && round >= 10:
				var dup *DuplicateError
				if !errors.As(result.Err, &dup) || dup.ID != results[i%40].Info.ID {
					t.Errorf("task %d: %+v, %v", i, result.Info, result.Err)
				}
			case result.Err != nil || result.Info.Type != name || result.Info.MaxRetry != 4:
				t.Errorf("task %d: %+v, %v", i, result.Info, result.Err)
			case name == "joined" && result.Info.ID != results[i%40].Info.ID:
				t.Errorf("task %d joined %s", i, result.Info.ID)
			}
		}
		for _, result := range results[120:] {
			if result.Err == nil || result.Info != nil {
				t.Errorf("a task that is none: %+v", result.Info)
			}
		}
		if got := texts(r.tasks(r.queue, "newest")); !slices.Equal(got, []string{"20", "21", "22", "23", "24", "25", "26", "27", "28", "29"}) {
			t.Errorf("newest are %q", got)
		}
		if n := len(r.tasks(r.queue, "plain")); n != 30 {
			t.Errorf("%d tasks without a rule", n)
		}

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, result := range r.EnqueueAll(ctx, []*asynq.Task{task("a", "late", "")}) {
			if !errors.Is(result.Err, context.Canceled) {
				t.Errorf("after the end of its context: %v", result.Err)
			}
		}
		if results := r.EnqueueAll(t.Context(), nil); len(results) != 0 {
			t.Errorf("%d results for no task", len(results))
		}
	})
}

// Replace, an operator who runs scheduled tasks at once, and plain Enqueues of
// other keys, with a worker: whatever was accepted runs, or is superseded by what
// was accepted later; the last one of every key runs; nothing runs twice.
func TestReplace_racesWithAnOperator(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilDone, UntilStart} {
			raceReplace(t, own(t, s), until)
		}
	})
}

func raceReplace(t *testing.T, s *redistest.Server, until Until) {
	r := start(t, s, Rule{Task: "draft", On: []string{"id"}, Until: until, Duplicate: Replace})
	seen := newRuns()
	r.serve(func(_ context.Context, task *asynq.Task) error { seen.note(task); return nil }, nil)

	ctx, cancel := context.WithCancel(t.Context())
	operator := make(chan struct{})
	go func() { // ends with ctx
		defer close(operator)
		look := time.NewTicker(2 * time.Millisecond)
		defer look.Stop()
		for ; ctx.Err() == nil; <-look.C {
			scheduled, _ := r.inspector.ListScheduledTasks(r.queue, asynq.PageSize(100))
			for _, info := range scheduled {
				_ = r.inspector.RunTask(r.queue, info.ID) // may be too late, of course
			}
		}
	}()
	const producers, each = 4, 30
	accepted := make([][]string, producers) // payloads, in order
	var wg sync.WaitGroup
	for p := range producers {
		redistest.Go(&wg, func() {
			for i := range each {
				tsk := task("draft", fmt.Sprint(p), fmt.Sprint(i))
				var opts []asynq.Option
				if i%2 == 0 {
					opts = append(opts, asynq.ProcessIn(time.Hour)) // the operator's
				}
				_, err := r.Enqueue(tsk, opts...)
				switch {
				case err == nil:
					accepted[p] = append(accepted[p], string(tsk.Payload()))
				case !errors.Is(err, asynq.ErrDuplicateTask):
					t.Errorf("%s: %v", tsk.Payload(), err)
				}
				if _, err := r.plain.Enqueue(task("plain", fmt.Sprint(p), fmt.Sprint(i)), asynq.Queue(r.queue)); err != nil {
					t.Errorf("a plain task: %v", err)
				}
			}
		})
	}
	wg.Wait()
	redistest.Eventually(t, longest, func() bool {
		q, err := r.inspector.GetQueueInfo(r.queue)
		return err == nil && q.Pending+q.Active+q.Scheduled+q.Retry == 0
	}, "the queue being worked off")
	cancel()
	<-operator
	for p, payloads := range accepted {
		if len(payloads) == 0 {
			t.Errorf("%s: nothing of producer %d was accepted", until, p)
			continue
		}
		if last := payloads[len(payloads)-1]; seen.of("draft"+last) == 0 {
			t.Errorf("%s: the last one accepted, %s, did not run", until, last)
		}
		for _, payload := range payloads {
			if n := seen.of("draft" + payload); n > 1 {
				t.Errorf("%s: %s ran %d times", until, payload, n)
			}
		}
	}
	if n := seen.of("plain"); n != producers*each {
		t.Errorf("%s: %d plain tasks ran, want %d", until, n, producers*each)
	}
}

// runs counts what handlers ran.
type runs struct {
	mu    sync.Mutex // guards count
	count map[string]int
}

func newRuns() *runs { return &runs{count: map[string]int{}} }

func (r *runs) note(task *asynq.Task) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count[task.Type()]++
	r.count[task.Type()+string(task.Payload())]++
}

func (r *runs) of(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count[what]
}

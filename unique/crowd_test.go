package unique

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Many producers replace the task of one key at once. Each call is answered within its wait, and a task that
// was accepted runs, or a call that was not over before its own has put another one in its place.
func TestSupersede_manyProducersOfOneKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = own(t, s)
		for _, until := range []Until{UntilDone, UntilStart} {
			for _, duplicate := range []Duplicate{Replace, Postpone(time.Second)} {
				for _, workers := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, %s, workers %v", until, duplicate, workers), func(t *testing.T) {
						t.Parallel()
						rule := Rule{Task: "crowd", On: []string{"id"}, Until: until, Duplicate: duplicate}
						if duplicate != Replace {
							rule.MaxPostpone = time.Hour // a task that is due is superseded no more
						}
						crowd(t, s, rule, workers)
					})
				}
			}
		}
	})
}

func crowd(t *testing.T, s *redistest.Server, rule Rule, workers bool) {
	producers, each := 32, 10 // a minute of work on two cores that others use, too
	if s.Kind() != redistest.KindReal || !redistest.All() {
		producers, each = 8, 5
	}
	r := start(t, s, rule)
	r.patience = longest
	var mu sync.Mutex // guards all below
	ran, tried := map[string]bool{}, map[string]bool{}
	work := func() {
		guard, err := automutex.New(r.rdb, automutex.Config{Prefix: r.prefix, Logger: slog.New(slog.DiscardHandler),
			Rules: []automutex.Rule{{Task: "crowd", On: []string{"id"}, Busy: automutex.Park}}})
		redistest.Must(t, err)
		server := asynq.NewServerFromRedisClient(r.rdb, guard.ServerConfig(asynq.Config{
			Concurrency: 4, Queues: map[string]int{r.queue: 1}, TaskCheckInterval: redistest.CheckEvery, DelayedTaskCheckInterval: 20 * time.Millisecond,
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }, Logger: redistest.Silent{},
		}))
		err = server.Start(guard.Middleware(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
			var said struct{ Text string }
			if err := json.Unmarshal(task.Payload(), &said); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if !tried[said.Text] {
				tried[said.Text] = true
				return errors.New("fails the first time")
			}
			ran[said.Text] = true
			return nil
		})))
		redistest.Must(t, err)
		t.Cleanup(func() { r.shutDown(server, guard) })
	}
	if workers {
		work()
	}
	type call struct {
		text       string
		began, end time.Time
	}
	var accepted []call
	refused, late := 0, 0
	var wg sync.WaitGroup
	for p := range producers {
		redistest.Go(&wg, func() {
			for i := range each {
				text := fmt.Sprintf("%d.%d", p, i)
				began := time.Now()
				_, err := r.Enqueue(task("crowd", "7", text))
				end := time.Now()
				mu.Lock()
				switch {
				case err == nil:
					accepted = append(accepted, call{text, began, end})
				case errors.Is(err, asynq.ErrDuplicateTask) && workers: // on a busy machine also a task that a worker has had for pickUpTime
					refused++
				case errors.Is(err, ErrEnqueueUnderWay) && end.Sub(began) >= r.patience:
					late++
				default:
					t.Errorf("%s after %s: %v", text, end.Sub(began).Round(time.Millisecond), err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if !workers {
		if there := r.tasks(r.queue, "crowd", live...); len(there) != 1 {
			t.Errorf("%d tasks are there: %q", len(there), texts(there))
		}
		work()
	}
	redistest.Eventually(t, longest, func() bool {
		q, err := r.inspector.GetQueueInfo(r.queue) // all at one moment
		return err == nil && q.Pending+q.Active+q.Scheduled+q.Retry == 0
	}, "the tasks being done")
	mu.Lock()
	defer mu.Unlock()
	var last time.Time // when the latest call returned whose task ran
	for _, c := range accepted {
		if ran[c.text] && c.end.After(last) {
			last = c.end
		}
	}
	for _, c := range accepted {
		if !ran[c.text] && last.Before(c.began) {
			t.Errorf("%s was accepted and never ran, and no later one did", c.text)
		}
		if tried[c.text] && !ran[c.text] {
			t.Errorf("%s was accepted, failed, and was never run again", c.text)
		}
	}
	t.Logf("%d accepted, %d refused, %d came too late, %d ran", len(accepted), refused, late, len(ran))
}

// A call whose wait is over fails with ErrEnqueueUnderWay, and has left nothing behind.
func TestSupersede_manyProducersThatDoNotWait(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.StartReal(t), Rule{Task: "crowd", On: []string{"id"}, Duplicate: Replace})
	r.patience = time.Millisecond
	var wg sync.WaitGroup
	var failed atomic.Int32
	for p := range 32 {
		redistest.Go(&wg, func() {
			for i := range 20 {
				_, err := r.Enqueue(task("crowd", "7", fmt.Sprintf("%d.%d", p, i)))
				switch {
				case errors.Is(err, ErrEnqueueUnderWay):
					failed.Add(1)
				case err != nil:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d of 640 calls were too late", failed.Load())
	r.must(r.Enqueue(task("crowd", "7", "last")))
	if there := texts(r.tasks(r.queue, "crowd", live...)); len(there) != 1 || there[0] != "last" {
		t.Errorf("there are %q", there)
	}
}

// A producer that stands still between two looks at the claim deletes no task that was accepted
// meanwhile: that one has begun and failed, and waits for its retry.
func TestSupersede_leavesATaskThatHasBegunMeanwhile(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rule := Rule{Task: "crowd", On: []string{"id"}, Until: UntilStart, Duplicate: Replace}
		r := start(t, s, rule)
		r.must(r.Enqueue(task("crowd", "7", "old")))

		standsStill, goOn := make(chan struct{}), make(chan struct{})
		hook := &redistest.FailHook{}
		var once sync.Once
		hook.After(func(cmd redis.Cmder) error {
			if args := cmd.Args(); cmd.Err() == nil && strings.HasPrefix(cmd.Name(), "eval") && strings.HasSuffix(fmt.Sprint(args[3]), ":claim") {
				once.Do(func() {
					close(standsStill)
					<-goOn
				})
			}
			return nil
		})
		rdb := s.Client(t)
		rdb.AddHook(hook)
		slow := r.producer(rdb, rule)
		late := make(chan answered, 1)
		go func() { // ends with the call, when goOn is closed
			info, err := slow.Enqueue(task("crowd", "7", "late"))
			late <- answered{info, err}
		}()
		<-standsStill

		accepted := r.must(r.Enqueue(task("crowd", "7", "new")))
		r.serve(func(_ context.Context, task *asynq.Task) error {
			if strings.Contains(string(task.Payload()), "new") {
				return errors.New("to be retried")
			}
			return nil
		}, r.guard(automutex.Rule{Task: "crowd", On: []string{"id"}}))
		r.await(r.queue, accepted.ID, asynq.TaskStateRetry)
		close(goOn)
		got := <-late
		r.must(got.info, got.err)
		if info, err := r.inspector.GetTaskInfo(r.queue, accepted.ID); err != nil || info.State != asynq.TaskStateRetry {
			t.Errorf("the task that was accepted is %+v, %v", info, err)
		}
	})
}

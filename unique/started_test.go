package unique

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A task whose handler has failed has started, also where the server does not count
// that as a failure, and also when its retry is due: it is not superseded.
func TestReplace_leavesATaskWhoseHandlerHasFailed(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, duplicate := range []Duplicate{Replace, Postpone(time.Second)} {
			r := start(t, s, Rule{Task: "price", On: []string{"id"}, Duplicate: duplicate})
			limited := errors.New("rate limited")
			guard := r.guard(automutex.Rule{Task: "price", On: []string{"id"}})
			server := asynq.NewServerFromRedisClient(r.rdb, asynq.Config{ // without ServerConfig
				Queues: map[string]int{r.queue: 1}, TaskCheckInterval: redistest.CheckEvery, DelayedTaskCheckInterval: 50 * time.Millisecond,
				IsFailure:      func(err error) bool { return !errors.Is(err, limited) },
				RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour }, Logger: redistest.Silent{},
			})
			redistest.Must(t, server.Start(guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return limited }))))
			first := r.must(r.Enqueue(task("price", "7", "first")))
			r.await(r.queue, first.ID, asynq.TaskStateRetry)
			server.Shutdown()
			if err := guard.Close(t.Context()); err != nil {
				t.Error(err)
			}
			info, err := r.Enqueue(task("price", "7", "second"))
			r.mustBeDuplicate(info, err, first.ID, asynq.TaskStateRetry)
			redistest.Must(t, r.inspector.RunTask(r.queue, first.ID))
			info, err = r.Enqueue(task("price", "7", "third"))
			r.mustBeDuplicate(info, err, first.ID, asynq.TaskStatePending)
			if got := texts(r.tasks(r.queue, "price")); !slices.Equal(got, []string{"first"}) {
				t.Errorf("%s: there are %q", duplicate, got)
			}
		}
	})
}

// A task that a Guard handed back because its key was busy has not started.
func TestReplace_supersedesATaskThatAGuardHandedBack(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, Rule{Task: "price", On: []string{"id"}, Duplicate: Replace})
		guard := r.guard(automutex.Rule{Task: "price", On: []string{"id"}, Busy: automutex.RetryIn(time.Hour)})
		keys, err := guard.Keys(t.Context(), task("price", "7", ""))
		redistest.Must(t, err)
		locker := lock.New(r.rdb, lock.Options{Prefix: r.prefix})
		t.Cleanup(func() {
			if err := locker.Close(); err != nil { // its reader of controls ends here
				t.Error(err)
			}
		})
		holder, err := inner.ByKey(locker, keys[0]).TryLock(t.Context())
		redistest.Must(t, err)
		r.serve(func(context.Context, *asynq.Task) error { return nil }, guard)
		first := r.must(r.Enqueue(task("price", "7", "first")))
		r.await(r.queue, first.ID, asynq.TaskStateRetry)
		second := r.must(r.Enqueue(task("price", "7", "second")))
		if second.ID == first.ID {
			t.Errorf("the second one is %s too", second.ID)
		}
		r.awaitGone(r.queue, first.ID)
		if err := holder.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// An option that sends the task to another queue than the rule's is refused, with
// both queues' names; the rule's own queue may be named.
func TestEnqueue_refusesAnotherQueueThanTheRules(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t), Rule{Task: "mail", On: []string{"id"}})
	info, err := r.Enqueue(task("mail", "7", ""), asynq.Queue("critical"))
	if info != nil || err == nil {
		t.Fatalf("got %v, %v", info, err)
	}
	for _, want := range []string{`rule "mail" (Rules[0])`, `Queue("critical")`, `go to the queue "` + r.queue + `"`, `set Rule.Queue to "critical"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\ndoes not say %s", err, want)
		}
	}
	if left := r.tasks("critical", "mail"); len(left)+len(r.tasks(r.queue, "mail")) > 0 {
		t.Error("a task was enqueued")
	}
	r.must(r.Enqueue(task("mail", "7", ""), asynq.Queue(r.queue)))
}

// resent is a redis.Hook that sends the script of an enqueue twice, as go-redis does
// when the first reply is lost, and gives the second reply.
type resent struct {
	redistest.FailHook
	times atomic.Int64
}

func (h *resent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && strings.HasPrefix(cmd.Name(), "eval") && len(cmd.Args()) > 3 && strings.HasPrefix(cmd.Args()[3].(string), "asynq:") {
			h.times.Add(1)
			err = next(ctx, cmd)
		}
		return err
	}
}

// An enqueue that go-redis has sent twice enqueues one task. Where its ID is made from the key, the call is told of a duplicate.
func TestEnqueue_sentTwice(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rule := Rule{Task: "mail", On: []string{"id"}}
		r := start(t, s, rule)
		var hook resent
		rdb := s.Client(t)
		rdb.AddHook(&hook)
		twice := r.producer(rdb, rule)
		info, err := twice.Enqueue(task("mail", "7", "first"))
		var dup *DuplicateError
		if !errors.As(err, &dup) || hook.times.Load() == 0 {
			t.Errorf("sent %d times: %v, %v", hook.times.Load()+1, info, err)
		}
		if got := texts(r.tasks(r.queue, "mail")); !slices.Equal(got, []string{"first"}) {
			t.Errorf("there are %q", got)
		}
		for _, rule.Until = range []Until{UntilStart, For(time.Minute)} { // whose IDs are the call's own
			rule.Task = "mail " + rule.Until.String()
			r.must(r.producer(rdb, rule).Enqueue(task(rule.Task, "7", "first")))
		}
	})
}

package e2e

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// closing runs guard.Close on a goroutine of its own, and returns when it has begun: from then on no
// task with a rule starts.
func (r *rig) closing(ctx context.Context) <-chan error {
	closed, begun := make(chan error, 1), &begunCtx{Context: ctx, asked: make(chan struct{})}
	go func() { closed <- r.guard.Close(begun) }()
	<-begun.asked
	return closed
}

// begunCtx tells when a call that it was given to waits for its end. Close does so once it is closed to tasks.
type begunCtx struct {
	context.Context
	once  sync.Once
	asked chan struct{}
}

func (c *begunCtx) Done() <-chan struct{} {
	c.once.Do(func() { close(c.asked) })
	return c.Context.Done()
}

// awaitClosed is what Close returned.
func awaitClosed(t *testing.T, closed <-chan error) error {
	t.Helper()
	select {
	case err := <-closed:
		return err
	case <-time.After(patience):
		t.Fatal("Close does not return")
		return nil
	}
}

// closeUnder closes the Guard and shuts its server down while a handler runs, which then is done.
func (r *rig) closeUnder(t *testing.T, run *run) {
	t.Helper()
	closed := r.closing(t.Context())
	down := make(chan struct{})
	go func() { defer close(down); r.shutdown() }()
	run.returns(nil)
	<-down
	if err := awaitClosed(t, closed); err != nil {
		t.Error(err)
	}
}

// quickly has Shutdown take tasks back after so long.
func quickly(d time.Duration) func(*asynq.Config) {
	return func(c *asynq.Config) { c.ShutdownTimeout = d }
}

// A handler that runs while the server shuts down keeps its lease, is renewed,
// and is waited for.
func TestShutdown_runningHandler(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const ttl = 9 * time.Second // a renewal may be late on a busy machine
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", TTL: ttl, Busy: automutex.Retry}}})
		id := r.enqueue("work", nil)
		run := r.stage.next(t)
		lease, _ := automutex.Lease(run.ctx)
		closed := r.closing(t.Context())
		down := make(chan struct{})
		go func() { defer close(down); r.shutdown() }()
		began := time.Now()
		redistest.Eventually(t, patience, func() bool { return lease.Deadline().After(began.Add(ttl)) }, "the lease is renewed after Close")
		select {
		case err := <-closed:
			t.Errorf("Close returned %v while the handler runs", err)
		case <-down:
			t.Error("Shutdown returned while the handler runs")
		case <-run.ctx.Done():
			t.Errorf("the handler's context ended: %v", context.Cause(run.ctx))
		default:
		}
		if !r.locked("work") {
			t.Error("the key is free while the handler runs")
		}
		run.returns(nil)
		if err := awaitClosed(t, closed); err != nil {
			t.Error(err)
		}
		<-down
		r.await(id, asynq.TaskStateCompleted)
		if r.locked("work") {
			t.Error("the key stayed taken")
		}
	})
}

// Waiters end with Close, and their attempts are not spent.
func TestShutdown_waiters(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, _ := busyRig(t, s, automutex.Rule{Wait: time.Hour, Busy: automutex.Retry}, setup{})
		ids := []string{r.enqueue("work", one), r.enqueue("work", one)}
		r.awaitLine(2, "work", "1")
		began := time.Now()
		closed := r.closing(t.Context())
		r.shutdown()
		if err := awaitClosed(t, closed); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > patience/2 {
			t.Errorf("Close and Shutdown took %s", took)
		}
		for _, id := range ids {
			info := r.awaitRetried(id, 0)
			if until := time.Until(info.NextProcessAt); until > 5*time.Second || !strings.Contains(info.LastErr, "closed") {
				t.Errorf("it comes back in %s with %q", until, info.LastErr)
			}
		}
		r.awaitLine(0, "work", "1")
		r.stage.none(t)
	})
}

// On its last attempt a waiter says nothing until asynq has taken the task
// back, and Close does not wait for it.
func TestShutdown_lastAttemptWaiter(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, free := busyRig(t, s, automutex.Rule{Wait: time.Hour, Busy: automutex.Retry}, setup{served: quickly(time.Second)})
		waits := r.enqueue("work", one, asynq.MaxRetry(0))
		r.awaitLine(1, "work", "1")
		if err := awaitClosed(t, r.closing(t.Context())); err != nil {
			t.Error(err)
		}
		// Close has returned: the key comes free, and must not start it. Nor
		// one that comes only now.
		r.awaitLine(0, "work", "1")
		free()
		late := r.enqueue("work", one, asynq.MaxRetry(0))
		r.await(late, asynq.TaskStateActive)
		r.await(waits, asynq.TaskStateActive)
		r.shutdown()
		for _, id := range []string{waits, late} {
			if info := r.await(id, asynq.TaskStatePending); info.Retried != 0 {
				t.Errorf("%d attempts spent", info.Retried)
			}
		}
		r.stage.none(t)
	})
}

// After Close tasks with a rule go back unrun, others run.
func TestShutdown_afterClose(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Busy: automutex.Skip}}})
		for range 2 { // again does no harm
			if err := r.guard.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		keyed, free := r.enqueue("work", nil), r.enqueue("play", nil)
		run := r.stage.nextIs(t, free)
		run.returns(nil)
		r.await(free, asynq.TaskStateCompleted)
		if info := r.awaitRetried(keyed, 0); !strings.Contains(info.LastErr, "closed") {
			t.Errorf("the last error is %q", info.LastErr)
		}
		r.stage.none(t)
		err := r.guard.Middleware(r.stage).ProcessTask(t.Context(), asynq.NewTask("work", nil))
		if !errors.Is(err, automutex.ErrClosed) {
			t.Errorf("called directly: %v", err)
		}
	})
}

// Close gives up when its context ends; the handler goes on, until its lease
// is lost.
func TestShutdown_handlerOutlivesClose(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", TTL: soon, Busy: automutex.Retry}}, served: comingBack})
		id := r.enqueue("work", nil)
		run := r.stage.next(t)
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		closed := r.closing(ctx)
		cancel(enough)
		if err := awaitClosed(t, closed); !errors.Is(err, enough) {
			t.Errorf("Close returned %v", err)
		}
		if err := run.awaitEnd(t); err == nil {
			t.Error("the handler is not told that its lease ended")
		}
		run.returns(nil)
		r.await(id, asynq.TaskStateCompleted)
	})
}

// Shutdown alone: the tasks are safe, it only takes its whole timeout.
func TestShutdown_withoutClose(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, free := busyRig(t, s, automutex.Rule{Wait: time.Hour, Busy: automutex.Retry}, setup{served: quickly(200 * time.Millisecond)})
		ids := []string{r.enqueue("work", one), r.enqueue("work", one, asynq.MaxRetry(0))}
		r.awaitLine(2, "work", "1")
		r.shutdown()
		for _, id := range ids {
			if info := r.await(id, asynq.TaskStatePending); info.Retried != 0 {
				t.Errorf("%d attempts spent", info.Retried)
			}
		}
		// Their contexts have ended, so they leave the line.
		r.awaitLine(0, "work", "1")
		free()
		if err := awaitClosed(t, r.closing(t.Context())); err != nil {
			t.Error(err)
		}
		r.stage.none(t)
		if text := r.log.Text(0); strings.Count(text, "Close comes late") != 1 {
			t.Errorf("logged %s", text)
		}
	})
}

// asynq takes the task back while its handler runs on, and another process
// picks it up: it sees its own earlier attempt, and waits for its end.
func TestShutdown_requeuedWhileItRuns(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rules := []automutex.Rule{{Task: "work", Busy: automutex.Skip}}
		old := start(t, s, setup{rules: rules, served: quickly(100 * time.Millisecond)})
		id := old.enqueue("work", nil)
		run := old.stage.next(t)
		closed := old.closing(t.Context())
		old.shutdown()
		if err := run.awaitEnd(t); !errors.Is(err, context.Canceled) {
			t.Errorf("the handler's context ended with %v", err)
		}
		old.awaitEvent(automutex.EventOverdue, id)
		if !old.locked("work") {
			t.Error("the key is free while the handler runs")
		}

		fresh := start(t, s, setup{rules: rules, queue: old.queue, prefix: old.cfg.Prefix})
		if event := fresh.awaitEvent(automutex.EventBusy, id); !event.Busy.SameTask {
			t.Errorf("got %+v", event.Busy)
		}
		fresh.awaitRetried(id, 0)
		fresh.stage.none(t)
		run.returns(nil)
		if err := awaitClosed(t, closed); err != nil {
			t.Error(err)
		}
		fresh.rerun(id)
		fresh.stage.next(t).returns(nil)
		fresh.await(id, asynq.TaskStateCompleted)
	})
}

// Close in the thick of it: nothing is lost, nothing runs twice at once.
func TestShutdown_underLoad(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const tasks = 60
		rules := []automutex.Rule{{Task: "work", On: []string{"id"}, Wait: time.Minute, Busy: automutex.Retry}}
		var mu sync.Mutex
		now, done := map[string]int{}, 0
		handler := func(_ context.Context, task *asynq.Task) error {
			key := string(task.Payload())
			mu.Lock()
			if now[key]++; now[key] > 1 {
				t.Errorf("%d runs of %s at once", now[key], key)
			}
			mu.Unlock()
			<-time.After(2 * time.Millisecond) // the work
			mu.Lock()
			now[key]--
			done++
			mu.Unlock()
			return nil
		}
		first := start(t, s, setup{rules: rules, handler: handler, served: quickly(500 * time.Millisecond)})
		var ids []string
		for i := range tasks {
			ids = append(ids, first.enqueue("work", map[string]int{"id": i % 3}, asynq.MaxRetry(i%2)))
		}
		redistest.Eventually(t, patience, func() bool { mu.Lock(); defer mu.Unlock(); return done >= tasks/4 }, "a part is done")
		closed := first.closing(t.Context())
		// What waits for good, on its last attempt, asynq takes back.
		first.shutdown()
		if err := awaitClosed(t, closed); err != nil {
			t.Error(err)
		}
		second := start(t, s, setup{rules: rules, handler: handler, queue: first.queue, prefix: first.cfg.Prefix})
		for _, id := range ids {
			if info, err := second.inspector.GetTaskInfo(second.queue, id); err == nil && info.State == asynq.TaskStateRetry {
				// It comes back by itself, but in seconds. It may be doing so right now.
				_ = second.inspector.RunTask(second.queue, id)
			}
			second.await(id, asynq.TaskStateCompleted)
		}
	})
}

// When a context from the user's own BaseContext ends asynq files the task
// itself; waiters leave the line then and never run.
func TestShutdown_baseContextEnds(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		base, end := context.WithCancel(context.Background())
		r, free := busyRig(t, s, automutex.Rule{Wait: time.Hour, Busy: automutex.Retry}, setup{served: func(c *asynq.Config) {
			c.BaseContext = func() context.Context { return base }
		}})
		ids := []string{r.enqueue("work", one), r.enqueue("work", one, asynq.MaxRetry(0))}
		r.awaitLine(2, "work", "1")
		end()
		r.awaitRetried(ids[0], 1)
		r.await(ids[1], asynq.TaskStateArchived)
		r.awaitLine(0, "work", "1")
		free()
		r.stop()
		r.stage.none(t)
		// asynq listens no more: there is no policy to apply.
		for _, id := range ids {
			if kinds := r.seen.kindsOf(id); !slices.Equal(kinds, []automutex.EventKind{automutex.EventWaiting, automutex.EventWaited}) {
				t.Errorf("events %v", kinds)
			}
		}
	})
}

// A task for which no key can ever be made is archived also while the Guard closes, with its own error and event.
func TestShutdown_keyErrorWhileTheGuardCloses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		keying, closing := make(chan struct{}), make(chan struct{})
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Key: func(context.Context, *asynq.Task) ([]string, error) {
			close(keying)
			<-closing
			return nil, &automutex.KeyError{Task: "work", Err: errors.New("no tenant")}
		}}}})
		id := r.enqueue("work", nil)
		<-keying
		closed := r.closing(t.Context())
		close(closing)
		if info := r.await(id, asynq.TaskStateArchived); !strings.Contains(info.LastErr, "no tenant") {
			t.Errorf("the last error is %q", info.LastErr)
		}
		r.awaitEvent(automutex.EventKeyError, id)
		if err := awaitClosed(t, closed); err != nil {
			t.Error(err)
		}
	})
}

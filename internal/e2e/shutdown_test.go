package e2e

import (
	"context"
	"errors"
	"slices"
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

func quickly(d time.Duration) func(*asynq.Config) {
	return func(c *asynq.Config) { c.ShutdownTimeout = d }
}

// A handler that runs while the server shuts down keeps its lease, is renewed, and is waited for.
func TestShutdown_runningHandler(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		hook := &redistest.FailHook{}
		r := start(t, s, setup{rules: []automutex.Rule{{TTL: 9 * time.Second, Busy: automutex.Retry}}, hook: hook})
		id := r.enqueue("work", nil)
		run := r.next()
		lease, _ := automutex.Lease(run.ctx)
		redistest.Must(t, lease.Extend(t.Context(), time.Hour)) // however late a renewal is
		closed := r.closing(t.Context())
		key, renewed := r.lockOf("work").Key(), atomic.Int32{}
		hook.Before(func(cmd redis.Cmder) error {
			if slices.Contains(cmd.Args(), any(key)) {
				renewed.Add(1)
			}
			return nil
		})
		down := make(chan struct{})
		go func() { defer close(down); r.shutdown() }()
		eventually(t, func() bool { return renewed.Load() > 0 }, "the lease is renewed after Close")
		select {
		case err := <-closed:
			t.Errorf("Close returned %v while the handler runs", err)
		case <-down:
			t.Error("Shutdown returned while the handler runs")
		case <-run.ctx.Done():
			t.Errorf("the handler's context ended: %v", context.Cause(run.ctx))
		default:
		}
		r.wantLocked(true, "work")
		run.returns(nil)
		redistest.Must(t, awaitClosed(t, closed))
		<-down
		r.awaitDone(id)
		r.wantLocked(false, "work")
	})
}

// Waiters end with Close, and their attempts are not spent.
func TestShutdown_waiters(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, free := busyRig(t, s, automutex.Rule{Wait: time.Hour, Busy: automutex.Retry}, setup{served: quickly(time.Second)})
		away := r.enqueue("free", nil, asynq.MaxRetry(0))
		r.next().returns(automutex.RetryAfter(time.Minute, nil))
		ids := []string{r.enqueueOne(), r.enqueueOne()}
		last := r.enqueueOne(asynq.MaxRetry(0))
		r.awaitLine(3, "work", "1")
		began := time.Now()
		redistest.Must(t, awaitClosed(t, r.closing(t.Context())))
		r.awaitLine(0, "work", "1")
		for _, id := range ids {
			info := r.awaitRetried(id, 0)
			if until := time.Until(info.NextProcessAt); until > 5*time.Second || !strings.Contains(info.LastErr, "closed") {
				t.Errorf("it comes back in %s with %q", until, info.LastErr)
			}
		}
		free()
		late := r.enqueueOne(asynq.MaxRetry(0))
		r.await(late, asynq.TaskStateActive)
		r.shutdown()
		if took := time.Since(began); took > patience/2 {
			t.Errorf("Close and Shutdown took %s", took)
		}
		for _, id := range []string{away, last, late} {
			r.awaitSpent(id, asynq.TaskStatePending, 0)
		}
		r.none()
	})
}

// After Close each task that has a rule goes back unrun, also one without a key or a lock, and under Allow; others run.
func TestShutdown_afterClose(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		free := func(context.Context, *asynq.Task) ([]string, error) { return nil, automutex.NoLock }
		r := start(t, s, setup{rules: []automutex.Rule{
			{Busy: automutex.Skip}, {Task: "never", On: onID},
			{Task: "free", Key: free}, {Task: "allow", On: onID, Busy: automutex.Allow},
		}})
		for range 2 { // again does no harm
			redistest.Must(t, r.guard.Close(t.Context()))
		}
		for _, task := range []string{"work", "never", "free", "allow"} {
			says(t, r.awaitRetried(r.enqueue(task, nil), 0).LastErr, "closed")
		}
		r.none()
		r.finish(r.enqueue("play", nil))
		if err := r.guard.Middleware(r.stage).ProcessTask(t.Context(), asynq.NewTask("work", nil)); !errors.Is(err,
			automutex.ErrClosed) {
			t.Errorf("called directly: %v", err)
		}
	})
}

// Shutdown alone: the tasks are safe, it only takes its whole timeout.
func TestShutdown_withoutClose(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, free := busyRig(t, s, automutex.Rule{Wait: time.Hour, Busy: automutex.Retry},
			setup{served: quickly(200 * time.Millisecond)})
		ids := []string{r.enqueueOne(), r.enqueueOne(asynq.MaxRetry(0))}
		r.awaitLine(2, "work", "1")
		r.shutdown()
		for _, id := range ids {
			r.awaitSpent(id, asynq.TaskStatePending, 0)
		}
		// Their contexts have ended, so they leave the line.
		r.awaitLine(0, "work", "1")
		free()
		redistest.Must(t, awaitClosed(t, r.closing(t.Context())))
		r.none()
	})
}

// A Redis client that was closed before the Guard.
func TestClose_clientBefore(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, busy := range []automutex.Policy{automutex.Retry, automutex.Replace, automutex.Park} {
			locks := s.Client(t)
			r := start(t, s, setup{rules: []automutex.Rule{{Busy: busy}}, locks: locks})
			held := r.enqueue("work", nil)
			run := r.next()
			redistest.Must(t, locks.(interface{ Close() error }).Close())
			id := r.enqueue("work", nil)
			says(t, r.awaitRetried(id, 0).LastErr, "client is closed")
			r.ends(run)
			if event := r.awaitEvent(automutex.EventBackendError, held); !errors.Is(event.Err, redis.ErrClosed) {
				t.Errorf("%s: at the release: %v", busy, event.Err)
			}
			r.stop()
		}
	})
}

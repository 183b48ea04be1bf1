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
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// watched is a redis.Hook that notes, of a guard's locks, when each task arrived,
// and how often tasks asked who is to stop.
type watched struct {
	mu    sync.Mutex       // guards both
	at    map[string]int64 // as Redis answered, by the task's ID
	calls int
}

// watch is a client for a guard's locks, and what it sees.
func watch(t *testing.T, s *redistest.Server) (*watched, redis.UniversalClient) {
	t.Helper()
	locks, w := s.Client(t), &watched{at: map[string]int64{}}
	locks.AddHook(w)
	return w, locks
}

func (w *watched) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *watched) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (w *watched) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		w.mu.Lock()
		defer w.mu.Unlock()
		args := cmd.Args()
		eval, ok := cmd.(*redis.Cmd)
		switch {
		case !ok || err != nil || len(args) < 6:
		case runs(cmd, "stop", ""):
			w.calls++
		default:
			key, _ := args[3].(string)
			note, _ := args[5].(string)
			if reply, ok := eval.Val().([]any); ok && len(reply) == 2 && strings.HasSuffix(key, ":arrivals") {
				_, id, _ := strings.Cut(note, "/")
				w.at[id], _ = reply[0].(int64)
			}
		}
		return err
	}
}

// await waits for n more calls.
func (w *watched) await(t *testing.T, n int) {
	t.Helper()
	calls := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.calls
	}
	began := calls()
	redistest.Eventually(t, patience, func() bool { return calls() >= began+n }, "%d calls", n)
}

// newest is the task that arrived last, of n.
func (w *watched) newest(t *testing.T, n int) (id string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.at) != n {
		t.Errorf("%d tasks have arrived, want %d", len(w.at), n)
	}
	for one, at := range w.at {
		if at > w.at[id] {
			id = one
		}
	}
	return id
}

// Many come at once, to several processes: the last one runs to its end, each
// other is revoked or done, and no two are at work at once.
func TestReplace_manyAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const all = 20
		seen, locks := watch(t, s)
		shared := newStage()
		prefix := redistest.Name(t)
		var rigs []*rig
		for range 2 {
			rigs = append(rigs, start(t, s, setup{
				rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour})}, prefix: prefix, locks: locks, workers: all, handler: shared.ProcessTask,
			}))
		}
		t.Cleanup(shared.end) // before the rigs stop
		ids := map[string]*rig{}
		first := rigs[0].enqueue("work", one)
		holder := shared.next(t)
		ids[first] = rigs[0]
		var wg sync.WaitGroup
		var mu sync.Mutex // guards ids
		for i := range all - 1 {
			redistest.Go(&wg, func() {
				r := rigs[i%len(rigs)]
				id := r.enqueue("work", one)
				mu.Lock()
				defer mu.Unlock()
				ids[id] = r
			})
		}
		wg.Wait()
		// The holder does not return before all but one are gone.
		redistest.Eventually(t, patience, func() bool {
			return len(rigs[0].seen.list(automutex.EventReplaced))+len(rigs[1].seen.list(automutex.EventReplaced)) == all-2
		}, "all but the holder and the newest are revoked")
		rigs[0].awaitLine(1, "work", "1")
		holder.returns(context.Cause(holder.ctx))
		last := shared.next(t)
		if newest := seen.newest(t, all); last.id != newest {
			t.Errorf("%s runs, but %s is the newest", last.id, newest)
		}
		if last.ctx.Err() != nil {
			t.Errorf("the newest was stopped: %v", context.Cause(last.ctx))
		}
		last.returns(nil)
		for id, r := range ids {
			if id == last.id {
				r.await(id, asynq.TaskStateCompleted)
			} else {
				r.awaitRevoked(id)
			}
		}
		if shared.count() != 2 || shared.mostAtOnce("work") != 1 {
			t.Errorf("%d runs, %d at once", shared.count(), shared.mostAtOnce("work"))
		}
		rigs[0].awaitForgotten("work", "1")
	})
}

// The same with handlers that stop when they are told to, and tasks that keep
// coming: whatever becomes of the others, the last of all ends well.
func TestReplace_manyInARow(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const all = 40
		seen, locks := watch(t, s)
		var mu sync.Mutex // guards what follows
		var now, most int
		var done []string
		r := start(t, s, setup{
			rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour})}, locks: locks, workers: 8, served: untouched(t),
			handler: func(ctx context.Context, _ *asynq.Task) (err error) {
				mu.Lock()
				now++
				most = max(most, now)
				mu.Unlock()
				select {
				case <-ctx.Done():
					err = context.Cause(ctx)
				case <-time.After(5 * time.Millisecond): // the work
				}
				mu.Lock()
				defer mu.Unlock()
				now--
				if err == nil {
					id, _ := asynq.GetTaskID(ctx)
					done = append(done, id)
				}
				return err
			},
		})
		var ids []string
		for range all {
			ids = append(ids, r.enqueue("work", one))
		}
		over := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(done) + len(r.seen.list(automutex.EventReplaced))
		}
		redistest.Eventually(t, patience, func() bool { return over() == all }, "each task is done or revoked")
		mu.Lock()
		defer mu.Unlock()
		if most != 1 {
			t.Errorf("%d at once", most)
		}
		if newest := seen.newest(t, all); !slices.Contains(done, newest) {
			t.Errorf("the newest, %s, is not among those done: %v", newest, done)
		}
		for _, id := range ids {
			if slices.Contains(done, id) {
				r.await(id, asynq.TaskStateCompleted)
			} else {
				r.awaitRevoked(id)
			}
		}
	})
}

// A task that failed and comes back is as old as it was: it stops nobody newer,
// waits for its turn, and is itself replaced by one that is newer still.
func TestReplace_retriedTaskIsOld(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		w, locks := watch(t, s)
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour})}, locks: locks})
		old := r.enqueue("work", one)
		r.stage.next(t).returns(errors.New("once"))
		r.awaitRetried(old, 1)
		young := r.enqueue("work", one)
		running := r.stage.next(t)
		r.awaitSubscribed()
		r.rerun(old)
		r.awaitLine(1, "work", "1")
		w.await(t, 3)
		if running.ctx.Err() != nil {
			t.Fatalf("a retried task stopped a newer one: %v", context.Cause(running.ctx))
		}
		running.returns(nil)
		r.await(young, asynq.TaskStateCompleted)
		again := r.stage.nextIs(t, old)
		newest := r.enqueue("work", one)
		again.awaitEnd(t)
		again.returns(errors.New("twice"))
		r.awaitRevoked(old)
		r.stage.next(t).returns(nil)
		r.await(newest, asynq.TaskStateCompleted)
		r.awaitForgotten("work", "1")
	})
}

// Somebody newer has the lock before a task, which has just arrived, asks for it:
// that one is not to run after the newer one.
func TestReplace_overtaken(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix, queue := redistest.Name(t), redistest.Name(t)
		newer := lock.New(s.Client(t), lock.Options{Prefix: prefix})
		defer func() { _ = newer.Close() }()
		m := func(options ...lock.Option) *lock.Lock {
			return newer.Mutex("work", append(options, lock.Parts("1"), lock.Note("newer"))...)
		}
		var once sync.Once
		taken := make(chan *lock.Lease, 1)
		hook, locks := &redistest.FailHook{}, s.Client(t)
		hook.After(func(cmd redis.Cmder) error {
			if reply, ok := cmd.(*redis.Cmd); ok {
				if pair, ok := reply.Val().([]any); ok && len(pair) == 2 { // its arrival
					once.Do(func() {
						arrival, _, err := inner.Arrive(context.Background(), m())
						if err != nil {
							t.Error(err)
						}
						lease, err := m(inner.OnStop(arrival, func() {})).TryLock(context.Background())
						if err != nil {
							t.Error(err)
						}
						taken <- lease
					})
				}
			}
			return nil
		})
		locks.AddHook(hook)
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour})}, prefix: prefix, queue: queue, locks: locks})
		id := r.enqueue("work", one)
		lease := <-taken
		if event := r.awaitRevoked(id); event.Held != 0 {
			t.Errorf("got %+v", event)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		r.stage.none(t)
	})
}

// A failed task whose attempts are spent is archived and forgotten; one that is
// done is, too. The same ID enqueued again is a new task.
func TestReplace_sameIDAgain(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour})}})
		id := redistest.Name(t)
		for _, answer := range []error{nil, errors.New("failed")} {
			r.enqueue("work", one, asynq.TaskID(id), asynq.MaxRetry(0))
			r.stage.next(t).returns(answer)
			r.await(id, map[bool]asynq.TaskState{true: asynq.TaskStateCompleted, false: asynq.TaskStateArchived}[answer == nil])
			r.awaitForgotten("work", "1")
			redistest.Must(t, r.inspector.DeleteTask(r.queue, id))
			between := r.enqueue("work", one)
			running := r.stage.next(t)
			r.enqueue("work", one, asynq.TaskID(id))
			running.awaitEnd(t)
			running.returns(automutex.ErrReplaced)
			r.awaitRevoked(between)
			r.stage.next(t).returns(nil)
			r.await(id, asynq.TaskStateCompleted)
			redistest.Must(t, r.inspector.DeleteTask(r.queue, id))
		}
	})
}

// Of a semaphore's holders the oldest goes, and only that.
func TestReplace_limit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		w, locks := watch(t, s)
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Limit: 2, Wait: time.Hour})}, locks: locks})
		var runs []*run
		for range 2 {
			r.enqueue("work", one)
			runs = append(runs, r.stage.next(t))
		}
		for i := range 3 {
			r.enqueue("work", one)
			runs[i].awaitEnd(t)
			w.await(t, 2) // each asks no other, however often
			if runs[i+1].ctx.Err() != nil {
				t.Errorf("the newer of two holders was stopped: %v", context.Cause(runs[i+1].ctx))
			}
			r.stage.none(t)
			runs[i].returns(context.Cause(runs[i].ctx))
			r.awaitRevoked(runs[i].id)
			runs = append(runs, r.stage.next(t))
		}
		for _, run := range runs[3:] {
			run.returns(nil)
			r.await(run.id, asynq.TaskStateCompleted)
		}
		if most := r.stage.mostAtOnce("work"); most != 2 {
			t.Errorf("%d at once", most)
		}
	})
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Park: what a task sees of it. What goes wrong meanwhile is in
// park_faults_test.go, many tasks and processes are in park_stress_test.go, the
// count of workers by itself in workers_test.go.
//
// A key that rig.hold took is released by a Guard, which then calls at once. One
// that rig.take took is not: rig.others calls nobody, and what comes after its
// release was called by the look-after of the Guard that parked.

// hold holds a key under a Guard, as a task would.
func (r *rig) hold(scope string, parts ...string) *lock.Lease {
	r.t.Helper()
	return newHolder(r.t, r.locks, r.cfg, scope).take(parts...)
}

// heldRig is a rig whose tasks of type "work", keyed on id, park, and whose key
// of id 1 is held.
func heldRig(t *testing.T, s *redistest.Server, o setup) (*rig, func()) {
	t.Helper()
	o.rules = []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}
	r := start(t, s, o)
	lease := r.hold("work", "1")
	return r, func() { t.Helper(); r.free(lease) }
}

// awaitParked waits until asynq has filed the task as parked, no attempt spent.
func (r *rig) awaitParked(id string) *asynq.TaskInfo {
	r.t.Helper()
	info := r.awaitRetried(id, 0)
	if !strings.Contains(info.LastErr, "parked on ") {
		r.t.Fatalf("the task %s is not parked: last error %q", id, info.LastErr)
	}
	return info
}

// stored is what Redis has of a key's line.
func (r *rig) stored(scope string, parts ...string) inside.Info {
	r.t.Helper()
	info, err := inner.Inspect(context.Background(), r.lockOf(scope, parts...))
	if err != nil {
		r.t.Fatal(err)
	}
	return info
}

// awaitStored waits until so many stand in line in workers, and so many are
// parked or called.
func (r *rig) awaitStored(waiting, parked int, scope string, parts ...string) {
	r.t.Helper()
	var info inside.Info
	defer func() {
		if r.t.Failed() {
			r.t.Logf("stored of the line: %+v", info)
		}
	}()
	redistest.Eventually(r.t, patience, func() bool {
		info = r.stored(scope, parts...)
		return info.Waiting == waiting && info.Parked+info.Called == parked
	}, "%d wait and %d are parked on %s", waiting, parked, scope)
}

// operate does to a parked task what an operator does, who finds it on its way
// now and then, and does it again.
func (r *rig) operate(id string, do func(queue, id string) error) {
	r.t.Helper()
	var err error
	redistest.Eventually(r.t, patience, func() bool {
		err = do(r.queue, id)
		return err == nil
	}, "something is done to %s", id)
}

// comesBack is what asynq does when the retry of a parked task is due, unless the
// task was called.
func (r *rig) comesBack(id string) {
	r.t.Helper()
	if info, err := r.inspector.GetTaskInfo(r.queue, id); err != nil {
		r.t.Fatal(err)
	} else if info.State == asynq.TaskStateRetry {
		_ = r.inspector.RunTask(r.queue, id) // it may have been called since
	}
}

// finish waits for the next run, checks that it is that of the task, and has it
// return nil.
func (r *rig) finish(id string) {
	r.t.Helper()
	r.finishSpent(id, 0)
}

// finishSpent is finish for a task of which so many attempts are spent.
func (r *rig) finishSpent(id string, spent int) {
	r.t.Helper()
	r.stage.nextIs(r.t, id).returns(nil)
	if info := r.await(id, asynq.TaskStateCompleted); info.Retried != spent {
		r.t.Errorf("%s: %d attempts spent, want %d", id, info.Retried, spent)
	}
}

// finishAll is finish for several tasks in any order: more than one may be
// called at once, and they come as asynq has it then.
func (r *rig) finishAll(ids ...string) {
	r.t.Helper()
	left := slices.Clone(ids)
	for len(left) > 0 {
		run := r.stage.next(r.t)
		i := slices.Index(left, run.id)
		if i < 0 {
			r.t.Fatalf("%s runs, and not one of %v", run.id, left)
		}
		left = slices.Delete(left, i, i+1)
		run.returns(nil)
		if info := r.await(run.id, asynq.TaskStateCompleted); info.Retried != 0 {
			r.t.Errorf("%s: %d attempts spent", run.id, info.Retried)
		}
	}
}

// What asynq shows of a parked task, and what nobody is told of it.
func TestPark_explainsItself(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var told atomic.Int64
		r := start(t, s, setup{
			rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}, workers: 1,
			served: func(c *asynq.Config) {
				c.ErrorHandler = asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { told.Add(1) })
				c.IsFailure = func(error) bool { told.Add(1); return true }
			},
		})
		m := r.others.Mutex("work", lock.Parts("1"), lock.Note("far/away"), lock.TTL(time.Minute))
		held, err := m.TryLock(t.Context())
		redistest.Must(t, err)
		var ids []string
		for i := range 2 {
			id := r.enqueue("work", one)
			ids = append(ids, id)
			began := time.Now()
			info := r.awaitParked(id)
			for _, text := range []string{
				`rule "work"`, "parked on " + m.Key() + ",", fmt.Sprintf("place %d in line", i+1), "held by task far/away on somebody-else", "deadline in",
			} {
				if !strings.Contains(info.LastErr, text) {
					t.Errorf("the last error %q does not say %q", info.LastErr, text)
				}
			}
			event := r.awaitEvent(automutex.EventParked, id)
			busy := event.Busy
			if event.Rule != "work" || event.Key != m.Key() || event.Policy != automutex.Park || busy.Place != i || busy.HolderTask != "far/away" || busy.Waited <= 0 {
				t.Errorf("got %+v of %+v", event, busy)
			}
			// Not before the holder's deadline, which is a minute away.
			if event.Delay < 55*time.Second || event.Delay > 10*time.Minute {
				t.Errorf("it comes back by itself after %s", event.Delay)
			}
			early, late := began.Add(event.Delay-2*time.Second), time.Now().Add(event.Delay)
			if info.NextProcessAt.Before(early) || info.NextProcessAt.After(late) {
				t.Errorf("asynq has it at %s, not within %s and %s", info.NextProcessAt, early, late)
			}
		}
		r.free(held)
		for _, id := range ids {
			r.finish(id)
			if event := r.awaitEvent(automutex.EventAcquired, id); event.Parked <= 0 {
				t.Errorf("it was parked, and got %+v", event)
			}
			kinds := r.seen.kindsOf(id)
			if !slices.Equal(kinds[:4], []automutex.EventKind{automutex.EventWaiting, automutex.EventWaited, automutex.EventBusy, automutex.EventParked}) {
				t.Errorf("events %v", kinds)
			}
		}
		if told.Load() != 0 {
			t.Error("IsFailure or ErrorHandler was told of a parked task")
		}
		r.awaitStored(0, 0, "work", "1")
	})
}

// It waits in its worker while another is free; when the last is taken, the
// newest goes, and one at a time.
func TestPark_yieldsTheLastWorker(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{workers: 3})
		older := r.enqueue("work", one)
		r.awaitStored(1, 0, "work", "1")
		newer := r.enqueue("work", one)
		r.awaitStored(2, 0, "work", "1")
		first := r.enqueue("other", nil) // takes the last one
		blocks := r.stage.next(t)
		r.awaitParked(newer)
		r.awaitStored(1, 1, "work", "1")
		if event := r.awaitEvent(automutex.EventParked, newer); event.Busy.Waited <= 0 || event.Busy.Place != 1 {
			t.Errorf("it gave way with %+v", event.Busy)
		}
		second := r.enqueue("other", nil)
		blocksToo := r.stage.next(t)
		r.awaitParked(older)
		r.awaitStored(0, 2, "work", "1")
		free()
		// Called in order, to the one worker left.
		r.finish(older)
		r.finish(newer)
		blocks.returns(nil)
		blocksToo.returns(nil)
		r.await(first, asynq.TaskStateCompleted)
		r.await(second, asynq.TaskStateCompleted)
	})
}

// In its worker it is handed the key by the release, and nothing is parked.
func TestPark_waitsInItsWorker(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Park}}})
		first := r.enqueue("work", one)
		run := r.stage.next(t)
		second := r.enqueue("work", one)
		r.awaitStored(1, 0, "work", "1")
		run.returns(nil)
		r.finish(second)
		r.await(first, asynq.TaskStateCompleted)
		if event := r.awaitEvent(automutex.EventAcquired, second); event.Waited <= 0 || event.Parked != 0 {
			t.Errorf("got %+v", event)
		}
		if parked := r.seen.list(automutex.EventParked); len(parked) != 0 {
			t.Errorf("parked: %+v", parked)
		}
	})
}

// With one worker it is never held for a wait, whoever has the key.
func TestPark_concurrencyOne(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{workers: 1})
		parked := r.enqueue("work", one)
		r.awaitParked(parked)
		r.finish(r.enqueue("other", nil)) // the worker is free
		r.finish(r.enqueue("work", map[string]int{"id": 2}))
		free()
		r.finish(parked)
		// Holder and successor in one server.
		a, b := r.enqueue("work", one), r.enqueue("work", one)
		r.finish(a)
		r.finish(b)
	})
}

// A task that asynq would archive for any error waits in its worker, also when
// that is the last one.
func TestPark_lastAttempt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{workers: 2})
		none := r.enqueue("work", one, asynq.MaxRetry(0))
		r.awaitStored(1, 0, "work", "1")
		other := r.enqueue("other", nil) // the last worker
		blocks := r.stage.next(t)
		r.await(none, asynq.TaskStateActive)
		r.awaitStored(1, 0, "work", "1")
		free()
		r.finish(none)
		blocks.returns(nil)
		r.await(other, asynq.TaskStateCompleted)
		if kinds := r.seen.kindsOf(none); !slices.Equal(kinds, []automutex.EventKind{automutex.EventWaiting, automutex.EventWaited, automutex.EventAcquired, automutex.EventReleased}) {
			t.Errorf("events %v", kinds)
		}

		// The last of two.
		lease := r.hold("work", "2")
		id := r.enqueue("work", map[string]int{"id": 2}, asynq.MaxRetry(1))
		r.awaitStored(1, 0, "work", "2") // in its worker
		r.free(lease)
		r.stage.next(t).returns(errors.New("its own"))
		r.awaitRetried(id, 1)
		lease = r.hold("work", "2")
		r.rerun(id)
		r.awaitStored(1, 0, "work", "2")
		r.await(id, asynq.TaskStateActive)
		r.free(lease)
		r.stage.next(t).returns(nil)
		r.await(id, asynq.TaskStateCompleted)
	})
}

// Without ServerConfig nobody knows how many workers are free: it parks at once.
// asynq counts the attempt then, and the call comes all the same.
func TestPark_unmarked(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{unmarked: true})
		id := r.enqueue("work", one)
		info := r.awaitRetried(id, 1)
		if busy := r.awaitEvent(automutex.EventParked, id).Busy; busy.Waited != 0 || !strings.Contains(info.LastErr, "parked on ") {
			t.Errorf("got %+v, %q", busy, info.LastErr)
		}
		// On its last attempt then, it goes on from its place, in its worker.
		last := r.enqueue("work", one, asynq.MaxRetry(1))
		r.awaitRetried(last, 1)
		r.rerun(last)
		r.awaitStored(1, 1, "work", "1")
		free()
		for _, id := range []string{last, id} {
			run := r.stage.nextIs(t, id)
			run.returns(nil)
			r.await(id, asynq.TaskStateCompleted)
		}
	})
}

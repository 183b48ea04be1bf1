package e2e

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Replace beside other things: earlier attempts and the last one, several locks,
// other policies, a cooldown, other guards.

// The newcomer's own earlier attempt is in the way: that is the same task.
func TestReplace_sameTask(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		w, locks := watch(t, s)
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour})}, locks: locks})
		id := r.enqueue("work", one)
		running := r.stage.next(t)
		running.cut()
		r.awaitRetried(id, 1)
		r.rerun(id)
		if event := r.awaitEvent(automutex.EventRetried, id); event.Delay > 5*time.Second {
			t.Errorf("got %+v", event)
		}
		if event := r.awaitEvent(automutex.EventBusy, id); !event.Busy.SameTask || event.Waited != 0 {
			t.Errorf("got %+v", event)
		}
		r.awaitRetried(id, 1)
		// The earlier attempt was not asked, and cannot be by its own task.
		if events := r.seen.list(automutex.EventReplaced); len(events) > 0 {
			t.Errorf("got %+v", events)
		}
		// It is by another: asynq has filed it already, and it comes back, as old
		// as it was.
		young := r.enqueue("work", one)
		r.awaitLine(1, "work", "1")
		running.returns(errors.New("late"))
		newer := r.stage.next(t)
		r.rerun(id)
		r.awaitLine(1, "work", "1")
		w.await(t, 2)
		if newer.ctx.Err() != nil {
			t.Errorf("a retried task stopped a newer one: %v", context.Cause(newer.ctx))
		}
		newer.returns(nil)
		r.await(young, asynq.TaskStateCompleted)
		r.stage.next(t).returns(nil)
		r.await(id, asynq.TaskStateCompleted)
		r.awaitForgotten("work", "1")
	})
}

// Without attempts left a newcomer waits in its worker for as long as it takes,
// sees that older ones stop, and is replaced there like any other.
func TestReplace_lastAttempt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: 100 * time.Millisecond})}, served: untouched(t)})
		old := r.enqueue("work", one)
		running := r.stage.next(t)
		last := r.enqueue("work", one, asynq.MaxRetry(0))
		r.awaitLine(1, "work", "1")
		newer := r.enqueue("work", one, asynq.MaxRetry(0))
		event := r.awaitRevoked(last)
		if kinds := r.seen.kindsOf(last); !slices.Equal(kinds, []automutex.EventKind{automutex.EventWaiting, automutex.EventWaited, automutex.EventBusy, automutex.EventReplaced}) || event.Waited <= 0 {
			t.Errorf("events %v; %+v", kinds, event)
		}
		r.awaitLine(1, "work", "1")
		r.stage.none(t)
		running.returns(context.Cause(running.ctx))
		next := r.stage.next(t)
		next.returns(nil)
		r.await(newer, asynq.TaskStateCompleted)
		r.awaitRevoked(old)
	})
}

// While a gate is closed that outlasts its Wait, a newcomer goes back to asynq, and the handler that
// runs goes on: nobody could start in its place.
func TestReplace_hold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: 10 * time.Second})}, served: untouched(t)})
		old := r.enqueue("work", one)
		running := r.stage.next(t)
		redistest.Must(t, automutex.CloseGate(running.ctx, time.Hour))
		newer := r.enqueue("work", one)
		r.awaitRetried(newer, 0)
		if err := context.Cause(running.ctx); err != nil {
			t.Errorf("the running handler's context has ended: %v", err)
		}
		running.returns(nil)
		r.await(old, asynq.TaskStateCompleted)
	})
}

// A task that waits for its second lock holds the first, and is asked for that.
func TestReplace_severalLocks(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rules := []automutex.Rule{
			{Task: "work", Name: "first", Scope: "first", Busy: automutex.Replace, Wait: time.Hour},
			{Task: "work", Name: "second", Scope: "second", Busy: automutex.Skip, Wait: time.Hour},
		}
		r := start(t, s, setup{rules: rules})
		taken := r.take("second")
		old := r.enqueue("work", nil)
		r.awaitLine(1, "second")
		young := r.enqueue("work", nil)
		if event := r.awaitRevoked(old); event.Rule != "first" || event.Key != r.lockOf("first").Key() {
			t.Errorf("got %+v", event)
		}
		r.stage.none(t)
		r.free(taken)
		next := r.stage.nextIs(t, young)
		next.returns(nil)
		r.await(young, asynq.TaskStateCompleted)
		if events := r.seen.list(automutex.EventSkipped); len(events) > 0 {
			t.Errorf("skipped for having been asked to stop: %+v", events)
		}
	})
}

// Holders that know nothing of newer and older are left alone: of another rule
// with the same Scope, or from outside asynq.
func TestReplace_leavesOthersAlone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rule := replacing(automutex.Rule{Wait: time.Hour})
		rule.Scope = "shared"
		r := start(t, s, setup{rules: []automutex.Rule{rule, {Task: "plain", Scope: "shared", On: []string{"id"}, Busy: automutex.Retry}}})
		plain := r.enqueue("plain", one)
		running := r.stage.next(t)
		young := r.enqueue("work", one)
		r.awaitLine(1, "shared", "1")
		newer := r.enqueue("work", one)
		r.awaitRevoked(young)
		if running.ctx.Err() != nil {
			t.Errorf("the context of another policy's task ended: %v", context.Cause(running.ctx))
		}
		running.returns(nil)
		r.await(plain, asynq.TaskStateCompleted)
		r.stage.next(t).returns(nil)
		r.await(newer, asynq.TaskStateCompleted)
	})
}

// A cooldown is waited for; it is no reason for those who wait not to be replaced.
func TestReplace_cooldown(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const cooldown = 5 * time.Second // long enough to enqueue and see two tasks in line on a busy machine
		r := start(t, s, setup{rules: []automutex.Rule{replacing(automutex.Rule{Wait: time.Hour, Cooldown: cooldown})}})
		began := time.Now()
		r.await(r.runs(r.enqueue("work", one)), asynq.TaskStateCompleted)
		old := r.enqueue("work", one)
		r.awaitLine(1, "work", "1")
		young := r.enqueue("work", one)
		r.awaitRevoked(old)
		r.await(r.runs(young), asynq.TaskStateCompleted)
		if took := time.Since(began); took < cooldown {
			t.Errorf("it ran after %s of a cooldown of %s", took, cooldown)
		}
	})
}

// runs ends the next run, which is to be that task's, without an error.
func (r *rig) runs(id string) string {
	r.t.Helper()
	run := r.stage.next(r.t)
	if run.id != id {
		r.t.Errorf("%s runs, want %s", run.id, id)
	}
	run.returns(nil)
	return id
}

// Outside of a server every call is a task of its own, and the last one wins.
func TestReplace_outsideAServer(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := redistest.Name(t)
		guard := newGuardAt(t, s, prefix, &redistest.Log{}, &events{}, replacing(automutex.Rule{}))
		began := make(chan struct{}, 2)
		handler := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			began <- struct{}{}
			if _, waits := ctx.Deadline(); !waits {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}))
		task := asynq.NewTask("work", []byte(`{"id":1}`))
		old := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			old <- handler.ProcessTask(ctx, task)
		}()
		<-began
		if err := handler.ProcessTask(t.Context(), task); err != nil {
			t.Errorf("the new one: %v", err)
		}
		err := <-old
		if !errors.Is(err, automutex.ErrReplaced) || !errors.Is(err, asynq.RevokeTask) || errors.Is(err, lock.ErrLost) {
			t.Errorf("the old one: %v", err)
		}
		if want := "automutex: rule \"work\": key \"" + prefix + ":{work|1}\": replaced by a newer task"; err.Error() != want {
			t.Errorf("its text is %q, want %q", err, want)
		}
	})
}

// A task that holds a lock under Replace and waits for another one, whatever the
// policy there, gives way as soon as a newer task comes for the first.
func TestReplace_waitsForAnotherLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, second := range []automutex.Policy{automutex.Retry, automutex.Park, automutex.Replace, automutex.Archive} {
			r := start(t, s, setup{rules: []automutex.Rule{
				{Task: "work", Name: "doc", Scope: "doc", On: []string{"id"}, Busy: automutex.Replace},
				{Task: "work", Name: "all", Scope: "all", Busy: second, Wait: time.Hour},
			}})
			held := r.take("all")
			old := r.enqueue("work", one)
			r.awaitLine(1, "all")
			newer := r.enqueue("work", one)
			r.awaitRevoked(old)
			r.wantPolicy(old, automutex.Replace)
			r.awaitLine(1, "all") // of the newer one
			r.free(held)
			r.finish(newer)
			r.awaitStored(0, 0, "all")
			r.stop()
		}
	})
}

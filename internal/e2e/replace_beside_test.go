package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Replace beside other things: earlier attempts and the last one, several locks,
// other policies, a cooldown, other guards.

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

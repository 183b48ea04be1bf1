package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// That a handler has asked to come back is known until an hour after that time, survives a lost reply, and is
// forgotten with the task.
func TestLaw_comesBackIsKnown(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		const away = 2 * time.Hour
		p := redistest.NewProxy(t, s.Addr())
		r := start(t, s, setup{locks: p.Client(t), rules: []automutex.Rule{
			{Task: "work", Name: "one", Scope: "one", On: []string{"id"}, Busy: automutex.Skip},
			{Task: "work", Name: "all", Scope: "all", Busy: automutex.Park},
		}})
		arrivals := r.lockOf("one", "1").Key() + ":arrivals"
		id := r.enqueue("work", one)
		run := r.stage.next(t)
		// The task parks in the lock with the closed gate; the other rule may end it all the same.
		redistest.Must(t, automutex.CloseGate(run.ctx, away))
		run.returns(automutex.RetryAfter(away, errUpstream))
		r.awaitRetried(id, 0)
		r.awaitEvent(automutex.EventParked, id)
		known := func(least time.Duration) {
			t.Helper()
			if ttl := r.rdb.PTTL(t.Context(), arrivals).Val(); ttl < least {
				t.Errorf("it is known for %s, want %s", ttl, least)
			}
		}
		known(away + time.Hour)
		lease := r.take("one", "1")
		for range 2 {
			r.seen.clear()
			p.DropReplyTo(func(command []string) bool { return slices.Contains(command, arrivals) }, 1)
			r.rerun(id)
			r.awaitEvent(automutex.EventBusy, id)
			r.awaitRetried(id, 0)
			known(away)
		}
		r.free(lease)
		if _, err := inner.OpenGate(t.Context(), r.lockOf("all")); err != nil {
			t.Fatal(err)
		}
		r.rerun(id)
		r.stage.next(t).returns(nil)
		r.await(id, asynq.TaskStateCompleted)
	})
}

// What is known of a task ends with it: another one of the same ID is new.
func TestLaw_comesBackIsForgotten(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Archive}}})
		id := r.enqueue("work", one)
		r.stage.next(t).returns(automutex.RetryAfter(0, errUpstream))
		r.awaitRetried(id, 0)
		arrivals := r.lockOf("work", "1").Key() + ":arrivals"
		if r.rdb.Exists(t.Context(), arrivals).Val() != 1 {
			t.Error("nothing is stored")
		}
		r.rerun(id)
		r.stage.next(t).returns(nil)
		r.await(id, asynq.TaskStateCompleted)
		if r.rdb.Exists(t.Context(), arrivals).Val() != 0 {
			t.Error("it is stored still")
		}
	})
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// Each step of the protocol of ordered keys, with what can go wrong at it. docs/architecture.md has the steps.

// deadProducer stamps a task of the id, and never enqueues it.
func (r *rig) deadProducer(id int, deadline time.Duration) {
	r.t.Helper()
	m := inner.ByOrder(r.others, r.lockOf("work", strconv.Itoa(id)).Key())
	if _, _, _, err := inner.Stamp(context.Background(), m, tasknote.Of(r.queue, "ghost"), stamp.NewNonce(), deadline, 0); err != nil {
		r.t.Fatal(err)
	}
}

// A producer that dies after its stamp keeps a key waiting until the stamp's deadline, and no longer.
func TestInOrder_producerDiesAfterItsStamp(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 2})
		r.deadProducer(1, 300*time.Millisecond)
		id := r.enqueueInOrder(c, 1)
		r.finish(id)
	})
}

// A stamp counts for MaxQueued only until its producer is found dead.
func TestInOrder_fullOfDeadProducers(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, InOrder: true, MaxQueued: 1}}})
		r.deadProducer(1, time.Millisecond)
		time.Sleep(5 * time.Millisecond) // Redis' clock passes the deadline
		r.finish(r.enqueueInOrder(c, 1))
	})
}

// A head that an operator deletes, archives or lets asynq forget does not stop its key for good.
func TestInOrder_operators(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 2, served: func(c *asynq.Config) {
			comingBack(c)
			c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Hour }
		}})
		first, second := r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1)
		run := r.stage.next(t)
		run.returns(errors.New("broken"))
		r.await(first, asynq.TaskStateRetry)
		r.awaitParked(second)
		r.operate(first, r.inspector.DeleteTask)
		r.finish(second) // by the look at a head that does not come
	})
}

// A task that is delivered again after it was done does not run again.
func TestInOrder_redelivery(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 2})
		id := r.enqueueInOrder(c, 1, asynq.Retention(0))
		run := r.stage.next(t)
		info, err := r.inspector.GetTaskInfo(r.queue, id)
		redistest.Must(t, err)
		run.returns(nil)
		r.awaitDropped(id)
		// The same task, header and all, as the recoverer delivers it when its end was not noted.
		again := asynq.NewTaskWithHeaders("work", info.Payload, info.Headers, asynq.Queue(r.queue), asynq.TaskID(id), asynq.MaxRetry(info.MaxRetry), asynq.Retention(time.Hour))
		if _, err := r.client.Enqueue(again); err != nil {
			t.Fatal(err)
		}
		r.await(id, asynq.TaskStateCompleted)
		r.stage.none(t)
		// A copy of the header in another task is no stamp: that task runs.
		other, err := r.client.Enqueue(asynq.NewTaskWithHeaders("work", info.Payload, info.Headers), asynq.Queue(r.queue), asynq.Retention(time.Hour))
		redistest.Must(t, err)
		r.finish(other.ID)
	})
}

// An operator can run a task again that asynq retains.
func TestInOrder_runAgain(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 2})
		id := r.enqueueInOrder(c, 1)
		r.finish(id)
		r.rerun(id)
		r.finish(id)
	})
}

// A task of a plain client joins at its arrival, and is warned of once.
func TestInOrder_plainClient(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 3})
		first := r.enqueueInOrder(c, 1)
		run := r.stage.next(t)
		plain := r.enqueue("work", `{"id":1}`)
		redistest.Eventually(t, patience, func() bool {
			head, err := inner.Head(t.Context(), inner.ByOrder(r.others, r.lockOf("work", "1").Key()))
			return err == nil && head.Queued == 2
		}, "the plain task has come")
		second := r.enqueueInOrder(c, 1)
		run.returns(nil)
		r.await(first, asynq.TaskStateCompleted)
		r.finish(plain)
		r.finish(second)
		if n := strings.Count(r.log.Text(-8), "was not enqueued through automutex.NewClient"); n != 1 {
			t.Errorf("%d warnings", n)
		}
	})
}

// With Continue the next task runs when one is archived.
func TestInOrder_continue(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 2, rules: []automutex.Rule{{Task: "work", On: []string{"id"}, InOrder: true, OnArchive: automutex.Continue}}})
		first, second, third := r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1)
		r.stage.next(t).returns(fmt.Errorf("broken: %w", asynq.SkipRetry))
		r.await(first, asynq.TaskStateArchived)
		run := r.stage.nextIs(t, second)
		run.returns(asynq.RevokeTask)
		r.awaitDropped(second)
		r.finish(third)
	})
}

// After the loss of all keys the stamps put the tasks in order again.
func TestInOrder_lostKeys(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 3, served: atOnce})
		first, second := r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1)
		run := r.stage.next(t)
		redistest.Eventually(t, patience, func() bool { return len(r.seen.list(automutex.EventWaiting)) == 1 }, "the second one waits")
		key := r.lockOf("work", "1").Key() // all that is stored, by hand
		redistest.Must(t, r.rdb.Del(t.Context(), key, key+":holders", key+":line", key+":info", key+":order", key+":marks").Err())
		// Nobody knows of the first one any more, so the second runs beside it: docs/guarantees.md says so.
		redistest.Eventually(t, patience, func() bool { return r.stage.count() >= 2 }, "the second one runs")
		third := r.enqueueInOrder(c, 1)
		run.returns(nil)
		r.await(first, asynq.TaskStateCompleted)
		r.finish(second)
		r.finish(third)
	})
}

// What an ordered task cannot have is refused, and nothing is enqueued.
func TestInOrder_refusedOptions(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	r, c := orderRig(t, s, setup{})
	later := time.Now().Add(time.Hour)
	for option, opt := range map[string]asynq.Option{
		"ProcessIn": asynq.ProcessIn(time.Hour), "ProcessAt": asynq.ProcessAt(later), "Deadline": asynq.Deadline(later),
		"Group": asynq.Group("g"), "Unique": asynq.Unique(time.Hour),
	} {
		given := map[string]func() (*asynq.TaskInfo, error){
			"at Enqueue": func() (*asynq.TaskInfo, error) {
				return c.Enqueue(asynq.NewTask("work", []byte(`{"id":1}`)), asynq.Queue(r.queue), opt)
			},
			"at NewTask": func() (*asynq.TaskInfo, error) {
				return c.Enqueue(asynq.NewTask("work", []byte(`{"id":1}`), asynq.Queue(r.queue), opt))
			},
		}
		for where, enqueue := range given {
			_, err := enqueue()
			var wrong *automutex.OptionError
			if !errors.As(err, &wrong) || wrong.Option != option && wrong.Option != "ProcessAt" || wrong.Rule != "work" || wrong.Task != "work" {
				t.Errorf("%s %s: %v", option, where, err)
			}
		}
	}
	var wrong *automutex.KeyError
	if _, err := c.Enqueue(asynq.NewTask("work", []byte(`{}`)), asynq.Queue(r.queue)); !errors.As(err, &wrong) {
		t.Errorf("without a key: %v", err)
	}
	head, err := inner.Head(t.Context(), inner.ByOrder(r.others, r.lockOf("work", "1").Key()))
	if err != nil || head.Queued != 0 {
		t.Errorf("%+v, %v", head, err)
	}
}

// An operator's skip wakes the next task, also when the workers that knew of it have all ended.
func TestInOrder_skipAfterARestart(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 2})
		first, second := r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1)
		r.stage.next(t).returns(asynq.SkipRetry)
		r.await(first, asynq.TaskStateArchived)
		r.awaitParked(second)
		key := r.lockOf("work", "1").Key()
		r.stop()
		locker := lock.New(s.Client(t), lock.Options{Prefix: r.cfg.Prefix})
		defer func() { _ = locker.Close() }()
		redistest.Must(t, blocked.Skip(t.Context(), locker, r.inspector, key, r.queue+"/"+first, 0))
		r.await(second, asynq.TaskStatePending)
	})
}

// A task of a plain client on its last attempt holds a worker while it waits for its turn, since asynq would archive it.
func TestInOrder_plainLastAttempt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 2})
		first := r.enqueueInOrder(c, 1)
		run := r.stage.next(t)
		plain := r.enqueue("work", `{"id":1}`, asynq.MaxRetry(0))
		r.awaitEvent(automutex.EventWaiting, plain)
		r.await(plain, asynq.TaskStateActive)
		run.returns(nil)
		r.await(first, asynq.TaskStateCompleted)
		r.finish(plain)
	})
}

// Tasks that were not enqueued through a Client are warned of once for each type.
func TestInOrder_plainClientsOfTwoTypes(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	r, _ := orderRig(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, InOrder: true}, {Task: "play", On: []string{"id"}, InOrder: true}}})
	for _, kind := range []string{"work", "work", "play"} {
		r.finish(r.enqueue(kind, `{"id":1}`))
	}
	if n := strings.Count(r.log.Text(-8), "was not enqueued through automutex.NewClient"); n != 2 {
		t.Errorf("%d warnings, want one for each type:\n%s", n, r.log.Text(-8))
	}
}

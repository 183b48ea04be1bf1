package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// The reserved attempt: a task of a Client never waits in its worker for want of attempts, and its handler begins as
// often as the caller asked for.

// reserveRig is a rig with a rule that is not in order, and a Client.
func reserveRig(t *testing.T, s *redistest.Server, busy automutex.Policy, o setup) (*rig, *automutex.Client) {
	t.Helper()
	o.rules = []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: busy}}
	return orderRig(t, s, o)
}

// A task with MaxRetry(0), or less, parks, and its handler fails once.
func TestReserved_lastAttemptParks(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, most := range []int{0, -1} {
			r, c := reserveRig(t, s, automutex.Park, setup{workers: 1})
			lease := r.hold("work", "1")
			id := r.enqueueInOrder(c, 1, asynq.MaxRetry(most))
			r.awaitParked(id) // so its only worker is free
			r.finish(r.enqueueInOrder(c, 2))
			r.free(lease)
			r.stage.next(t).returns(errors.New("broken"))
			if info := r.await(id, asynq.TaskStateArchived); info.LastErr != "broken" || info.Retried != 0 || info.MaxRetry != 1 {
				t.Fatalf("MaxRetry(%d): %+v", most, info)
			}
			r.stage.none(t)
			r.rerun(id) // by an operator
			r.finish(id)
		}
	})
}

// A task whose time is up in its last attempt runs once more, at most, and one in order not at all; it is archived then, and an operator can run it again.
func TestReserved_timeIsUpInTheLastAttempt(t *testing.T) {
	t.Parallel()
	for _, inOrder := range []bool{false, true} {
		t.Run(fmt.Sprint("in order ", inOrder), func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				rule := automutex.Rule{Task: "work", On: []string{"id"}, InOrder: inOrder}
				if !inOrder {
					rule.Busy = automutex.Retry
				}
				r, c := orderRig(t, s, setup{rules: []automutex.Rule{rule}})
				id := r.enqueueInOrder(c, 1, asynq.MaxRetry(0))
				run := r.stage.next(t)
				run.cut() // asynq files a retry at once
				run.returns(context.Canceled)
				if !inOrder {
					r.stage.next(t).returns(errors.New("once more"))
				}
				info := r.await(id, asynq.TaskStateArchived)
				if want := map[bool]string{true: "its last run did not return", false: "once more"}[inOrder]; !strings.Contains(info.LastErr, want) {
					t.Fatalf("%+v", info)
				}
				r.stage.none(t)
				r.rerun(id)
				r.finishSpent(id, 1)
			})
		})
	}
}

// An error that IsFailure does not count spends no attempt, but for the caller's last one, as in asynq: a head that fails softly
// does not keep its key for ever. A RetryAfter spends none.
func TestReserved_isFailure(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		notYet := errors.New("not yet")
		for _, rule := range []automutex.Rule{{Busy: automutex.Retry}, {InOrder: true, OnArchive: automutex.Continue}} {
			rule.Task, rule.On = "work", []string{"id"}
			r, c := orderRig(t, s, setup{rules: []automutex.Rule{rule}, served: func(c *asynq.Config) {
				atOnce(c)
				c.IsFailure = func(err error) bool { return !errors.Is(err, notYet) }
			}})
			id := r.enqueueInOrder(c, 1, asynq.MaxRetry(1))
			for _, err := range []error{notYet, notYet, errors.New("broken"), automutex.RetryAfter(0, notYet), automutex.RetryAfter(0, nil), notYet} {
				r.stage.nextIs(t, id).returns(err)
			}
			if info := r.await(id, asynq.TaskStateArchived); info.LastErr != "not yet" || info.Retried != 1 || info.MaxRetry != 2 {
				t.Errorf("%+v", info)
			}
			r.finish(r.enqueueInOrder(c, 1))
		}
	})
}

// What asynq.NewTask was given is kept, and what no rule matches is left alone.
func TestReserved_options(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	r, c := reserveRig(t, s, automutex.Retry, setup{})
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	task := func(kind string, opts ...asynq.Option) *asynq.Task {
		return asynq.NewTaskWithHeaders(kind, []byte(`{"id":1}`), map[string]string{"mine": "kept"}, append(opts, asynq.Queue(r.queue))...)
	}
	later, err := c.Enqueue(task("work", asynq.TaskID("later"), asynq.MaxRetry(7), asynq.Timeout(time.Minute), asynq.Deadline(at.Add(time.Hour)), asynq.Retention(time.Hour), asynq.ProcessAt(at)))
	redistest.Must(t, err)
	info, err := r.inspector.GetTaskInfo(r.queue, "later")
	if err != nil || later.ID != "later" || info.MaxRetry != 8 || info.Timeout != time.Minute || !info.Deadline.Equal(at.Add(time.Hour)) ||
		info.Retention != time.Hour || info.State != asynq.TaskStateScheduled || !info.NextProcessAt.Equal(at) || info.Headers["mine"] != "kept" {
		t.Errorf("%+v, %v", info, err)
	}
	if info, err := c.Enqueue(task("work", asynq.ProcessIn(time.Hour))); err != nil || info.MaxRetry != 26 || info.Timeout != 30*time.Minute {
		t.Errorf("%+v, %v", info, err)
	}
	if info, err := c.Enqueue(task("work", asynq.Group("g"))); err != nil || info.State != asynq.TaskStateAggregating {
		t.Errorf("%+v, %v", info, err)
	}
	for _, where := range []string{"NewTask", "Enqueue"} {
		opts := map[string][]asynq.Option{"NewTask": {asynq.Unique(time.Hour)}}
		call := map[string][]asynq.Option{"Enqueue": {asynq.Unique(time.Hour)}}
		one := task("work", append(opts[where], asynq.ProcessIn(time.Hour))...)
		one = asynq.NewTask(one.Type(), []byte(where), append(opts[where], asynq.Queue(r.queue), asynq.ProcessIn(time.Hour))...)
		if _, err := c.Enqueue(one, call[where]...); err != nil {
			t.Errorf("%s: %v", where, err)
		}
		if _, err := c.Enqueue(one, call[where]...); !errors.Is(err, asynq.ErrDuplicateTask) {
			t.Errorf("%s: %v, want a duplicate", where, err)
		}
	}
	if info, err := c.Enqueue(task("no rule", asynq.ProcessIn(time.Hour))); err != nil || info.MaxRetry != 25 || info.Headers["automutex"] != "" {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := c.Enqueue(nil); err == nil {
		t.Error("a nil task is enqueued")
	}
}

// A panic of the last attempt that the caller asked for archives the task, as a failure does. The handler knows by LastAttempt
// that it is the last one, of a task of a Client and of any other.
func TestReserved_panicOfTheLastAttempt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		last := make(chan bool, 4)
		r, c := orderRig(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}}}, served: comingBack, handler: func(ctx context.Context, _ *asynq.Task) error {
			last <- automutex.LastAttempt(ctx)
			panic("no such account")
		}})
		id := r.enqueueInOrder(c, 1, asynq.MaxRetry(1))
		if r.awaitRetried(id, 1); <-last {
			t.Error("the first of two attempts is the last one")
		}
		r.rerun(id)
		info := r.await(id, asynq.TaskStateArchived)
		if !<-last || info.Retried != 1 || !strings.Contains(info.LastErr, "no such account") {
			t.Errorf("%+v", info)
		}
		r.await(r.enqueue("work", one, asynq.MaxRetry(0)), asynq.TaskStateArchived)
		if !<-last {
			t.Error("the only attempt of a plain task is not the last one")
		}
	})
}

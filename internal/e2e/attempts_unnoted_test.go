package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// losesEnds returns a hook that loses the commands by which asynq stores how a delivery ended, and a channel that gets each loss.
func losesEnds() (hook *redistest.FailHook, lost chan struct{}) {
	hook, lost = &redistest.FailHook{}, make(chan struct{}, 100)
	hook.Before(func(cmd redis.Cmder) error {
		for _, arg := range cmd.Args() {
			if key, ok := arg.(string); ok && strings.HasPrefix(cmd.Name(), "eval") && strings.Contains(key, "}:processed:") {
				lost <- struct{}{}
				return errors.New("the network is gone")
			}
		}
		return nil
	})
	return hook, lost
}

// recoverBy stops the server, as if it had died with the task, and starts another one, whose recoverer finds the task.
func (r *rig) recoverBy(s *redistest.Server, id string) {
	r.t.Helper()
	r.shutdown()
	r.rdb.ZAdd(r.t.Context(), "asynq:{"+r.queue+"}:lease", redis.Z{Score: float64(time.Now().Add(-time.Hour).Unix()), Member: id})
	srv := asynq.NewServerFromRedisClient(s.Client(r.t), r.served)
	redistest.Must(r.t, srv.Start(r.guard.Middleware(r.stage)))
	r.t.Cleanup(func() { r.stage.end(); srv.Shutdown() })
}

// A last attempt has ended, and asynq cannot store that: the handler does not run once more when the recoverer delivers the
// task again, soon, whatever the retry delay. An operator's run runs.
func TestReserved_endIsNotStored(t *testing.T) {
	t.Parallel()
	ends := map[string]error{"failed": errors.New("broken"), "done": nil, "SkipRetry": asynq.SkipRetry, "RevokeTask": asynq.RevokeTask}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				hook, lost := losesEnds()
				r, c := reserveRig(t, s, automutex.Park, setup{hook: hook, served: func(*asynq.Config) {}})
				id := r.enqueueInOrder(c, 1, asynq.MaxRetry(0))
				r.stage.next(t).returns(end)
				<-lost
				mark := fmt.Sprintf("%s:begun:%s/%s:claim", r.lockOf("work", "1").Key(), r.queue, id)
				if left := r.rdb.PTTL(t.Context(), mark).Val(); left <= 4*time.Minute || left > 6*time.Minute {
					t.Errorf("the mark lasts %s, want five minutes", left)
				}
				r.recoverBy(s, id)
				if again := r.awaitRetried(id, 1); time.Until(again.NextProcessAt) > 31*time.Second {
					t.Errorf("it is delivered again in %s", time.Until(again.NextProcessAt))
				}
				r.rerun(id)
				if info := r.await(id, asynq.TaskStateArchived); !strings.Contains(info.LastErr, "could not store that") {
					t.Errorf("the last error is %q", info.LastErr)
				}
				r.stage.none(t)
				r.rerun(id) // by an operator
				r.finishAfter(id, 1)
			})
		})
	}
}

// The mark of a last attempt that has ended is not that of the next run of the task, by an operator: if a policy spends that run's
// attempt for a busy key, the next delivery runs. Its own mark lasts while it runs.
func TestReserved_runAgainAfterTheEnd(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := reserveRig(t, s, automutex.Fail, setup{served: func(*asynq.Config) {}})
		id := r.enqueueInOrder(c, 1, asynq.MaxRetry(0))
		r.stage.next(t).returns(errors.New("broken"))
		r.await(id, asynq.TaskStateArchived)
		r.rerun(id)
		run := r.stage.next(t)
		mark := fmt.Sprintf("%s:begun:%s/%s:claim", r.lockOf("work", "1").Key(), r.queue, id)
		if left := r.rdb.PTTL(t.Context(), mark).Val(); left < 24*time.Hour {
			t.Errorf("the mark lasts %s while the handler runs", left)
		}
		run.returns(errors.New("broken again"))
		r.await(id, asynq.TaskStateArchived)
		lease := r.take("work", "1")
		r.rerun(id)
		r.awaitRetried(id, 1)
		r.free(lease)
		r.rerun(id)
		r.finishAfter(id, 1)
	})
}

// A task that needs no lock has no attempt reserved: nothing would tell that its last one has begun. Cut off, it is archived at once.
func TestReserved_notForATaskWithoutALock(t *testing.T) {
	t.Parallel()
	const lacks, has = `{"other":1}`, `{"id":1}`
	keyed := func(answer error) automutex.KeyFunc {
		return func(_ context.Context, task *asynq.Task) ([]string, error) {
			if string(task.Payload()) == has {
				return []string{"1"}, nil
			}
			if answer == nil {
				panic("no id")
			}
			return nil, answer
		}
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, c := range map[string]struct {
			rules    []automutex.Rule
			reserved bool // for a task that lacks the field
		}{
			"Optional":             {rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Optional: true}}},
			"Optional, in order":   {rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Optional: true, InOrder: true}}},
			"NoLock":               {rules: []automutex.Rule{{Task: "work", Key: keyed(automutex.NoLock)}}},
			"Allow":                {rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.Allow}}},
			"one of two":           {rules: []automutex.Rule{{Task: "work", Scope: "a", On: []string{"id"}, Optional: true}, {Task: "work", Scope: "b"}}, reserved: true},
			"one of two with keys": {rules: []automutex.Rule{{Task: "work", Scope: "a", Key: keyed(automutex.NoLock)}, {Task: "work", Scope: "b", On: []string{"other"}, Optional: true}}, reserved: true},
			"archived":             {rules: []automutex.Rule{{Task: "work", Key: keyed(&automutex.KeyError{Task: "work"})}}, reserved: true},
			"later under Allow":    {rules: []automutex.Rule{{Task: "work", Key: keyed(errors.New("not now")), Busy: automutex.Allow}}, reserved: true},
			"a panic":              {rules: []automutex.Rule{{Task: "work", Key: keyed(nil)}}, reserved: true},
		} {
			r, client := orderRig(t, s, setup{rules: c.rules})
			enqueue := func(payload string, options ...asynq.Option) *asynq.TaskInfo {
				t.Helper()
				info, err := client.Enqueue(asynq.NewTask("work", []byte(payload)), append(options, asynq.Queue(r.queue), asynq.MaxRetry(0))...)
				redistest.Must(t, err)
				return info
			}
			for payload, reserved := range map[string]bool{lacks: c.reserved, has: true} {
				if later, err := client.Enqueue(asynq.NewTask("work", []byte(payload)), asynq.Queue(r.queue+"-later"), asynq.MaxRetry(0)); err != nil || (later.MaxRetry == 1) != reserved {
					t.Errorf("%s: %s: %+v, %v", name, payload, later, err)
				}
			}
			if !c.reserved {
				id := enqueue(lacks).ID
				run := r.stage.next(t)
				run.cut()
				run.returns(run.ctx.Err())
				if info := r.await(id, asynq.TaskStateArchived); info.Retried != 0 {
					t.Errorf("%s: %+v", name, info)
				}
				r.stage.none(t)
			}
			r.stop()
		}
	})
}

// A cut of the last attempt comes back soon, to be refused; of an earlier one, or if IsFailure does not count it, after asynq's delay.
func TestReserved_cutComesBackToBeRefused(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for i := range 4 {
			counts, inOrder := i < 2, i%2 == 0
			rule := automutex.Rule{Task: "work", On: []string{"id"}, InOrder: inOrder}
			r, c := orderRig(t, s, setup{rules: []automutex.Rule{rule}, served: func(c *asynq.Config) {
				c.IsFailure = func(error) bool { return counts }
			}})
			id := r.enqueueInOrder(c, 1, asynq.MaxRetry(1))
			for last := range 2 {
				run := r.stage.next(t)
				run.cut()
				run.returns(run.ctx.Err())
				info := r.await(id, asynq.TaskStateRetry)
				if soon := time.Until(info.NextProcessAt) < time.Minute; soon != (counts && last == 1) {
					t.Errorf("in order: %t, IsFailure counts it: %t; attempt %d comes back in %s", inOrder, counts, last+1, time.Until(info.NextProcessAt))
				}
				if want := map[bool]int{true: last + 1}[counts]; info.Retried != want {
					t.Errorf("in order: %t, IsFailure counts it: %t; %d attempts are spent, want %d", inOrder, counts, info.Retried, want)
				}
				redistest.Eventually(t, patience, func() bool { return !r.locked("work", "1") }, "the handler has returned")
				r.rerun(id)
			}
			if counts {
				r.await(id, asynq.TaskStateArchived)
			}
			r.stop()
		}
	})
}

// The Guard closes in the moment in which a task is refused, since its last attempt did not return: the task is archived nevertheless.
// If asynq requeued it, the next server would take it for an operator's run.
func TestReserved_refusedWhileTheGuardCloses(t *testing.T) {
	t.Parallel()
	for _, inOrder := range []bool{false, true} {
		t.Run(fmt.Sprint("in order ", inOrder), func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				hook := &redistest.FailHook{}
				rule := automutex.Rule{Task: "work", On: []string{"id"}, InOrder: inOrder}
				r, c := orderRig(t, s, setup{rules: []automutex.Rule{rule}, hook: hook, served: quickly(time.Second)})
				id := r.enqueueInOrder(c, 1, asynq.MaxRetry(0))
				run := r.stage.next(t)
				run.cut()
				run.returns(run.ctx.Err())
				r.awaitRetried(id, 1)
				redistest.Eventually(t, patience, func() bool { return !r.locked("work", "1") }, "the handler has returned")
				refuses := map[bool]*exchange.Script{false: wire.ClaimKeepScript, true: wire.OrderAskScript}[inOrder]
				closed := make(chan (<-chan error), 1)
				var once sync.Once
				hook.After(func(cmd redis.Cmder) error {
					if runs(cmd, refuses, "") {
						once.Do(func() { closed <- r.closing(t.Context()) })
					}
					return nil
				})
				r.rerun(id)
				ends := <-closed
				r.shutdown()
				if err := awaitClosed(t, ends); err != nil {
					t.Error(err)
				}
				if info := r.await(id, asynq.TaskStateArchived); !strings.Contains(info.LastErr, "its last run did not return") {
					t.Errorf("the last error is %q", info.LastErr)
				}
				r.stage.none(t)
			})
		})
	}
}

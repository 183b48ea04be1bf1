package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/redisx"
)

// Tasks in order, with a fault at a single command.

// sends tells whether a command runs the script with that name, with that argument if it is not empty.
func sends(command []string, name, argument string) bool {
	script := engine.Scripts[slices.IndexFunc(engine.Scripts, func(s *redisx.Script) bool { return s.Name == name })]
	return len(command) > 3 && (command[1] == script.SHA || command[1] == script.Source) && (argument == "" || slices.Contains(command[3:], argument))
}

// A skip whose reply is lost is sent again by go-redis: the operator hears that the task is skipped, the next one is
// woken, and there is one event.
func TestInOrder_skipLosesItsReply(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 2})
		first, second, third := r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1)
		r.stage.next(t).returns(asynq.SkipRetry)
		r.await(first, asynq.TaskStateArchived)
		r.awaitParked(second)
		r.awaitParked(third)
		proxy := redistest.NewProxy(t, s.Addr())
		rdb := proxy.Client(t)
		redistest.Must(t, rdb.Ping(t.Context()).Err())
		seen := &events{}
		operator, err := automutex.New(rdb, automutex.Config{Rules: r.cfg.Rules, Prefix: r.cfg.Prefix, Observe: seen.observe})
		redistest.Must(t, err)
		defer func() { redistest.Must(t, operator.Close(t.Context())) }()
		proxy.DropReplyTo(func(command []string) bool { return sends(command, "order_act", "skip") }, 1)
		key := r.lockOf("work", "1").Key()
		if err := operator.SkipHead(t.Context(), key, r.queue+"/"+first); err != nil {
			t.Fatalf("it was skipped: %v", err)
		}
		if n := proxy.Commands(); n["EVALSHA"] < 2 {
			t.Errorf("%v: the reply was not lost", n)
		}
		if all := seen.list(automutex.EventHeadSkipped); len(all) != 1 || all[0].TaskID != first {
			t.Errorf("%+v, want one event", all)
		}
		r.finish(second)
		r.finish(third)
		if err := operator.SkipHead(t.Context(), key, r.queue+"/"+first); err == nil {
			t.Errorf("a later skip of the same ID: %v", err)
		}
	})
}

// runs is sends for a command of go-redis.
func runs(cmd redis.Cmder, name, argument string) bool {
	words := make([]string, len(cmd.Args()))
	for i, arg := range cmd.Args() {
		words[i] = fmt.Sprint(arg)
	}
	return sends(words, name, argument)
}

// A task that comes for another key than it was enqueued for gives up its old place. If Redis refuses that once, or the
// reply is lost, the old key goes on nevertheless, the new key stays in order, and there is one warning.
func TestInOrder_otherKeyUnderFaults(t *testing.T) {
	t.Parallel()
	for _, fault := range redistest.CommandFaults {
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				hook := redistest.NewNthFault(1, fault, func(cmd redis.Cmder) bool { return runs(cmd, "order_act", "withdraw") })
				r, c := orderRig(t, s, setup{workers: 4, hook: hook})
				older, err := automutex.NewClient(r.rdb, r.client, automutex.Config{Rules: []automutex.Rule{{Task: "work", On: []string{"was"}, InOrder: true}}, Prefix: r.cfg.Prefix})
				redistest.Must(t, err)
				first := r.enqueueInOrder(c, 1)
				running := r.stage.nextIs(t, first)
				moved, err := older.Enqueue(asynq.NewTask("work", []byte(`{"id":1,"was":9}`)), asynq.Queue(r.queue), asynq.Retention(time.Hour))
				redistest.Must(t, err)
				behind := r.enqueueInOrder(c, 9)
				redistest.Eventually(t, patience, func() bool {
					return slices.ContainsFunc(r.seen.list(automutex.EventWaiting), func(e automutex.Event) bool { return e.TaskID == moved.ID })
				}, "the task has come to its new key")
				second := r.enqueueInOrder(c, 1)
				if hook.Failed() == "" {
					t.Error("no withdraw was sent")
				}
				running.returns(nil)
				// Where the withdraw was refused, the old key finds out when it looks for its head.
				var order []string
				for range 3 {
					run := r.stage.next(t)
					if run.id != behind {
						order = append(order, run.id)
					}
					run.returns(nil)
					r.await(run.id, asynq.TaskStateCompleted)
				}
				if want := []string{moved.ID, second}; !slices.Equal(order, want) {
					t.Errorf("the new key ran %q, want %q", order, want)
				}
				r.await(behind, asynq.TaskStateCompleted)
				if n := strings.Count(r.log.String(), "is not the one that it was enqueued for"); n != 1 {
					t.Errorf("%d warnings:\n%s", n, r.log.String())
				}
			})
		})
	}
}

// A task that is done is delivered again while asynq cannot say whether it noted that: it does not run again, and asynq
// hears that it is done.
func TestInOrder_redeliveredWhileAsynqIsAway(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 2, guarded: func(c *automutex.Config) {
			rdb := s.Client(t)
			rdb.AddHook(awayHook())
			c.Inspector = asynq.NewInspectorFromRedisClient(rdb)
		}})
		id := r.enqueueInOrder(c, 1, asynq.Retention(0))
		run := r.stage.next(t)
		info, err := r.inspector.GetTaskInfo(r.queue, id)
		redistest.Must(t, err)
		run.returns(nil)
		r.awaitDropped(id)
		// As the recoverer delivers it when its end was not noted.
		again := asynq.NewTaskWithHeaders("work", info.Payload, info.Headers, asynq.Queue(r.queue), asynq.TaskID(id), asynq.MaxRetry(info.MaxRetry), asynq.Retention(time.Hour))
		_, err = r.client.Enqueue(again)
		redistest.Must(t, err)
		if info := r.await(id, asynq.TaskStateCompleted); info.LastErr != "" || info.Retried != 0 {
			t.Errorf("%+v", info)
		}
		r.stage.none(t)
		r.finish(r.enqueueInOrder(c, 1))
	})
}

// awayHook fails each command, of an Inspector whose Redis is away.
func awayHook() *redistest.FailHook {
	h := &redistest.FailHook{}
	h.Before(func(cmd redis.Cmder) error {
		if redistest.SetsUp(cmd) {
			return nil
		}
		return errors.New("dial tcp: connection refused")
	})
	return h
}

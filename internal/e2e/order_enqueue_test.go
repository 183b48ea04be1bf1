package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
)

// A producer of tasks in order, with a fault at each command of one Enqueue.

// enqueues tells whether a command is asynq's script for a new task.
func enqueues(cmd redis.Cmder) bool {
	args := cmd.Args()
	return len(args) > 4 && strings.HasPrefix(cmd.Name(), "eval") && strings.HasSuffix(fmt.Sprint(args[4]), ":pending")
}

// enqueueTable is one kind of Enqueue: a task of each key runs until release is closed, then comes the Enqueue with a
// fault, and a task behind it.
type enqueueTable struct {
	*rig
	ghost   bool // each key is full, of that task and of a stamp whose producer died
	c       *automutex.Client
	release chan struct{}
	log     *orderLog
}

func newEnqueueTable(t *testing.T, s *redistest.Server, ghost bool) *enqueueTable {
	most := 0
	if ghost {
		most = 2
	}
	e := &enqueueTable{ghost: ghost, release: make(chan struct{}), log: &orderLog{}}
	e.rig, e.c = orderRig(t, s, setup{
		workers: 60, rules: []automutex.Rule{{Task: "work", On: []string{"id"}, InOrder: true, MaxQueued: most}},
		handler: func(ctx context.Context, _ *asynq.Task) error {
			if id, _ := e.log.begins(ctx); strings.HasPrefix(id, "first-") {
				<-e.release
			}
			return nil
		},
	})
	return e
}

// starts are the tasks of the key that began, in order.
func (e *enqueueTable) starts(key int) (ids []string) {
	e.log.mu.Lock()
	defer e.log.mu.Unlock()
	for _, id := range e.log.starts {
		if name, of, _ := strings.Cut(id, "-"); of == strconv.Itoa(key) {
			ids = append(ids, name)
		}
	}
	return ids
}

// enqueueCase is one Enqueue with a fault, and how it ended.
type enqueueCase struct {
	what    string
	failed  string // the command
	err     error
	unknown bool
}

// judge holds the promises of Client.EnqueueContext.
func (e *enqueueTable) judge(key int, c enqueueCase) {
	e.t.Helper()
	got := e.starts(key)
	with, without := []string{"first", "x", "next"}, []string{"first", "next"}
	late := []string{"first", "next", "x"}
	switch {
	case c.err == nil && slices.Equal(got, with):
	case c.err != nil && slices.Equal(got, without):
	case c.unknown && (slices.Equal(got, with) || slices.Equal(got, late)):
	default:
		e.t.Errorf("%s (%s): Enqueue gave %v (unknown: %t), ran %q", c.what, c.failed, c.err, c.unknown, got)
	}
}

// Whatever command of an Enqueue fails, and however: without an error the task runs in its place, with Unknown at most
// once, with any other error never; the task behind it runs.
func TestInOrder_eachCommandOfAnEnqueue(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]struct {
		id    string // of the Enqueue's task, before the key; "first": it is taken
		twice bool
		ghost bool
		want  error
	}{
		"plain":            {id: "x"},
		"ID taken":         {id: "first", want: asynq.ErrTaskIDConflict},
		"own ID resent":    {id: "x", twice: true},
		"full of a ghost":  {id: "x", ghost: true},
		"ghost, and twice": {id: "x", ghost: true, twice: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				e := newEnqueueTable(t, s, kind.ghost)
				var cases []enqueueCase
				for _, fault := range redistest.CommandFaults {
					for n := 1; ; n++ {
						c := e.enqueueWithFault(s, len(cases), kind.id, kind.twice, redistest.NewNthFault(n, fault, func(cmd redis.Cmder) bool { return !redistest.SetsUp(cmd) }))
						c.what = fmt.Sprintf("%s, %s, command %d", name, fault.Name, n)
						cases = append(cases, c)
						if c.failed == "" {
							if !errors.Is(c.err, kind.want) || n < 4 {
								t.Errorf("%d commands, without a fault: %v", n-1, c.err)
							}
							break
						}
						if n > 20 {
							t.Fatal("there is no end of commands")
						}
					}
				}
				close(e.release)
				for key, c := range cases {
					if kind.ghost { // it is refused until a place is free
						redistest.Eventually(t, patience, func() bool {
							_, err := e.enqueueNext(key)
							if err != nil && !errors.Is(err, automutex.ErrFull) {
								t.Fatal(err)
							}
							return err == nil
						}, "key %d is full no more", key)
					}
					e.await(fmt.Sprintf("next-%d", key), asynq.TaskStateCompleted)
					e.judge(key, c)
				}
			})
		})
	}
}

// enqueueWithFault enqueues a task that runs, then id of the key through the hook, and then the task behind it.
func (e *enqueueTable) enqueueWithFault(s *redistest.Server, key int, id string, twice bool, hook *redistest.NthFault) (c enqueueCase) {
	e.t.Helper()
	e.enqueueInOrder(e.c, key, asynq.TaskID(fmt.Sprintf("first-%d", key)))
	if e.ghost {
		m := inner.ByOrder(e.others, e.lockOf("work", strconv.Itoa(key)).Key())
		_, _, _, err := inner.Stamp(e.t.Context(), m, tasknote.Of(e.queue, "ghost"), stamp.NewNonce(), 0, 0)
		redistest.Must(e.t, err)
	}
	rdb := s.Client(e.t)
	rdb.AddHook(hook)
	if twice {
		rdb.AddHook(redistest.Resend(enqueues))
	}
	producer, err := automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb), automutex.Config{Rules: e.cfg.Rules, Prefix: e.cfg.Prefix, Private: true})
	redistest.Must(e.t, err)
	_, c.err = producer.Enqueue(asynq.NewTask("work", fmt.Appendf(nil, `{"id":%d}`, key)), asynq.Queue(e.queue), asynq.TaskID(fmt.Sprintf("%s-%d", id, key)), asynq.Retention(time.Hour))
	var enqueue *automutex.EnqueueError
	c.failed, c.unknown = hook.Failed(), errors.As(c.err, &enqueue) && enqueue.Unknown
	if !e.ghost {
		_, err := e.enqueueNext(key)
		redistest.Must(e.t, err)
	}
	return c
}

func (e *enqueueTable) enqueueNext(key int) (*asynq.TaskInfo, error) {
	return e.c.Enqueue(asynq.NewTask("work", fmt.Appendf(nil, `{"id":%d}`, key)), asynq.Queue(e.queue), asynq.TaskID(fmt.Sprintf("next-%d", key)), asynq.Retention(time.Hour))
}

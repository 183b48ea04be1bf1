package unique

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// The enqueue of a producer is delivered late. Meanwhile its claim is waited for: two tasks for the key are never accepted.
func TestSupersede_waitsForALateEnqueue(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Real(t)
	for _, until := range []Until{UntilStart, For(time.Hour)} {
		for _, duplicate := range []Duplicate{Replace, Postpone(time.Hour)} {
			rule := Rule{Task: "reindex", On: []string{"id"}, Until: until, Duplicate: duplicate}
			r := start(t, s, rule)
			proxy := redistest.NewProxy(t, s.Addr())
			slow := r.producer(proxy.Client(t, func(o *redis.UniversalOptions) { o.ReadTimeout = longest }), rule)
			r.must(slow.Enqueue(task("reindex", "warm", ""))) // its queue is known, its connections stand
			enqueue := proxy.Hold(func(command []string) bool {
				all := strings.Join(command, " ")
				return strings.Contains(all, "asynq:{"+r.queue+"}:t:") && (strings.Contains(all, ":pending") || strings.Contains(all, ":scheduled"))
			}, 1)
			late := make(chan answered, 1)
			go func() { // ends with the call, once its enqueue is released
				info, err := slow.Enqueue(task("reindex", "7", "late"))
				late <- answered{info, err}
			}()
			redistest.Eventually(t, longest, func() bool { return enqueue.Count() == 1 }, "the enqueue being under way")

			r.patience, r.grace = 20*time.Millisecond, time.Hour
			info, err := r.Enqueue(task("reindex", "7", "prompt"))
			if !errors.Is(err, ErrEnqueueUnderWay) || errors.Is(err, asynq.ErrDuplicateTask) {
				t.Errorf("%s, %s: beside an enqueue that is under way the answer is %v, %v", until, duplicate, info, err)
			}
			enqueue.Release()
			if got := <-late; got.err != nil {
				t.Errorf("%s, %s: the late enqueue: %v", until, duplicate, got.err)
			}
			r.patience = longest
			r.must(r.Enqueue(task("reindex", "7", "next")))
			if there := texts(r.tasks(r.queue, "reindex")); !slices.Equal(there, []string{"", "next"}) {
				t.Errorf("%s, %s: there are %q", until, duplicate, there)
			}
		}
	}
}

// The ID of the new task is taken meanwhile by the late enqueue of another producer: that
// task is superseded too, and not taken for the call's own.
func TestSupersede_findsTheTaskOfALateEnqueueAtItsID(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilDone, UntilStart} {
			rule := Rule{Task: "push", On: []string{"id"}, Until: until, Duplicate: Replace}
			r := start(t, s, rule)
			r.must(r.Enqueue(task("push", "7", "old")))
			hook, done := &redistest.FailHook{}, false
			hook.Before(func(cmd redis.Cmder) error {
				if !isEnqueue(cmd, r.queue) || done { // an enqueue comes in the goroutine of the call, a renewal does not
					return nil
				}
				done = true
				_, id, _ := strings.Cut(cmd.Args()[3].(string), ":t:")
				_, err := r.plain.Enqueue(task("push", "7", "late"), asynq.TaskID(id), asynq.Queue(r.queue))
				return err
			})
			rdb := s.Client(t)
			rdb.AddHook(hook)
			info := r.must(r.producer(rdb, rule).Enqueue(task("push", "7", "new")))
			found := r.tasks(r.queue, "push")
			if !done || !slices.Equal(texts(found), []string{"new"}) || found[0].ID != info.ID || !strings.Contains(string(info.Payload), "new") {
				t.Errorf("%s: there are %q, and the call gave %s", until, texts(found), info.Payload)
			}
		}
	})
}

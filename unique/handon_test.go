package unique

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// isHandOn tells whether a command hands a claim on to another task: it names the claim,
// the holder, the next holder, and a length.
func isHandOn(cmd redis.Cmder) bool {
	args := cmd.Args()
	if !strings.HasPrefix(cmd.Name(), "eval") || len(args) != 7 {
		return false
	}
	key, _ := args[3].(string)
	return strings.HasSuffix(key, ":claim") && args[5] != "" && args[4] != args[5]
}

// A new task whose claim could not be handed on does not run beside the claim of the old
// one: the call fails, the task waits, and the next call repairs the claim.
func TestSupersede_handingTheClaimOnFails(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, duplicate := range []Duplicate{Replace, Postpone(time.Second)} {
			rule := Rule{Task: "reindex", On: []string{"id"}, Until: UntilStart, Duplicate: duplicate}
			r := start(t, s, rule)
			old := r.must(r.Enqueue(task("reindex", "7", "one")))
			if duplicate != Replace {
				if err := r.inspector.RunTask(r.queue, old.ID); err != nil {
					t.Fatal(err)
				}
				r.age("reindex", "7", time.Minute) // no more to be put off: it would be run at once
			}
			hook := &redistest.FailHook{}
			hook.Before(func(cmd redis.Cmder) error {
				if isHandOn(cmd) {
					return redistest.ReplyError("OOM command not allowed")
				}
				return nil
			})
			rdb := s.Client(t)
			rdb.AddHook(hook)
			info, err := r.producer(rdb, rule).Enqueue(task("reindex", "7", "two"))
			if info != nil || err == nil || errors.Is(err, asynq.ErrDuplicateTask) || !strings.Contains(err.Error(), "OOM") {
				t.Errorf("%s: the call whose claim is not handed on gives %v, %v", duplicate, info, err)
			}
			if now := r.tasks(r.queue, "reindex", live...); !slices.Equal(texts(now), []string{"two"}) || now[0].State != asynq.TaskStateScheduled {
				t.Fatalf("%s: then there are %q, %v", duplicate, texts(now), now)
			}

			third := r.must(r.Enqueue(task("reindex", "7", "three")))
			begun, over := make(chan struct{}, 10), make(chan struct{})
			r.serve(func(context.Context, *asynq.Task) error {
				begun <- struct{}{}
				<-over
				return nil
			}, r.guard(automutex.Rule{Task: "reindex", On: []string{"id"}}))
			t.Cleanup(func() { close(over) })
			select {
			case <-begun:
			case <-time.After(longest):
				t.Fatalf("%s: nothing began", duplicate)
			}
			if next := r.must(r.Enqueue(task("reindex", "7", "four"))); next.ID == third.ID {
				t.Errorf("%s: the next one is %s", duplicate, next.ID)
			}
		}
	})
}

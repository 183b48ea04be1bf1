package unique

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// An enqueue that fails leaves no claim: the next one need not wait for a grace.
func TestClaim_failedEnqueueLeavesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilDone, UntilStart, For(time.Hour)} {
			for _, duplicate := range []Duplicate{Reject, Replace, Postpone(time.Second)} {
				rule := Rule{Task: "reindex", On: []string{"id"}, Until: until, Duplicate: duplicate}
				r := start(t, s, rule)
				var hook redistest.FailHook
				rdb := s.Client(t)
				rdb.AddHook(&hook)
				hook.Before(func(cmd redis.Cmder) error {
					if isEnqueue(cmd, r.queue) {
						return redistest.ReplyError("OOM command not allowed")
					}
					return nil
				})
				if info, err := r.producer(rdb, rule).Enqueue(task("reindex", "7", "failed")); err == nil || !strings.Contains(err.Error(), "OOM") {
					t.Fatalf("%s, %s: %v, %v", until, duplicate, info, err)
				}
				r.must(r.Enqueue(task("reindex", "7", "next")))
				if got := texts(r.tasks(r.queue, "reindex")); !slices.Equal(got, []string{"next"}) {
					t.Errorf("%s, %s: there are %q", until, duplicate, got)
				}
			}
		}
	})
}

// isEnqueue tells asynq's scripts that make a task: the key of the task comes
// first, its message among the arguments.
func isEnqueue(cmd redis.Cmder, queue string) bool {
	args := cmd.Args()
	if !strings.HasPrefix(cmd.Name(), "eval") || len(args) < 6 {
		return false
	}
	key, _ := args[3].(string)
	list, _ := args[4].(string)
	return strings.HasPrefix(key, "asynq:{"+queue+"}:t:") && (strings.HasSuffix(list, ":pending") || strings.HasSuffix(list, ":scheduled"))
}

// The answer to the enqueue is lost, and go-redis sends it again: the task is
// there once, and the call succeeds or names it.
func TestEnqueue_lostReply(t *testing.T) {
	t.Parallel()
	for _, kind := range []func(testing.TB) *redistest.Server{redistest.Mini, redistest.Real} {
		s := kind(t)
		t.Run(s.Kind(), func(t *testing.T) {
			t.Parallel()
			for _, until := range []Until{UntilDone, UntilStart, For(time.Hour)} {
				for _, duplicate := range []Duplicate{Reject, Join, Replace, Postpone(time.Minute)} {
					rule := Rule{Task: "reindex", On: []string{"id"}, Until: until, Duplicate: duplicate}
					r := start(t, s, rule)
					warm(t, r, "7")
					proxy := redistest.NewProxy(t, s.Addr())
					c := r.producer(proxy.Client(t, func(o *redis.UniversalOptions) { o.ReadTimeout = 2 * time.Second }), rule)
					c.changeTTL = longest // a lost reply is to be all that goes wrong
					proxy.DropReplyTo(func(command []string) bool {
						return command[0] == "EVALSHA" && len(command) > 4 && strings.HasPrefix(command[3], "asynq:{"+r.queue+"}:t:") &&
							(strings.HasSuffix(command[4], ":pending") || strings.HasSuffix(command[4], ":scheduled"))
					}, 1)
					info, err := c.Enqueue(task("reindex", "7", "once"))
					found := r.tasks(r.queue, "reindex")
					if len(found) != 1 {
						t.Errorf("%s, %s: there are %q", until, duplicate, texts(found))
						continue
					}
					var dup *DuplicateError
					if ok := err == nil && info.ID == found[0].ID; !ok && (until != UntilDone || !errors.As(err, &dup) || dup.ID != found[0].ID) {
						t.Errorf("%s, %s: answered %+v, %v", until, duplicate, info, err)
					}
				}
			}
		})
	}
}

// The task is there, and the client tells an error: the call finds that out.
func TestClaim_enqueuedAfterAll(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, until := range []Until{UntilStart, For(time.Hour)} {
			rule := Rule{Task: "reindex", On: []string{"id"}, Until: until}
			r := start(t, s, rule)
			warm(t, r, "7") // or the error is told of a script that is not known, and nothing is there
			var hook redistest.FailHook
			rdb := s.Client(t)
			rdb.AddHook(&hook)
			var failed atomic.Bool
			hook.After(func(cmd redis.Cmder) error {
				if isEnqueue(cmd, r.queue) && failed.CompareAndSwap(false, true) {
					return errors.New("connection reset")
				}
				return nil
			})
			info, err := r.producer(rdb, rule).Enqueue(task("reindex", "7", "once"))
			found := r.tasks(r.queue, "reindex")
			if err != nil || len(found) != 1 || found[0].ID != info.ID || info.State != asynq.TaskStatePending || !failed.Load() {
				t.Fatalf("%s: answered %+v, %v; there are %q", until, info, err, texts(found))
			}
			r.mustBeInTheWay(info)
		}
	})
}

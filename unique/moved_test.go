package unique

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// ranMeanwhile has asynq find a task active that was to be deleted, once: by the
// time that anybody looks again it is as it was.
type ranMeanwhile struct{ times atomic.Int32 }

func (h *ranMeanwhile) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *ranMeanwhile) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *ranMeanwhile) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		if name := cmd.Name(); (name == "eval" || name == "evalsha") && len(args) > 5 {
			first, _ := args[3].(string)
			second, _ := args[4].(string)
			if strings.Contains(first, ":t:") && strings.HasSuffix(second, ":groups") && len(args) == 8 && h.times.Add(1) == 1 {
				cmd.(*redis.Cmd).SetVal(int64(-1))
				return nil
			}
		}
		return next(ctx, cmd)
	}
}

// A task that ran and failed between the look at it and its deletion is looked at
// again: nothing is wrong.
func TestReplace_ranMeanwhile(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rule := Rule{Task: "draft", On: []string{"id"}, Until: UntilStart, Duplicate: Replace}
		r := start(t, s, rule)
		r.must(r.Enqueue(task("draft", "1", "old")))
		rdb := s.Client(t)
		hook := &ranMeanwhile{}
		rdb.AddHook(hook)
		r.must(r.producer(rdb, rule).Enqueue(task("draft", "1", "new")))
		if hook.times.Load() < 2 {
			t.Errorf("deleted %d times: not what this test is about", hook.times.Load())
		}
		if found := r.tasks(r.queue, "draft", live...); len(found) != 1 || !strings.Contains(string(found[0].Payload), "new") {
			t.Errorf("left are %v", texts(found))
		}
	})
}

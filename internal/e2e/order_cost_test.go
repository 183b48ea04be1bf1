package e2e

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// scriptCount counts the scripts that a client sends, but for those that read what operators have ordered.
type scriptCount struct{ n atomic.Int64 }

func (*scriptCount) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *scriptCount) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if readsControls := len(cmd.Args()) == 5; strings.HasPrefix(cmd.Name(), "eval") && !readsControls {
			c.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (c *scriptCount) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// A key whose next task does not come, with others behind it, costs a process about one script in two seconds; when that task is
// skipped by somebody else, the next one is called all the same.
func TestInOrder_blockedKeyIsCheap(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.Mini(t)
	locks := s.Client(t)
	count := &scriptCount{}
	locks.AddHook(count)
	r, c := orderRig(t, s, setup{workers: 2, locks: locks})
	first := r.enqueueInOrder(c, 1, asynq.MaxRetry(0))
	r.stage.next(t).returns(errors.New("broken"))
	r.await(first, asynq.TaskStateArchived)
	var behind []string
	for range 20 {
		behind = append(behind, r.enqueueInOrder(c, 1))
	}
	for _, id := range behind {
		r.awaitParked(id)
	}
	time.Sleep(4 * time.Second) // the interval doubles
	const during = 6 * time.Second
	before := count.n.Load()
	time.Sleep(during)
	if n := count.n.Load() - before; n > 5 {
		t.Errorf("%d scripts in %s", n, during)
	}
	if _, err := inner.SkipHead(t.Context(), inner.ByOrder(r.others, r.lockOf("work", "1").Key()), r.queue+"/"+first, 0); err != nil { // others call nobody
		t.Fatal(err)
	}
	r.finish(behind[0])
}

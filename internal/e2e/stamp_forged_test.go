package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// A producer that forges the header of automutex.Client, whatever key it puts there, has its own task run under the key
// of its payload. Nothing else changes: not a lock that others hold, not the order of another key, no key that is no
// lock's, and no key is added.
func TestInOrder_forgedStamp(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 4})
		held := r.take("held")
		first := r.enqueueInOrder(c, 1)
		begun := r.stage.next(t)
		second := r.enqueueInOrder(c, 1)
		foreign := r.cfg.Prefix + "-other:{asynq}"
		rdb := s.Client(t)
		redistest.Must(t, rdb.ZAdd(t.Context(), foreign, redis.Z{Score: 1, Member: "h:as a holder's that has expired"}).Err())
		for i, key := range []string{
			foreign, "asynq:{" + r.queue + "}:pending", r.lockOf("held").Key(), r.lockOf("work", "1").Key(),
			r.lockOf("nobody's").Key(), r.cfg.Prefix + ":{control}", r.cfg.Prefix + ":{}", "", "\x00{}\n", "automutex:{a}:pool",
		} {
			forged := stamp.New(tasknote.Of(r.queue, fmt.Sprint("forged", i)), 5)
			forged.Nonce, forged.Ticket, forged.Key = stamp.NewNonce(), 1, key
			headers := map[string]string{stamp.Header: forged.String()}
			info, err := r.client.Enqueue(asynq.NewTaskWithHeaders("work", fmt.Appendf(nil, `{"id":"forged%d"}`, i), headers),
				asynq.Queue(r.queue), asynq.TaskID(fmt.Sprint("forged", i)), asynq.MaxRetry(6), asynq.Retention(time.Hour))
			redistest.Must(t, err)
			r.finish(info.ID)
		}
		if got, err := rdb.ZRange(t.Context(), foreign, 0, -1).Result(); err != nil || len(got) != 1 {
			t.Errorf("%s has %v, %v", foreign, got, err)
		}
		if n := rdb.Exists(t.Context(), r.lockOf("nobody's").Key()).Val(); n != 0 {
			t.Error("a lock that nobody asked for is stored")
		}
		if err := held.Extend(context.Background(), lock.DefaultTTL); err != nil {
			t.Errorf("the lock that others hold: %v", err)
		}
		begun.returns(nil)
		r.await(first, asynq.TaskStateCompleted)
		r.finish(second)
	})
}

package e2e

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// plainClient is a lock.Client that is no redis.UniversalClient.
type plainClient struct{ lock.Client }

// NewClient says every mistake at once, and asks nobody.
func TestNewClient_everyMistake(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "203.0.113.1:1", Dialer: func(context.Context, string, string) (net.Conn, error) {
		t.Error("NewClient dials")
		return nil, errors.New("dialed")
	}})
	defer rdb.Close()
	ordered := automutex.Config{Rules: []automutex.Rule{{Task: "work", On: []string{"id"}, InOrder: true}}}
	wrong := automutex.Config{Rules: []automutex.Rule{{Task: "work", TTL: -1}}}
	inspected := ordered
	inspected.Inspector = asynq.NewInspectorFromRedisClient(rdb)
	for what, c := range map[string]struct {
		rdb    lock.Client
		client *asynq.Client
		cfg    automutex.Config
		want   []string
	}{
		"all at once":  {nil, nil, wrong, []string{"client is nil", "asynq.Client is nil", "Rules[0]): TTL: "}},
		"no inspector": {plainClient{rdb}, asynq.NewClientFromRedisClient(rdb), ordered, []string{"Inspector: is nil, and none can be made from a e2e.plainClient for InOrder of Rules[0]"}},
		"another's":    {plainClient{rdb}, asynq.NewClientFromRedisClient(rdb), inspected, nil},
		"unordered":    {plainClient{rdb}, asynq.NewClientFromRedisClient(rdb), automutex.Config{}, nil},
	} {
		got, err := automutex.NewClient(c.rdb, c.client, c.cfg)
		if (err == nil) != (len(c.want) == 0) || (got == nil) != (err != nil) {
			t.Errorf("%s: %v, %v", what, got, err)
		}
		for _, part := range c.want {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q is not in\n%v", what, part, err)
			}
		}
	}
}

// What asynq itself refuses stays asynq's refusal, and leaves no place in order behind.
func TestClient_asynqRefuses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{})
		work := asynq.NewTask("work", []byte(`{"id":1}`))
		if _, err := c.Enqueue(work, asynq.Queue(" ")); err == nil || !strings.Contains(err.Error(), "queue name") {
			t.Errorf("a blank queue: %v", err)
		}
		if _, err := c.Enqueue(nil); err == nil {
			t.Error("no task is enqueued")
		}
		first := r.enqueueInOrder(c, 1)
		run := r.stage.next(t)
		if _, err := c.Enqueue(work, nil, asynq.Queue(r.queue), asynq.TaskID(first)); !errors.Is(err, asynq.ErrTaskIDConflict) || !strings.Contains(err.Error(), first) {
			t.Errorf("an ID that is taken: %v", err)
		}
		second := r.enqueueInOrder(c, 1)
		run.returns(nil)
		r.await(first, asynq.TaskStateCompleted)
		r.finish(second) // nothing stands between the two
	})
}

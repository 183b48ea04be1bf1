package exchange

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// movingSlot is a transport that finds a script's slot moving some times.
type movingSlot struct{ left, sent int }

func (m *movingSlot) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	m.sent++
	if m.left > 0 {
		m.left--
		cmd.SetErr(redistest.ReplyError("ERR Script attempted to access a non local key in a cluster node script: 04d7, on @user_script:118."))
		return cmd
	}
	cmd.SetVal(int64(1))
	return cmd
}

func (m *movingSlot) Eval(ctx context.Context, source string, keys []string, args ...any) *redis.Cmd {
	return m.EvalSha(ctx, source, keys, args...)
}

// A script whose slot moves while it runs is sent again, a few times, over a transport that
// waits for each reply and over one that queues commands.
func TestRun_slotMoves(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // not asked
	t.Cleanup(func() { _ = rdb.Close() })
	for left, want := range map[int]struct {
		sent int
		ok   bool
	}{0: {1, true}, 2: {3, true}, 7: {8, true}, 1000: {10, false}} {
		for how, options := range map[string]func(*movingSlot) Options{
			"waits": func(m *movingSlot) Options { return Options{Transport: m} },
			"queues": func(m *movingSlot) Options {
				return Options{Transport: m, Queue: func(ctx context.Context, cmd redis.Cmder) error {
					answer := m.EvalSha(ctx, "", nil)
					cmd.(*redis.Cmd).SetVal(answer.Val())
					return answer.Err()
				}}
			},
		} {
			m := &movingSlot{left: left}
			c := New(rdb, options(m))
			reply, err := c.Run(t.Context(), NewScript("some", "return 1"), []string{"key"}, nil)
			ok := err == nil && reply == int64(1)
			// What never succeeds is sent until the bound; how often depends on the machine.
			if ok != want.ok || m.sent < want.sent || ok && m.sent > want.sent || !ok && !SlotMoves(err) {
				t.Errorf("%s, moving %d times: %v, %v, sent %d times; want %+v", how, left, reply, err, m.sent, want)
			}
		}
	}
}

package exchange

import (
	"context"
	"errors"
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

// The pause before a script is sent again ends with the caller's context.
func TestRun_slotMovesAndTheCallerLeaves(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // not asked
	t.Cleanup(func() { _ = rdb.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	m := &movingSlot{left: 1000}
	c := New(rdb, Options{Transport: m, Queue: func(_ context.Context, _ redis.Cmder) error {
		answer := m.EvalSha(ctx, "", nil)
		if m.sent == 6 { // a pause of 320 ms begins
			cancel()
		}
		return answer.Err()
	}})
	_, err := c.Run(ctx, NewScript("some", "return 1"), []string{"key"}, nil)
	if !errors.Is(err, context.Canceled) || m.sent != 6 {
		t.Errorf("%v, sent %d times; want that the context has ended after 6", err, m.sent)
	}
}

// answering is a hook that answers each command in place of a server.
type answering func(ctx context.Context, cmd redis.Cmder)

func (answering) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a answering) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		a(ctx, cmd)
		return nil
	}
}

func (answering) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Hooks of the client see the values of the caller's context, as tracing needs, under the Conn's own deadline.
func TestRun_valuesOfTheContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // not asked
	t.Cleanup(func() { _ = rdb.Close() })
	seen := make(chan context.Context, 1)
	rdb.AddHook(answering(func(ctx context.Context, cmd redis.Cmder) {
		seen <- ctx
		cmd.(*redis.Cmd).SetVal(int64(1))
	}))
	c := New(rdb, Options{})
	_, err := c.Run(context.WithValue(t.Context(), key{}, "trace"), NewScript("some", "return 1"), []string{"key"}, nil)
	ctx := <-seen
	if _, bounded := ctx.Deadline(); err != nil || ctx.Value(key{}) != "trace" || !bounded {
		t.Errorf("the value %v, with a deadline: %v, %v", ctx.Value(key{}), bounded, err)
	}
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

package exchange

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// SetsKeys reports whether the transport sends SET, and not scripts alone.
func (c *Conn) SetsKeys() bool { return c.process != nil }

// SetFirst sets key to body for ttl (ms) if the key does not exist. It ends as RunBounded does.
// ok is false without an error if the key exists. The error is the server's own: see
// SetRefused and DescribeSet.
func (c *Conn) SetFirst(b Bounds, key string, body *Counted, ttl any) (ok bool, err error) {
	bound, leave := c.boundContext(b.Values, b.Now), b.Leave
	cmd := redis.NewStatusCmd(bound, "set", key, body, "nx", "px", ttl)
	switch {
	case c.queue != nil:
		if err = c.submit(leave, bound, cmd); !errors.Is(err, ErrNoAnswer) {
			ok, err = setReplyOf(cmd, err)
		}
	case c.onCaller(leave):
		ok, err = setReplyOf(cmd, c.process(bound, cmd))
	default:
		var v any
		v, err = c.within(leave, bound, func() (any, error) { return setReplyOf(cmd, c.process(bound, cmd)) })
		ok, _ = v.(bool)
	}
	if errors.Is(err, ErrNoAnswer) {
		noteLeftBehind([]any{body})
	}
	c.unreached(err)
	return ok, err
}

// Set is one SET with NX, and its result.
type Set struct {
	Key, Value string
	Life       time.Duration

	Taken bool // the SET has set the key
	Err   error
}

// SetAll sends all sets in one round trip. Each ends with a reply or an error.
func (c *Conn) SetAll(ctx context.Context, sets []*Set) {
	bound := c.boundContext(ctx, time.Now())
	type sent struct {
		cmds   []*redis.StatusCmd
		failed error // of the whole pipeline
	}
	done, err := c.within(ctx, bound, func() (any, error) {
		p := c.rdb.Pipeline()
		// Not SetNX of go-redis: its false also stands for a command that never ran.
		cmds := make([]*redis.StatusCmd, len(sets))
		for i, s := range sets {
			cmds[i] = p.SetArgs(bound, s.Key, s.Value, redis.SetArgs{Mode: "NX", TTL: s.Life})
		}
		_, failed := p.Exec(bound)
		return sent{cmds, failed}, nil
	})
	for i, s := range sets {
		if s.Err = err; err == nil {
			sent := done.(sent) //nolint:forcetypeassert // made above
			s.Taken, s.Err = setReplyOf(sent.cmds[i], sent.failed)
		}
		c.unreached(s.Err)
	}
}

package exchange

import (
	"errors"

	"github.com/redis/go-redis/v9"
)

// SetsKeys reports whether the transport sends SET, and not scripts alone.
func (c *Conn) SetsKeys() bool { return c.process != nil || c.queue != nil }

// SetFirst sets key to body for ttl (ms) if the key does not exist. It ends as RunBounded does.
// ok is false without an error if the key exists. The error is the server's own: see
// SetRefused and DescribeSet.
func (c *Conn) SetFirst(b Bounds, key string, body *Counted, ttl any) (ok bool, err error) {
	bound, leave := c.boundContext(b.Values, b.Now), b.Leave
	arg, sent := any(body), (*resent)(nil)
	if c.queue == nil {
		arg, sent = c.redirects(body)
	}
	cmd := redis.NewStatusCmd(bound, "set", key, arg, "nx", "px", ttl)
	if sent != nil {
		sent.cmd = cmd
	}
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

package exchange

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// submit is a sendScript over a transport that only queues: the caller's goroutine waits for
// the reply, until bound or ctx ends. After that only the transport uses the command.
func (c *Conn) submit(ctx, bound context.Context, command, script string, keys []string, args []any) (any, error) {
	words := append(make([]any, 0, 4+len(args)), command, script, len(keys), keys[0])
	cmd := redis.NewCmd(bound, append(words, args...)...)
	cmd.SetFirstKeyPos(3) // where a Cluster sends it
	err := c.submitOne(ctx, bound, cmd)
	if errors.Is(err, ErrNoAnswer) {
		return nil, err
	}
	return replyOf(cmd, err)
}

// submitOne queues cmd, and waits for its reply until bound or ctx ends. After ErrNoAnswer the
// transport may still write to cmd, so callers must not read it.
func (c *Conn) submitOne(ctx, bound context.Context, cmd redis.Cmder) error {
	waiting := bound
	if ctx.Done() != nil {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, Timeout)
		defer cancel()
	}
	err := c.queue(waiting, cmd)
	switch {
	case err == nil || waiting.Err() == nil:
		return err
	case ctx.Err() != nil:
		return LeftAtEndOf(ctx)
	}
	return errLeftBehind
}

package exchange

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// submit queues cmd, and waits for its reply until bound or leave ends. After ErrNoAnswer the
// transport may still write to cmd, so callers must not read it.
func (c *Conn) submit(leave, bound context.Context, cmd redis.Cmder) error {
	waiting := bound
	if leave.Done() != nil {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(leave, Timeout)
		defer cancel()
	}
	err := c.queue(waiting, cmd)
	switch {
	case err == nil || waiting.Err() == nil:
		return err
	case leave.Err() != nil:
		return LeftAtEndOf(leave)
	}
	return errLeftBehind
}

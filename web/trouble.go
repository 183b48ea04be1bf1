package web

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/printable"
)

// What a viewer does, or need not do, when Redis is out of reach.
const (
	triesAgain = "the page tries again"
	reload     = "reload to try again"
)

// trouble says for the viewer why Redis did not tell something, and what comes next where it is out of reach.
func trouble(err error, next string) string {
	var network net.Error
	switch {
	case errors.As(err, &network) && network.Timeout(): // the end of a context, too
		return "Redis does not answer; " + next
	case errors.As(err, &network):
		return "Redis cannot be reached (" + printable.Short(network.Error()) + "); " + next
	case errors.Is(err, io.EOF):
		return "Redis has closed the connection; " + next
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return "Another program has written to the key that this error names, and all its tasks fail until you DEL it in Redis: " + printable.Short(err.Error())
	}
	return printable.Short(err.Error())
}

// within asks Redis, and returns when ctx ends at the latest: a client without ContextTimeoutEnabled goes on until its
// own timeouts, and its answer is dropped then.
func within[T any](ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1) // has room: an answer that comes late blocks nobody
	go func() {                      // ends when the client does
		value, err := ask(ctx)
		answered <- answer{value, err}
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// Package redisping asks a Redis for a sign of life, for the programs of this
// repository.
package redisping

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Ping waits for an answer within patience, whatever the client makes of its
// context: it dials several times by itself, or several nodes in turn.
func Ping(ctx context.Context, client redis.UniversalClient, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// Ends when the client gives up or is closed; the buffer lets it.
	answer := make(chan error, 1)
	go func() { answer <- client.Ping(ctx).Err() }()
	select {
	case err := <-answer:
		if !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	case <-ctx.Done():
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("no answer within %s", patience)
}

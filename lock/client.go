package lock

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Client is what this package needs of go-redis: commands, pipelines, Pub/Sub. *redis.Client,
// *redis.ClusterClient and redis.UniversalClient satisfy it. A *redis.Ring satisfies it too,
// but is refused. It moves keys to other shards when one is down, so two shards could each
// grant the lock.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

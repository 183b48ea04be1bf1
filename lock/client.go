package lock

import (
	"context"
	"errors"
	"fmt"
	"reflect"

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

// checkClient reports whether rdb can serve as a Client: not nil (nor a typed
// nil) and no *redis.Ring. It does no I/O.
func checkClient(rdb Client) error {
	if rdb == nil {
		return errors.New("lock: the Redis client is nil: pass a *redis.Client or *redis.ClusterClient")
	}
	if v := reflect.ValueOf(rdb); v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("lock: the Redis client is a nil %T: pass one that was made with redis.NewClient or the like", rdb)
	}
	if _, ring := rdb.(*redis.Ring); ring {
		return errors.New("lock: *redis.Ring cannot hold locks (a shard that is away would let a second holder in on another): " +
			"use *redis.Client or *redis.ClusterClient")
	}
	return nil
}

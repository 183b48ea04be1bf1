package lock

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// unreached notes how an exchange with Redis ended. When a node of a Cluster
// could not be reached it has the client find out anew who has which slots:
// go-redis alone does that only when a node tells it so, which a dead one does not,
// and else once a minute (ClusterOptions.ClusterStateReloadInterval), by when the
// leases that it kept from being renewed are lost. It asks for no answer here, and
// one that is under way is not doubled: the next exchange has the use of it.
func (c *conn) unreached(err error) {
	if err == nil {
		return
	}
	var said redis.Error // allocated, so only for errors
	if errors.As(err, &said) || errors.Is(err, redis.ErrClosed) {
		return
	}
	if cluster, ok := c.rdb.(interface{ ReloadState(ctx context.Context) }); ok {
		cluster.ReloadState(context.Background())
	}
}

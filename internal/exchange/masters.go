package exchange

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"
)

// clusterClient is what a *redis.ClusterClient has, and what embeds one.
type clusterClient interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ForEachMaster(ctx context.Context, f func(ctx context.Context, master *redis.Client) error) error
}

// OnCluster reports whether the client is that of a Cluster.
func (c *Conn) OnCluster() bool {
	_, isCluster := c.rdb.(clusterClient)
	return isCluster
}

// MasterOf tells the masters of a Cluster apart: it is equal for two keys of one
// master. It is nil where the client is no Cluster's, or no master is known.
func (c *Conn) MasterOf(ctx context.Context, key string) any {
	cluster, isCluster := c.rdb.(clusterClient)
	if !isCluster {
		return nil
	}
	bound := c.bound(ctx)
	find := func() (any, error) { return cluster.MasterForKey(bound, key) }
	var master any
	var err error
	if c.located.Load() {
		master, err = find() // which has the slots in memory
	} else {
		master, err = c.within(ctx, bound, find)
	}
	if err != nil {
		return nil // go-redis looks for it again when the command is sent
	}
	c.located.Store(true)
	return master
}

// BatchMost is how many commands travel in one pipeline of InBatches.
const BatchMost = 256

// InBatches has send called with batches of items, of at most BatchMost and on a
// goroutine each, which branch starts: a node that hangs holds up only the items that
// travel to it. No batch goes to two masters of a Cluster, for go-redis gives the error
// of one to all commands of a pipeline.
func InBatches[T any](c *Conn, branch func(f func()), items []T, key func(T) string, send func([]T)) {
	if len(items) == 0 {
		return
	}
	chunks := func(items []T) {
		for batch := range slices.Chunk(items, BatchMost) {
			branch(func() { send(batch) })
		}
	}
	if !c.OnCluster() {
		chunks(items)
		return
	}
	branch(func() { // a client that is new asks for the slots first
		byMaster := make(map[any][]T)
		for _, item := range items {
			master := c.MasterOf(context.Background(), key(item))
			byMaster[master] = append(byMaster[master], item)
		}
		for _, items := range byMaster {
			chunks(items)
		}
	})
}

// unreached notes how an exchange with Redis ended. When a node of a Cluster
// could not be reached it has the client find out anew who has which slots:
// go-redis alone does that only when a node tells it so, which a dead one does not,
// and else once a minute (ClusterOptions.ClusterStateReloadInterval), by when the
// leases that it kept from being renewed are lost. It asks for no answer here, and
// one that is under way is not doubled: the next exchange has the use of it.
func (c *Conn) unreached(err error) {
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

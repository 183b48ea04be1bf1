package redisx

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// clusterClient is a *redis.ClusterClient, or a type that embeds one.
type clusterClient interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ForEachMaster(ctx context.Context, f func(ctx context.Context, master *redis.Client) error) error
}

// Masters returns the masters of a Cluster, in no order, or a *redis.Client itself; of another client none.
func Masters(ctx context.Context, rdb Client) (masters []*redis.Client, err error) {
	switch rdb := rdb.(type) {
	case *redis.Client:
		masters = append(masters, rdb)
	case clusterClient:
		var mu sync.Mutex // guards masters: ForEachMaster calls from several goroutines, and waits for them
		err = rdb.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			masters = append(masters, master)
			return nil
		})
	}
	return masters, err
}

// IsCluster reports whether the client is for a Cluster.
func (c *Conn) IsCluster() bool {
	_, isCluster := c.rdb.(clusterClient)
	return isCluster
}

// masterOf returns the master of a key, to compare with that of other keys. It is nil if the client is not for a
// Cluster, or if the master is not known.
func (c *Conn) masterOf(ctx context.Context, key string) any {
	cluster, isCluster := c.rdb.(clusterClient)
	if !isCluster {
		return nil
	}
	find := func(bound context.Context) (any, error) { return cluster.MasterForKey(bound, key) }
	var master any
	var err error
	if c.slotsKnown.Load() {
		master, err = find(c.deadlines.context(ctx)) // needs no I/O: the client knows the slots
	} else {
		master, err = c.Within(ctx, find)
	}
	if err != nil {
		return nil // go-redis looks it up again when the command is sent
	}
	c.slotsKnown.Store(true)
	return master
}

// MaxBatch is how many items a batch of InBatches has at most.
const MaxBatch = 256

// InBatches calls send with batches of at most MaxBatch items, each on a goroutine that branch starts. The keys of a
// batch are all on one master of a Cluster: a node that hangs delays only the items that go to it, and go-redis gives
// the error of one master to all commands of a pipeline.
func InBatches[T any](c *Conn, branch func(f func()), items []T, key func(T) string, send func([]T)) {
	if len(items) == 0 {
		return
	}
	chunks := func(items []T) {
		for batch := range slices.Chunk(items, MaxBatch) {
			branch(func() { send(batch) })
		}
	}
	if !c.IsCluster() {
		chunks(items)
		return
	}
	branch(func() { // a new client first has to ask for the slots
		byMaster := make(map[any][]T)
		for _, item := range items {
			master := c.masterOf(context.Background(), key(item))
			byMaster[master] = append(byMaster[master], item)
		}
		for _, items := range byMaster {
			chunks(items)
		}
	})
}

// sawUnreached is called with the error of each exchange. If a node of a Cluster could not be reached, or has a slot
// no more, it has the client reload which node has which slots. go-redis by itself reloads only if a node redirects a
// command that go-redis itself has routed, which a dead node does not do, and once a minute. By then leases on that
// node would be lost. The reload runs in the background, one at a time. What comes up may be a newer server.
func (c *Conn) sawUnreached(err error) {
	if err == nil || IsServers(err) && !HasCode(err, "MOVED") || errors.Is(err, redis.Nil) ||
		errors.Is(err, redis.ErrClosed) {
		return
	}
	c.refused.Store(0)
	if cluster, ok := c.rdb.(interface{ ReloadState(ctx context.Context) }); ok {
		cluster.ReloadState(context.Background())
	}
}

// Package transport_test has the examples of package lock that need a newer go-redis
// than the library does.
package transport_test

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/lock"
)

// The scripts of a Locker travel over connections that are written and read at the
// same time.
func Example() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close() // ends the queue as well
	queue, err := rdb.AsyncAutoPipelineWithOptions(&redis.AutoPipelineOptions{FullDuplex: true})
	if err != nil {
		return
	}
	locker := lock.New(rdb, lock.Options{Transport: lock.Async(queue)})
	defer locker.Close() // before the client and its queue

	_ = locker.Mutex("room:123").Do(context.Background(), func(context.Context) error {
		return nil // in turn
	})
}

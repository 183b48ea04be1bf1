package pool_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/lock/pool"
)

// What the examples do with a value.
func call(context.Context, string) (int, error) { return 200, nil }

// A fixed number of API keys, each used by one caller at a time.
func Example() {
	locker := lock.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}), lock.Options{})
	defer locker.Close()
	ctx := context.Background()

	keys := pool.New(locker, "api-keys")
	if _, err := keys.Put(ctx, "key-1", "key-2", "key-3"); err != nil { // those that are there stay as they are
		return
	}
	lease, err := keys.Take(ctx)
	if err != nil {
		return
	}
	defer lease.Unlock(ctx) // goes back now, or when its process dies
	if _, err := call(lease.Bind(ctx), lease.Value()); err != nil {
		fmt.Println(err)
	}
}

// Jobs from one process to another: what is taken is gone only when it is done.
func ExampleLease_Consume() {
	locker := lock.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}), lock.Options{})
	defer locker.Close()
	ctx := context.Background()

	jobs := pool.New(locker, "jobs", lock.TTL(5*time.Second))
	for {
		lease, err := jobs.Take(ctx) // in line, first come, first served
		if err != nil {
			return
		}
		if _, err := call(lease.Bind(ctx), lease.Value()); err != nil {
			_ = lease.Unlock(ctx) // back to the end
			continue
		}
		if err := lease.Consume(ctx); errors.Is(err, lock.ErrNotHeld) {
			fmt.Println("took too long: somebody else does it again")
		}
	}
}

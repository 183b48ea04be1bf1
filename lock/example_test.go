package lock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/lock"
)

// A Room is something with an ID.
type Room struct {
	ID   int
	Name string
}

// What the examples do while they hold a lock.
func enter(context.Context) error               { return nil }
func call(context.Context, string) (int, error) { return 200, nil }
func transfer(context.Context, int64) error     { return nil }

func newExampleLocker() *lock.Locker {
	return lock.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}), lock.Options{})
}

func Example() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()
	locker := lock.New(rdb, lock.Options{Owner: "checkout-7"})
	defer locker.Close()

	ctx := context.Background()
	err := locker.Mutex("room:123").Do(ctx, func(ctx context.Context) error {
		return enter(ctx) // alone; ctx ends if the lease is lost
	})
	if err != nil {
		fmt.Println(err)
	}
}

// Take and release by hand: at once, or in line until a context ends.
func ExampleLock_Lock() {
	locker := newExampleLocker()
	defer locker.Close()
	m := locker.Mutex("room:123", lock.TTL(10*time.Second), lock.Note("nightly cleaning"))

	waiting, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	lease, err := m.Lock(waiting)
	var busy *lock.BusyError
	switch {
	case errors.As(err, &busy):
		fmt.Println("busy, held by", busy.Holder, "for", busy.Note)
		return
	case err != nil:
		fmt.Println("Redis:", err)
		return
	}
	defer lease.Unlock(context.Background())

	work := lease.Bind(context.Background())
	fence, err := lease.Fence() // the account refuses lower ones
	if err != nil {
		fmt.Println("the lock was made without lock.Fenced():", err)
		return
	}
	_ = transfer(work, fence)
}

// TryLock does not wait.
func ExampleLock_TryLock() {
	locker := newExampleLocker()
	defer locker.Close()

	lease, err := locker.Mutex("report").TryLock(context.Background())
	if errors.Is(err, lock.ErrBusy) {
		fmt.Println("somebody else is at it")
		return
	}
	if err == nil {
		defer lease.Unlock(context.Background())
	}
}

// Acquire answers "busy" with false and not with an error.
func ExampleLock_Acquire() {
	locker := newExampleLocker()
	defer locker.Close()
	ctx := context.Background()

	lease, ok, err := locker.Mutex("room:123").Acquire(ctx, 2*time.Second) // 0: at once
	if err != nil || !ok {
		fmt.Println(ok, err)
		return
	}
	fmt.Println(lease.Unlock(ctx))
}

// With gives what the function gives.
func ExampleWith() {
	locker := newExampleLocker()
	defer locker.Close()

	status, err := lock.With(context.Background(), locker.Mutex("api"), func(ctx context.Context) (int, error) {
		return call(ctx, "key")
	})
	fmt.Println(status, err)
}

// Four at a time.
func ExampleLocker_Semaphore() {
	locker := newExampleLocker()
	defer locker.Close()
	ctx := context.Background()

	gpu := locker.Semaphore("gpu", 4)
	lease, err := gpu.Lock(ctx)
	if err != nil {
		return
	}
	free, err := lease.Release(ctx)
	fmt.Println(free, "of 4 are free", err)
}

// The lock of a value: Room 123 in the kitchen's scope.
func ExampleLocker_For() {
	locker := newExampleLocker()
	defer locker.Close()

	room := &Room{ID: 123, Name: "blue"}
	_ = locker.For(room, lock.Parts("kitchen")).Do(context.Background(), enter)
}

// Who holds what, and taking it from one that hangs.
func ExampleLock_Break() {
	locker := newExampleLocker()
	defer locker.Close()
	ctx := context.Background()

	hung := locker.Mutex("room:123")
	holders, err := hung.Holders(ctx)
	if err != nil || len(holders) == 0 {
		return
	}
	for _, h := range holders {
		fmt.Println(h.Owner, h.Note, h.ExpiresIn)
	}
	_, _ = hung.Break(ctx, holders[0].Token) // its context ends with lock.ErrLost
}

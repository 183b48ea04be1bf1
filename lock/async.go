package lock

import (
	"context"
	"reflect"

	"github.com/redis/go-redis/v9"
)

// Async makes a Transport of t, which queues a command and returns a future for its
// reply. The [*redis.AutoPipeliner] that AsyncAutoPipelineWithOptions of go-redis
// 9.22 and later returns is one:
//
//	queue, err := rdb.AsyncAutoPipelineWithOptions(&redis.AutoPipelineOptions{FullDuplex: true})
//	...
//	locker := lock.New(rdb, lock.Options{Transport: lock.Async(queue)})
//
// A call over the Transport that Async returns needs no goroutine of its own. Async returns t
// as it is if t is nil, or if its method IsBlocking returns true. (Async is generic because
// this package must not name a type of a newer go-redis.)
func Async[F interface {
	WaitContext(ctx context.Context) error
}](t interface {
	Transport
	Submit(ctx context.Context, cmd redis.Cmder) F
},
) Transport {
	if v := reflect.ValueOf(t); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return t
	}
	if b, ok := t.(interface{ IsBlocking() bool }); ok && b.IsBlocking() {
		return t
	}
	return asyncTransport{Transport: t, process: func(ctx context.Context, cmd redis.Cmder) error {
		return t.Submit(ctx, cmd).WaitContext(ctx)
	}}
}

// asyncTransport is what Async returns.
type asyncTransport struct {
	Transport
	// process queues cmd and waits for its reply until ctx ends. After an error with
	// ctx ended, the transport may still write to cmd.
	process func(ctx context.Context, cmd redis.Cmder) error
}

// Process is process, under the name that internal/exchange looks for.
func (t asyncTransport) Process(ctx context.Context, cmd redis.Cmder) error {
	return t.process(ctx, cmd)
}

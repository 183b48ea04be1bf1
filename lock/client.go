package lock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
)

// Client is what this package needs of go-redis: scripts, pipelines, Pub/Sub. *redis.Client,
// *redis.ClusterClient and redis.UniversalClient satisfy it. A *redis.Ring satisfies it too,
// but is refused. It moves keys to other shards when one is down, so two shards could each
// grant the lock.
type Client interface {
	redis.Scripter
	Pipeline() redis.Pipeliner
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// Transport sends the commands of single operations in place of the client. These are scripts
// and, if the Transport has a Process method as go-redis' clients do, the SET that takes a
// free mutex. The client still sends subscriptions and the pipelines of renewals and waiters,
// so client and Transport must lead to the same Redis and the same keys.
//
// An AutoPipeliner of go-redis 9.22 or later is a Transport: it joins the commands of many
// goroutines into one write. Pass an asynchronous one through [Async]; every other Transport
// costs a goroutine for each call. Many goroutines call the methods at once. The methods may
// ignore their context: the caller gives up after about 5 s, and the goroutine of the call
// ends when the method returns. The Locker does not close the Transport: close it after the
// Locker.
type Transport interface {
	Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd
	EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd
}

func checkTransport(t Transport) error {
	if v := reflect.ValueOf(t); v.Kind() == reflect.Pointer && v.IsNil() && t != nil {
		return fmt.Errorf("lock: Options.Transport is a nil %T: leave it out, or pass one that was made", t)
	}
	if _, ring := t.(*redis.Ring); ring {
		return errors.New("lock: Options.Transport is a *redis.Ring, which cannot hold locks: see Client")
	}
	return nil
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

// newConn makes what sends for a Locker with rdb and o.
func newConn(rdb Client, o Options, prefix string, log *slog.Logger, closing <-chan struct{}) *exchange.Conn {
	options := exchange.Options{Prefix: prefix, Log: log, Closing: closing}
	if o.Transport != nil {
		options.Transport = o.Transport
	}
	if async, ok := o.Transport.(asyncTransport); ok {
		options.Queue = async.process
	}
	return exchange.New(rdb, options)
}

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

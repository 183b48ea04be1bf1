// Orders runs payments, refunds and webhooks of orders, each order's in the order in which they were enqueued. The
// webhook of order 1 fails twice; what was enqueued after it waits for it, and order 2 does not.
//
//	go run ./examples/orders              with a Redis of its own, in memory
//	go run ./examples/orders localhost:6379
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/examples/internal/anyredis"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// cfg is that of workers and producers: one rule for all types that begin with order:, in one scope.
var cfg = automutex.Config{Rules: []automutex.Rule{
	{Task: "order:", Scope: "order", On: []string{"order_id"}, InOrder: true, MaxQueued: 1000},
}}

// steps are what happens to the orders, in this order.
var steps = []struct {
	kind  string
	order int
}{
	{"order:pay", 1}, {"order:webhook", 1}, {"order:pay", 2}, {"order:refund", 1}, {"order:webhook", 2},
	{"order:webhook", 1},
}

func run(args []string, out io.Writer) error {
	store, err := anyredis.Open(context.Background(), strings.Join(args, ""))
	if err != nil {
		return err
	}
	defer store.Close()
	guard, err := automutex.New(store.Client, cfg)
	if err != nil {
		return err
	}
	client, err := automutex.NewClient(store.Client, asynq.NewClientFromRedisClient(store.Client), cfg)
	if err != nil {
		return err
	}
	server := asynq.NewServerFromRedisClient(store.Client, guard.ServerConfig(asynq.Config{
		Concurrency: 10, LogLevel: asynq.FatalLevel,
		TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: 200 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second },
	}))
	var failures atomic.Int32
	done := make(chan struct{}, len(steps))
	err = server.Start(guard.Middleware(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		if t.Type() == "order:webhook" && string(t.Payload()) == `{"order_id":1}` && failures.Add(1) <= 2 {
			fmt.Fprintf(out, "%-14s %s  fails, and keeps its place\n", t.Type(), t.Payload())
			return errors.New("the customer's server answers 503")
		}
		fmt.Fprintf(out, "%-14s %s  done\n", t.Type(), t.Payload())
		done <- struct{}{}
		return nil
	})))
	if err != nil {
		return err
	}
	defer server.Shutdown()
	defer func() { _ = guard.Close(context.Background()) }()
	for _, step := range steps {
		if _, err := client.Enqueue(asynq.NewTask(step.kind, fmt.Appendf(nil, `{"order_id":%d}`, step.order))); err != nil {
			return err
		}
	}
	for range steps {
		<-done
	}
	return nil
}

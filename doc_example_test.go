package automutex_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
)

// A worker whose tasks for one transaction take turns.
func Example() {
	redisOpt := asynq.RedisClientOpt{Addr: "localhost:6379"}
	guard, err := automutex.NewFromConnOpt(redisOpt, automutex.Config{
		Rules: []automutex.Rule{{Task: "itunes:verify", On: []string{"transaction_id"}}},
	})
	if err != nil {
		panic(err)
	}
	mux := asynq.NewServeMux()
	mux.HandleFunc("itunes:verify", func(ctx context.Context, t *asynq.Task) error {
		return nil // alone with its transaction
	})
	server := asynq.NewServer(redisOpt, guard.ServerConfig(asynq.Config{Concurrency: 10}))
	if err := guard.Run(server, mux); err != nil { // until SIGTERM or Ctrl-C
		panic(err)
	}
}

// Each mistake in a Config says where it is.
func ExampleFieldError() {
	_, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{
		{Task: "mail", On: []string{"to", "items[0]"}},
	}})
	var mistake *automutex.FieldError
	if errors.As(err, &mistake) {
		fmt.Println(mistake.RuleName, mistake.Field, mistake.Element)
		fmt.Println(mistake.Err)
	}
	// Output:
	// mail On 1
	// "items[0]" has a bracket; write "items.0", and \[ for a bracket in a name
}

// The keys of a task, without Redis.
func ExampleKeyMaker_Keys() {
	maker, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{
		{Task: "report:", Scope: "report", On: []string{"tenant.id"}, Limit: 3},
	}})
	if err != nil {
		panic(err)
	}
	task := asynq.NewTask("report:daily", []byte(`{"tenant": {"id": 7}}`))
	fmt.Println(maker.Keys(context.Background(), task))
	// Output: [automutex:{report|7}] <nil>
}

// A function decides about tasks that find their lock taken.
func ExampleAfterFailure() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	guard, err := automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{{
		Task: "cache:warm",
		Busy: automutex.AfterFailure(func(_ context.Context, _ *asynq.Task, busy *automutex.BusyError) error {
			if busy.HolderTask != "" {
				return nil // another task warms the cache: this one is done
			}
			return busy // as Retry
		}),
	}}})
	if err != nil {
		panic(err)
	}
	defer guard.Close(context.Background())
}

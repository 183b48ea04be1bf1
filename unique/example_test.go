package unique_test

import (
	"errors"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/unique"
)

// A producer that enqueues a document's indexing once, until it has been done.
func Example() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	client, err := unique.New(asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb), rdb,
		unique.Config{
			Rules: []unique.Rule{{Task: "reindex", On: []string{"document_id"}}},
		})
	if err != nil {
		panic(err)
	}
	for range 2 {
		info, err := client.Enqueue(asynq.NewTask("reindex", []byte(`{"document_id": 7}`)))
		var duplicate *unique.DuplicateError
		switch {
		case errors.As(err, &duplicate):
			fmt.Println("waits or runs already:", duplicate.Key, duplicate.State)
		case err != nil:
			panic(err)
		default:
			fmt.Println("enqueued:", info.State)
		}
	}
	// Output:
	// enqueued: pending
	// waits or runs already: automutex:{reindex|7} pending
}

package unique_test

import (
	"errors"
	"fmt"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/unique"
)

// A producer that enqueues a document's indexing once, until it has been done.
func Example() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()
	client, err := unique.New(asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb), rdb, unique.Config{
		Rules: []unique.Rule{{Task: "reindex", On: []string{"document_id"}}},
	})
	if err != nil {
		panic(err)
	}
	_, err = client.Enqueue(asynq.NewTask("reindex", []byte(`{"document_id": 7}`)))
	var duplicate *unique.DuplicateError
	switch {
	case errors.As(err, &duplicate):
		fmt.Println("waits or runs already:", duplicate.ID)
	case err != nil:
		panic(err)
	}
}

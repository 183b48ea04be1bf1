package documented

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
)

// The code after the change, in docs/migrating.md under "From hand-written locks".

var post = func(context.Context, string) error { return nil }

func deliver(ctx context.Context, t *asynq.Task) error {
	var p struct {
		EndpointID string `json:"endpoint_id"`
	}
	if err := json.Unmarshal(t.Payload(), &p); err != nil {
		return fmt.Errorf("payload: %w: %w", err, asynq.SkipRetry)
	}
	return post(ctx, p.EndpointID) // ctx ends if the lock is lost
}

func deliveries(rdb redis.UniversalClient) (*automutex.Guard, error) {
	return automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{
		{Task: "webhook:deliver", On: []string{"endpoint_id"}, Busy: automutex.Retry, Wait: 5 * time.Second},
	}})
}

func documents(rdb redis.UniversalClient) (*automutex.Guard, error) {
	return automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{
		{Task: "document:index", Scope: "document", On: []string{"document_id"}},
		{Task: "document:index", Scope: "tenant", On: []string{"tenant_id"}, Limit: 3},
	}})
}

package documented

import (
	"context"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

func inOrder(ctx context.Context, task *asynq.Task) error {
	cfg := automutex.Config{Rules: []automutex.Rule{
		{Task: "order:", Scope: "order", On: []string{"order_id"}, InOrder: true},
	}}
	guard, err := automutex.New(rdb, cfg) // in workers, as ever
	if err != nil {
		return err
	}
	producer, err := automutex.NewClient(rdb, client, cfg) // in producers
	if err != nil {
		return err
	}
	info, err := producer.EnqueueContext(ctx, task)
	_, _ = guard, info
	return err
}

var _ = inOrder

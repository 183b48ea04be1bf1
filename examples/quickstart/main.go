// Command quickstart is the smallest complete worker: one rule, one handler, an orderly end. The README shows it.
package main

import (
	"context"
	"log"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
)

func main() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	guard, err := automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{
		{Task: "itunes:verify", On: []string{"transaction_id"}, Busy: automutex.Park},
	}})
	if err != nil {
		log.Fatal(err)
	}
	mux := asynq.NewServeMux()
	mux.HandleFunc("itunes:verify", verify)
	srv := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{
		Concurrency:       10,
		TaskCheckInterval: 50 * time.Millisecond, // an idle server starts a parked task within 75 ms
	}))
	// Run installs the middleware before those of mux.Use. On SIGTERM or SIGINT waiting tasks
	// return to asynq, and running handlers keep their locks.
	if err := guard.Run(srv, mux); err != nil {
		log.Fatal(err)
	}
}

func verify(ctx context.Context, t *asynq.Task) error {
	return ctx.Err() // your work; nobody else verifies this transaction meanwhile
}

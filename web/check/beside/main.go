// Command beside serves the page of the locks beside asynqmon. The README shows it.
package main

import (
	"log"
	"net/http"
	"time"

	"github.com/hibiken/asynq"
	"github.com/hibiken/asynqmon"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/web"
)

func main() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	locks, err := web.New(rdb, web.Options{
		RootPath:     "/locks",
		AsynqmonPath: "/asynq", // tasks link to it
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/locks/", locks)
	mux.Handle("/asynq/", asynqmon.New(asynqmon.Options{
		RootPath:     "/asynq",
		RedisConnOpt: asynq.RedisClientOpt{Addr: "localhost:6379"},
	}))
	srv := &http.Server{Addr: "127.0.0.1:8080", Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(srv.ListenAndServe()) // neither page has a login
}

package web_test

import (
	"context"
	"io"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/web"
	"github.com/automutex/automutex/web/record"
)

// What the snippet of the docs speaks of.
var (
	rdb   *redis.Client
	rules []automutex.Rule
	mux   *http.ServeMux
	srv   *http.Server
)

func mounted() error {
	locks, err := web.New(rdb, web.Options{RootPath: "/locks", AsynqmonPath: "/asynq"})
	if err != nil {
		return err
	}
	mux.Handle("/locks/", locks)
	srv.RegisterOnShutdown(func() { _ = locks.(io.Closer).Close() })
	return nil
}

func recorded() error {
	recorder, err := record.New(rdb, record.Options{}) // github.com/automutex/automutex/web/record
	if err != nil {
		return err
	}
	defer recorder.Close()
	guard, err := automutex.New(rdb, automutex.Config{Rules: rules, Observe: recorder.Observe})
	if err != nil {
		return err
	}
	return guard.Close(context.Background())
}

var _, _ = mounted, recorded

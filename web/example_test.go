package web_test

import (
	"io"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/web"
)

// What the snippet of the docs speaks of.
var (
	rdb *redis.Client
	mux *http.ServeMux
	srv *http.Server
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

var _ = mounted

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/loopback"
	"github.com/automutex/automutex/web"
)

// What -web makes of -tasks and -work where these are not given: a run of some minutes.
const (
	webTasks = 2000
	webWork  = 150 * time.Millisecond
)

// webAddress checks -web. Without a host it is this machine's own address, since the
// page of the demo has no login and lets everybody step in.
func webAddress(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "" {
		return "", fmt.Errorf("-web %q: want host:port, such as 127.0.0.1:8081", addr)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	if !loopback.Is(host) {
		return "", fmt.Errorf("-web %s: others could reach that address, and the page of the demo has no login; listen on 127.0.0.1", addr)
	}
	return net.JoinHostPort(host, port), nil
}

// operators is the page for operators, served while the demo runs.
type operators struct {
	url    string
	page   io.Closer
	server *http.Server
	served chan struct{} // closed when Serve has returned
	failed chan error    // has room for the one error of Serve
}

// servePage serves the page at addr until close. Should the page fail, it calls end.
func servePage(ctx context.Context, end func(), addr string, rdb redis.UniversalClient, cfg automutex.Config, log *slog.Logger) (*operators, error) {
	handler, err := web.New(rdb, web.Options{
		Prefix: cfg.Prefix, HashKeys: cfg.HashKeys, Rules: cfg.Rules, Logger: log,
		Access: func(*http.Request) web.Access { return web.AccessOperate },
	})
	if err != nil {
		return nil, fmt.Errorf("-web: %w", err)
	}
	page, _ := handler.(io.Closer) // web.New says that it is one
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("-web: %w", err), page.Close())
	}
	o := &operators{
		url: "http://" + listener.Addr().String() + "/", page: page, served: make(chan struct{}), failed: make(chan error, 1),
		server: &http.Server{Handler: loopback.Only(handler), ReadHeaderTimeout: 10 * time.Second},
	}
	go o.serve(listener, end) // ends with close, or with the listener
	return o, nil
}

// serve serves until the server is closed. Another end is a failure of the demo.
func (o *operators) serve(listener net.Listener, end func()) {
	defer close(o.served)
	err := o.server.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		return
	}
	o.failed <- errors.Join(fmt.Errorf("-web: the page is gone: %w", err), o.page.Close())
	end()
}

// failure gives the error that the page has ended with, once; nil while it is served, and
// without a page.
func (o *operators) failure() error {
	if o == nil {
		return nil
	}
	select {
	case err := <-o.failed:
		return err
	default:
		return nil
	}
}

// close ends the page and its streams. Without a page it does nothing.
func (o *operators) close() {
	if o == nil {
		return
	}
	_ = o.page.Close() // the demo ends; nothing of it is left to lose
	_ = o.server.Close()
	<-o.served
}

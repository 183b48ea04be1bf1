package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

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
	served chan error // gets the error of Serve, and is closed then
}

// ServePage serves the page of -web, which Close ends. A page that fails calls end.
func (d *Demo) ServePage(ctx context.Context, end func(), cfg automutex.Config) error {
	if !d.HasPage() {
		return nil
	}
	handler, err := web.New(d.Redis, web.Options{
		Prefix: cfg.Prefix, HashKeys: cfg.HashKeys, Rules: cfg.Rules, Logger: d.Log,
		Access: func(*http.Request) web.Access { return web.AccessOperate },
	})
	if err != nil {
		return fmt.Errorf("-web: %w", err)
	}
	page, _ := handler.(io.Closer) // web.New says that it is one
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", d.web)
	if err != nil {
		return errors.Join(fmt.Errorf("-web: %w", err), page.Close())
	}
	d.page = &operators{
		url: "http://" + listener.Addr().String() + "/", page: page, served: make(chan error, 1),
		server: &http.Server{Handler: loopback.Only(handler), ReadHeaderTimeout: 10 * time.Second},
	}
	go d.page.serve(listener, end) // ends with close, or with the listener
	return nil
}

// serve serves until the server is closed, or the listener fails, and calls end.
func (o *operators) serve(listener net.Listener, end func()) {
	o.served <- o.server.Serve(listener)
	close(o.served)
	end()
}

// failure gives the error that the page has ended with; nil while it is served, and without a page.
func (o *operators) failure() error {
	if o == nil {
		return nil
	}
	select {
	case err := <-o.served:
		return fmt.Errorf("-web: the page is gone: %w", err)
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
	for range o.served { // until serve has ended; its error says that the server was closed
	}
}

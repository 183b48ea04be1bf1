package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/web"
)

// What the environment has: never on the command line, which others see.
const (
	webUserEnv     = "AUTOMUTEX_WEB_USER"
	webPasswordEnv = "AUTOMUTEX_WEB_PASSWORD" //nolint:gosec // the name of a variable
	hashKeysEnv    = "AUTOMUTEX_HASH_KEYS"
)

// webCommand is what the flags and the environment say of the page.
type webCommand struct {
	app            *app
	listen         string
	options        web.Options
	operate        bool
	user, password string
	log            *slog.Logger
}

func newWeb(a *app) *cobra.Command {
	w := &webCommand{app: a}
	cmd := a.online("web [FILE]", `Serve the page for operators

--operate lets everybody who gets in break locks and so on; each action is logged, with the name
of the login. The browser asks for AUTOMUTEX_WEB_USER and AUTOMUTEX_WEB_PASSWORD of the
environment. Without them the page listens on a loopback address only. It speaks plain HTTP: put a
proxy with TLS before it where others can listen in.`, cobra.MaximumNArgs(1), w.run)
	cmd.Example = `  automutex web automutex.yaml
  AUTOMUTEX_WEB_USER=ops AUTOMUTEX_WEB_PASSWORD=... automutex web --listen :8081 --operate`
	cmd.Flags().StringVar(&w.listen, "listen", "127.0.0.1:8081", "address to serve on, host:port; port 0 takes any")
	cmd.Flags().StringVar(&w.options.RootPath, "root_path", "", "path at which browsers find the page (/locks), behind "+
		"a proxy that passes the browser's Host header on")
	cmd.Flags().StringVar(&w.options.AsynqmonPath, "asynqmon_path", "", "path at which browsers find asynqmon on the "+
		"same host: tasks link to it")
	cmd.Flags().BoolVar(&w.operate, "operate", false, "offer the actions: break, pause and so on")
	return cmd
}

func (w *webCommand) run(cmd *cobra.Command, args []string) (err error) {
	w.user, w.password, w.log = os.Getenv(webUserEnv), os.Getenv(webPasswordEnv),
		slog.New(slog.NewTextHandler(w.app.errs, nil))
	if err := w.check(); err != nil {
		return err
	}
	cfg := automutex.Config{HashKeys: os.Getenv(hashKeysEnv)}
	if len(args) > 0 {
		if cfg, _, err = w.app.load(cmd, args[0]); err != nil {
			return err
		}
	}
	rdb, err := w.app.conn.open(cmd.Context())
	if err != nil {
		return err
	}
	bound, end := context.WithTimeout(cmd.Context(), w.app.conn.timeout)
	defer end()
	if err := w.app.place(bound, rdb); err != nil {
		w.log.Warn("automutex: web: " + err.Error())
	}
	o := w.options
	o.Prefix, o.HashKeys, o.Rules, o.Logger = w.app.conn.prefix, cfg.HashKeys, cfg.Rules, w.log
	access := web.AccessRead
	if w.operate {
		access = web.AccessOperate
	}
	o.Audit, o.Access = w.audit, func(*http.Request) web.Access { return access }
	o.User = func(*http.Request) string { return w.user } // without a login nobody has checked a name
	page, err := web.New(rdb, o)
	if err != nil {
		return errors.Join(usage("%w", err), rdb.Close())
	}
	return errors.Join(w.serve(cmd.Context(), page), rdb.Close())
}

// check refuses to show the page to a network without a login.
func (w *webCommand) check() error {
	host, _, err := net.SplitHostPort(w.listen)
	switch {
	case (w.user == "") != (w.password == ""):
		return usage("%s and %s go together: set both, or neither", webUserEnv, webPasswordEnv)
	case err != nil:
		return usage("--listen %q: want host:port, as in 127.0.0.1:8081", printable.OneLine(w.listen))
	case w.user == "" && !isLoopback(host):
		return usage("--listen %s: others could reach that address: set %s and %s in the environment, or listen on 127.0.0.1",
			printable.OneLine(w.listen), webUserEnv, webPasswordEnv)
	}
	return nil
}

func (w *webCommand) audit(a web.Action) {
	args := []any{"action", a.Do, "target", a.Target, "by", a.By, "why", a.Why}
	if a.Err != nil {
		w.log.Warn("automutex: web: an action failed", append(args, "error", a.Err)...)
		return
	}
	w.log.Info("automutex: web: an action was done", append(args, "result", a.Result)...)
}

// serve serves until ctx ends or the listener fails.
func (w *webCommand) serve(ctx context.Context, page http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", w.listen)
	if err != nil {
		return no("cannot listen: %w", err)
	}
	srv := &http.Server{
		Handler: w.guarded(page), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		WriteTimeout: 30 * time.Second,
		ErrorLog:     slog.NewLogLogger(w.log.Handler(), slog.LevelWarn),
	}
	closePage := page.(io.Closer).Close                //nolint:forcetypeassert // web.New says that it is one
	srv.RegisterOnShutdown(func() { _ = closePage() }) // and the streams with it, so Shutdown waits for short answers only
	fmt.Fprintf(w.app.out, "the page is at http://%s%s/\n", listener.Addr(), strings.TrimRight(w.options.RootPath, "/"))
	down := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		down <- srv.Shutdown(bound)
	})
	if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return errors.Join(no("the server ended: %w", err), srv.Close())
	}
	return errors.Join(<-down, srv.Close())
}

// isLoopback reports whether only this machine reaches a host.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// guarded asks for user and password. Without them it answers requests that were sent to this machine by name: another
// site could have a name that leads here, and read the page in a visitor's browser.
func (w *webCommand) guarded(page http.Handler) http.Handler {
	if w.user == "" {
		return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			host, _, err := net.SplitHostPort(r.Host)
			if err != nil {
				host = r.Host
			}
			if !isLoopback(host) {
				http.Error(out, "Without a login this page answers requests for localhost alone, and this one is for another "+
					"name. Behind a proxy set "+webUserEnv+" and "+webPasswordEnv+".", http.StatusMisdirectedRequest)
				return
			}
			page.ServeHTTP(out, r)
		})
	}
	want := sha256.Sum256([]byte(w.user + ":" + w.password))
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		got := sha256.Sum256([]byte(user + ":" + password))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 { // in constant time, which says nothing of either
			out.Header().Set("WWW-Authenticate", `Basic realm="automutex", charset="UTF-8"`)
			http.Error(out, "user or password are wrong", http.StatusUnauthorized)
			return
		}
		page.ServeHTTP(out, r)
	})
}

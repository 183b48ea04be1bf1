package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/loopback"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/unique"
	"github.com/automutex/automutex/web"
	"github.com/automutex/automutex/web/record"
)

// What the environment has of the page: never on the command line, which others see.
const (
	webUserEnv     = "AUTOMUTEX_WEB_USER"
	webPasswordEnv = "AUTOMUTEX_WEB_PASSWORD" //nolint:gosec // the name of a variable
	hashKeysEnv    = "AUTOMUTEX_HASH_KEYS"
)

// webCommand is what the flags of web say.
type webCommand struct {
	app      *app
	listen   string
	root     string
	asynqmon string
	operate  bool
	keys     int
	recorded bool
	user     string
	password string
	log      *slog.Logger
}

func newWeb(a *app) *cobra.Command {
	w := &webCommand{app: a}
	cmd := &cobra.Command{
		Use:   "web [FILE]",
		Short: "Serve the page for operators",
		Long: `Serve a page that shows which keys are contended, who holds them and who waits, live,
until Ctrl-C. With the FILE of the rules the page names the rule of each key. Prometheus finds
the lines of all processes, by rule, at /metrics.

Readers cannot change anything; --operate lets everybody who gets in break locks and so on.
Each action is logged, with the name of the login and the reason that was given.
AUTOMUTEX_WEB_USER and AUTOMUTEX_WEB_PASSWORD in the environment are asked for by the
browser. Without them the page listens on a loopback address only. It speaks plain HTTP:
put a proxy with TLS before it where others can listen in.`,
		Example: `  automutex web automutex.yaml
  AUTOMUTEX_WEB_USER=ops AUTOMUTEX_WEB_PASSWORD=... automutex web --listen :8081 --operate`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exactly(1, "FILE")(cmd, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return w.run(cmd, args) },
	}
	cmd.Flags().StringVar(&w.listen, "listen", "127.0.0.1:8081", "address to serve on, host:port; port 0 takes any")
	cmd.Flags().StringVar(&w.root, "root_path", "", "path at which browsers find the page (/locks), behind a proxy that passes the browser's Host header on")
	cmd.Flags().StringVar(&w.asynqmon, "asynqmon_path", "", "path at which browsers find asynqmon on the same host: tasks link to it")
	cmd.Flags().BoolVar(&w.operate, "operate", false, "offer the actions: break, delete and so on")
	cmd.Flags().BoolVar(&w.recorded, "recorded", false, "show what the recorders of the workers (package web/record) keep in Redis, and add actions to it")
	cmd.Flags().IntVar(&w.keys, "metrics_keys", 0, "how many of the most contended keys /metrics names; they become labels")
	a.conn.needed(cmd)
	return cmd
}

func (w *webCommand) run(cmd *cobra.Command, args []string) error {
	w.user, w.password = os.Getenv(webUserEnv), os.Getenv(webPasswordEnv)
	if err := w.check(); err != nil {
		return err
	}
	ctx := cmd.Context()
	var cfg automutex.Config
	var producers unique.Config
	if len(args) > 0 {
		var err error
		if cfg, producers, err = load(args[0]); err != nil {
			return err
		}
		if !cmd.Flags().Changed("prefix") {
			w.app.conn.prefix = cmp.Or(cfg.Prefix, w.app.conn.prefix)
		}
	}
	rdb, err := w.app.conn.open(ctx)
	if err != nil {
		return err
	}
	var recorder *record.Recorder
	if w.recorded {
		recorder, err = record.New(rdb, record.Options{Prefix: w.app.conn.prefix})
	}
	w.log = slog.New(slog.NewTextHandler(w.app.errs, nil))
	page, wrong := web.New(rdb, web.Options{
		RootPath: w.root, Prefix: w.app.conn.prefix, HashKeys: cmp.Or(cfg.HashKeys, os.Getenv(hashKeysEnv)),
		Rules: cfg.Rules, Unique: producers.Rules, AsynqmonPath: w.asynqmon, MetricsKeys: w.keys, Recorder: recorder,
		Access: w.access, User: w.loggedIn, Audit: w.audit, Logger: w.log,
	})
	if err := errors.Join(err, wrong); err != nil {
		return errors.Join(usage("%w", err), rdb.Close())
	}
	return errors.Join(w.serve(ctx, page), rdb.Close())
}

// check refuses to show the page to a network without a login, and a login that no browser
// can send: basic auth ends the name at the first colon, and has no control characters.
func (w *webCommand) check() error {
	switch {
	case (w.user == "") != (w.password == ""):
		return usage("%s and %s go together: set both, or neither", webUserEnv, webPasswordEnv)
	case strings.Contains(w.user, ":"):
		return usage("%s has a colon, at which browsers end the name: nobody could log in; choose a name without one", webUserEnv)
	case strings.ContainsFunc(w.user, unicode.IsControl):
		return usage("%s has a control character, such as the end of a line: nobody could log in; remove it", webUserEnv)
	case strings.ContainsFunc(w.password, unicode.IsControl):
		return usage("%s has a control character, such as the end of a line: nobody could log in; remove it", webPasswordEnv)
	}
	host, port, err := net.SplitHostPort(w.listen)
	if err != nil || port == "" {
		return usage("--listen %q: want host:port, as in 127.0.0.1:8081", printable.OneLine(w.listen))
	}
	if w.user == "" && !loopback.Is(host) {
		return usage("--listen %s: others could reach that address: set %s and %s in the environment, or listen on 127.0.0.1", printable.OneLine(w.listen), webUserEnv, webPasswordEnv)
	}
	return nil
}

func (w *webCommand) access(*http.Request) web.Access {
	if w.operate {
		return web.AccessOperate
	}
	return web.AccessRead
}

// loggedIn is the name that a request was let in with; empty without a login.
func (w *webCommand) loggedIn(r *http.Request) string {
	if w.user == "" {
		return "" // a name that nobody has checked
	}
	user, _, _ := r.BasicAuth()
	return user
}

// audit logs what an operator did.
func (w *webCommand) audit(a web.Action) {
	args := []any{"action", a.Do, "target", a.Target, "by", a.By, "why", a.Why}
	if a.Err != nil {
		w.log.Warn("automutex: web: an action failed", append(args, "error", a.Err)...)
		return
	}
	w.log.Info("automutex: web: an action was done", append(args, "result", a.Result)...)
}

// serve serves until ctx ends, and closes the page.
func (w *webCommand) serve(ctx context.Context, page http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", w.listen)
	if err != nil {
		return errors.Join(no("cannot listen: %w", err), closePage(page))
	}
	return w.serveOn(ctx, page, listener)
}

func closePage(page http.Handler) error {
	closer, _ := page.(io.Closer) // web.New says that it is one
	return closer.Close()
}

// serveOn serves until ctx ends or the listener fails, and closes the page and the listener.
func (w *webCommand) serveOn(ctx context.Context, page http.Handler, listener net.Listener) error {
	srv := &http.Server{
		Handler: w.guarded(page), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, WriteTimeout: 30 * time.Second,
		ErrorLog: slog.NewLogLogger(slog.NewTextHandler(w.app.errs, nil), slog.LevelWarn),
	}
	fmt.Fprintf(w.app.out, "the page is at http://%s%s/\n", listener.Addr(), strings.TrimRight(w.root, "/"))
	served := make(chan error, 1) // Serve returns once Shutdown was called, or fails
	go func() { served <- srv.Serve(listener) }()
	select {
	case err := <-served:
		return errors.Join(no("the server ended: %w", err), closePage(page), srv.Close())
	case <-ctx.Done():
	}
	// The streams end with the page, so Shutdown waits for short answers only.
	err := closePage(page)
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if shut := srv.Shutdown(bound); shut != nil {
		err = errors.Join(err, shut, srv.Close())
	}
	<-served //nolint:errcheck // http.ErrServerClosed
	return err
}

// guarded asks for user and password. Without them it answers this machine only.
func (w *webCommand) guarded(page http.Handler) http.Handler {
	if w.user == "" {
		return loopback.Only(page)
	}
	wantUser, wantPassword := sha256.Sum256([]byte(w.user)), sha256.Sum256([]byte(w.password))
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		isUser, isPassword := sha256.Sum256([]byte(user)), sha256.Sum256([]byte(password))
		// Both are compared, in constant time, so that the time says nothing of either.
		if subtle.ConstantTimeCompare(isUser[:], wantUser[:])&subtle.ConstantTimeCompare(isPassword[:], wantPassword[:]) != 1 {
			out.Header().Set("WWW-Authenticate", `Basic realm="automutex", charset="UTF-8"`)
			http.Error(out, "user or password are wrong", http.StatusUnauthorized)
			return
		}
		page.ServeHTTP(out, r)
	})
}

package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/hibiken/asynq"
	"github.com/hibiken/asynqmon"
	"github.com/labstack/echo/v4"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/web"
)

// patience is how long a test waits for what should come at once.
const patience = 30 * time.Second

func TestMain(m *testing.M) { redistest.Main(m) }

func inGin(locks http.Handler) http.Handler {
	router := gin.New()
	router.Any("/locks/*view", gin.WrapH(locks))
	return router
}

func inEcho(locks http.Handler) http.Handler {
	router := echo.New()
	router.Any("/locks/*", echo.WrapHandler(locks))
	return router
}

// The page works beside asynqmon in one mux, and in gin and echo: its views, its files, its
// live stream, and no view of the neighbour's.
func TestMounted(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	s := redistest.Real(t)
	prefix := redistest.Name(t)
	locker := lock.New(s.Client(t), lock.Options{Prefix: prefix})
	t.Cleanup(func() {
		if err := locker.Close(); err != nil {
			t.Error(err)
		}
	})
	lease, err := locker.Mutex("held").TryLock(t.Context())
	redistest.Must(t, err)
	t.Cleanup(func() {
		if err := lease.Unlock(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for name, mount := range map[string]func(http.Handler) http.Handler{
		"gin": inGin, "echo": inEcho,
		"asynqmon": func(locks http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/locks/", locks)
			monitor := asynqmon.New(asynqmon.Options{RootPath: "/asynq", RedisConnOpt: asynq.RedisClientOpt{Addr: s.Addr()}})
			t.Cleanup(func() {
				if err := monitor.Close(); err != nil {
					t.Error(err)
				}
			})
			mux.Handle("/asynq/", monitor)
			return mux
		},
	} {
		t.Run(name, func(t *testing.T) {
			locks, err := web.New(s.Client(t), web.Options{RootPath: "/locks", Prefix: prefix, AsynqmonPath: "/asynq"})
			redistest.Must(t, err)
			server := httptest.NewServer(mount(locks))
			t.Cleanup(func() {
				if err := locks.(io.Closer).Close(); err != nil {
					t.Error(err)
				}
				server.Close()
			})
			for path, want := range map[string]string{
				"/locks/": "<bdi>held</bdi>", "/locks/rules": "Rules", "/locks/static/app.css": "{", "/locks/key?key=" + prefix +
					":{held}": "<dt>Held</dt><dd>1</dd>",
			} {
				redistest.Eventually(t, patience, func() bool {
					status, body := fetch(t, server.URL+path)
					return status == http.StatusOK && strings.Contains(body, want)
				}, "%s has %q", path, want)
			}
			if name == "asynqmon" {
				if status, body := fetch(t, server.URL+"/asynq/"); status != http.StatusOK ||
					!strings.Contains(strings.ToLower(body), "asynq") {
					t.Errorf("asynqmon: %d %.200s", status, body)
				}
			}
		})
	}
}

func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	redistest.Must(t, err)
	resp, err := http.DefaultTransport.RoundTrip(req)
	redistest.Must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	redistest.Must(t, err)
	return resp.StatusCode, string(body)
}

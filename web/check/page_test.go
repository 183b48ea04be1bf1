package check

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/web"
)

func quoted(s string) string { return strconv.Quote(s) } // of printable text, as JSON and scripts have it

// world is the page over real tasks: an asynq server whose handlers stay until they are
// let go.
type world struct {
	t       *testing.T
	rdb     redis.UniversalClient
	prefix  string
	queue   string
	client  *asynq.Client
	locker  *lock.Locker
	server  *httptest.Server
	release chan struct{} // closed at the end; handlers return then

	mu      sync.Mutex // guards the rest
	actions []web.Action
	ended   []error // the causes with which handlers were told to end
}

func start(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, rdb: redistest.Real(t).Client(t), prefix: redistest.Name(t), queue: redistest.Name(t), release: make(chan struct{})}
	quiet := slog.New(slog.DiscardHandler)
	rules := []automutex.Rule{{Task: "report", On: []string{"tenant"}, Busy: automutex.Park}}
	guard, err := automutex.New(w.rdb, automutex.Config{Rules: rules, Prefix: w.prefix, Owner: "worker-1:4242", Logger: quiet})
	redistest.Must(t, err)
	w.client = asynq.NewClientFromRedisClient(w.rdb)
	w.locker = lock.New(w.rdb, lock.Options{Prefix: w.prefix, Owner: "somebody", Logger: quiet})
	asynqServer := asynq.NewServerFromRedisClient(w.rdb, guard.ServerConfig(asynq.Config{
		Concurrency: 3, Queues: map[string]int{w.queue: 1}, TaskCheckInterval: redistest.CheckEvery, ShutdownTimeout: patience, LogLevel: asynq.FatalLevel,
	}))
	redistest.Must(t, asynqServer.Start(guard.Middleware(asynq.HandlerFunc(w.handle))))
	handler, err := web.New(w.rdb, web.Options{
		RootPath: "/locks", Prefix: w.prefix, Rules: rules, AsynqmonPath: "/asynq", Logger: quiet,
		Access: func(*http.Request) web.Access { return web.AccessOperate },
		Audit:  func(a web.Action) { w.mu.Lock(); defer w.mu.Unlock(); w.actions = append(w.actions, a) },
	})
	redistest.Must(t, err)
	mux := http.NewServeMux()
	mux.Handle("/locks/", handler)
	w.server = httptest.NewServer(mux)
	t.Cleanup(func() {
		if err := handler.(io.Closer).Close(); err != nil {
			t.Error(err)
		}
		w.server.Close()
		close(w.release)
		closed := make(chan error, 1)
		go func() { closed <- guard.Close(context.Background()) }()
		asynqServer.Shutdown()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if err := w.locker.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) handle(ctx context.Context, _ *asynq.Task) error {
	select {
	case <-w.release:
	case <-ctx.Done():
		w.mu.Lock()
		w.ended = append(w.ended, context.Cause(ctx))
		w.mu.Unlock()
	}
	return nil
}

func (w *world) enqueue(id, tenant string) {
	w.t.Helper()
	task := asynq.NewTask("report", []byte(`{"tenant": `+quoted(tenant)+`, "secret": "payload-text"}`))
	_, err := w.client.Enqueue(task, asynq.Queue(w.queue), asynq.TaskID(id), asynq.Timeout(time.Hour))
	redistest.Must(w.t, err)
}

func (w *world) url(path string) string { return w.server.URL + "/locks/" + path }

func (w *world) keyURL(key string) string { return w.url("key?key=" + url.QueryEscape(key)) }

// Both views show real tasks, renew themselves, and break no rule of the policy; an action
// is asked about, done, and seen by the handler.
func TestPage(t *testing.T) {
	w, b := start(t), open(t)
	key := keys.Key(w.prefix, "report", "acme")
	w.enqueue("first", "acme")
	b.do(chromedp.Navigate(w.url("keys")))
	b.text("report|acme")
	b.text("worker-1:4242")
	b.await(live)
	if got := value[string](b, `document.querySelector("tbody a[href*='/asynq/']").getAttribute("href")`); got != "/asynq/queues/"+w.queue+"/tasks/first" {
		t.Errorf("the task's link is %q", got)
	}
	for _, id := range []string{"second", "third", "fourth", "fifth"} {
		w.enqueue(id, "acme")
	}
	b.text("parked") // three workers: one holds, one waits at most, the others are parked
	b.await(`/\d+ \(\d+ parked\)/.test(document.querySelector("tbody td[data-name='In line']").textContent)`)
	b.nothingWrong()

	b.do(chromedp.Click(chromedp.CSS(`tbody th a`)))
	b.text("worker-1:4242")
	b.text("fifth")
	b.await(live)
	b.nothingWrong()
	if body := value[string](b, "document.documentElement.outerHTML"); strings.Contains(body, "payload-text") {
		t.Error("the page shows a payload")
	}

	b.do(chromedp.Click(chromedp.CSS(`a.button.danger[href*="token="]`)))
	b.text("Take the lock report|acme from 1 holder?")
	b.nothingWrong()
	b.do(chromedp.Click(chromedp.CSS(`main form[method="post"] button`)))
	b.text("The lock was taken from 1 of 1 holder.")
	b.nothingWrong()
	redistest.Eventually(t, patience, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.ended) == 1 }, "the handler is told")
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.actions) != 1 || w.actions[0].Do != "break" || w.actions[0].Target != key || w.actions[0].Err != nil {
		t.Errorf("Audit got %+v", w.actions)
	}
}

// Whatever stands in a key is text, and the page goes on to work.
func TestPage_hostileKeys(t *testing.T) {
	w, b := start(t), open(t)
	hostile := []string{`<script>wrong.push("script")</script>`, `"><img/src=x/onerror=wrong.push("img")>`, `'"&amp;\`, "שלום", `a{{.}}b`, `javascript:wrong.push("link")`}
	for _, tenant := range hostile {
		w.leaseOf(tenant)
	}
	long := w.prefix + ":{" + strings.Repeat("<b>x</b>", 512) + "}"
	redistest.Must(t, w.rdb.Set(context.Background(), long, "a|b|c", 0).Err())
	b.do(chromedp.Navigate(w.url("keys?q=" + url.QueryEscape(`"><script>wrong.push("typed")</script>`))))
	b.text("No lock passes the filter.")
	b.nothingWrong()
	b.do(chromedp.Navigate(w.url("keys")))
	b.text("שלום")
	b.await(live)
	b.nothingWrong()
	if n := value[int](b, `document.querySelectorAll("tbody img, tbody script, tbody b").length`); n != 0 {
		t.Errorf("%d elements came out of keys", n)
	}
	for _, tenant := range hostile {
		b.do(chromedp.Navigate(w.keyURL(keys.Key(w.prefix, "hostile", tenant))))
		b.text("somebody")
		b.nothingWrong()
	}
}

// leaseOf holds a key until the test ends.
func (w *world) leaseOf(part string) {
	w.t.Helper()
	lease, err := w.locker.Mutex("hostile", lock.Parts(part)).TryLock(context.Background())
	redistest.Must(w.t, err)
	w.t.Cleanup(func() {
		if err := lease.Unlock(context.Background()); err != nil {
			w.t.Error(err)
		}
	})
}

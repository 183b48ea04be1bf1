package web

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

const patience = redistest.Patience

func eventually(t testing.TB, is func() bool, what string, args ...any) {
	t.Helper()
	redistest.Eventually(t, patience, is, what, args...)
}

// site is the page, served to a test, on locks of its own.
type site struct {
	t      testing.TB
	rdb    redis.UniversalClient
	prefix string
	locker *lock.Locker // of a worker
	page   *page
	server *httptest.Server
}

// serve makes a page on s. The options get a prefix of their own.
func serve(t testing.TB, s *redistest.Server, o Options) *site {
	t.Helper()
	if o.Prefix == "" {
		o.Prefix = redistest.Name(t)
	}
	o.Logger = slog.New(slog.DiscardHandler)
	rdb := s.Client(t)
	handler, err := New(rdb, o)
	redistest.Must(t, err)
	v := &site{t: t, rdb: rdb, prefix: o.Prefix, page: handler.(*page)}
	v.page.within = timeouts{patience, patience, patience} // on a busy machine all may take long
	v.page.rules.within = patience
	v.locker = lock.New(rdb, lock.Options{Prefix: o.Prefix, Owner: "worker-1:4242", Logger: o.Logger})
	v.server = httptest.NewServer(handler)
	t.Cleanup(func() {
		if err := v.page.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		v.server.Close()
		if err := v.locker.Close(); err != nil {
			t.Errorf("the worker's Close: %v", err)
		}
	})
	return v
}

func onReal(t testing.TB, o Options) *site { t.Helper(); return serve(t, redistest.Real(t), o) }
func onMini(t testing.TB, o Options) *site { t.Helper(); return serve(t, redistest.Mini(t), o) }

func operates(*http.Request) Access { return AccessOperate }

func breakPath(m *lock.Lock) string { return "/locks/do?action=break&key=" + url.QueryEscape(m.Key()) }

// byKey is the worker's lock with that key.
func (v *site) byKey(key string) *lock.Lock {
	v.t.Helper()
	m := v.locker.Mutex("any")
	ref, err := v.page.engine.Ref(key)
	redistest.Must(v.t, err)
	inside.At(m).Request.Ref = ref
	return m
}

// answer is what a browser gets.
type answer struct {
	t      testing.TB
	path   string
	status int
	header http.Header
	body   string
}

// do sends a request, without following redirects.
func (v *site) do(method, path string, body io.Reader, change ...func(*http.Request)) answer {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, v.server.URL+path, body)
	redistest.Must(v.t, err)
	for _, f := range change {
		f(req)
	}
	client := &http.Client{Transport: v.server.Client().Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		v.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		v.t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer{v.t, path, resp.StatusCode, resp.Header, string(text)}
}

func (v *site) get(path string) answer { v.t.Helper(); return v.do(http.MethodGet, path, nil) }

// want holds an answer against its status and texts that are in it.
func (a answer) want(status int, texts ...string) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: status %d, want %d\n%s", a.path, a.status, status, a.body)
	}
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			a.t.Errorf("%s: %q is not in the answer:\n%s", a.path, text, a.body)
		}
	}
	return a
}

// begins holds that the first row of a table has a text.
func (a answer) begins(text string) {
	a.t.Helper()
	_, rows, _ := strings.Cut(a.body, "<tbody>")
	if first, _, found := strings.Cut(rows, "</a>"); !found || !strings.Contains(first, text) {
		a.t.Errorf("%s: %q is not in the first row:\n%s", a.path, text, first)
	}
}

// without holds that texts are not in an answer.
func (a answer) without(texts ...string) answer {
	a.t.Helper()
	for _, text := range texts {
		if strings.Contains(a.body, text) {
			a.t.Errorf("%s: %q is in the answer:\n%s", a.path, text, a.body)
		}
	}
	return a
}

// hold takes a lock until the test ends.
func (v *site) hold(m *lock.Lock) *lock.Lease {
	v.t.Helper()
	lease, err := m.TryLock(context.Background())
	redistest.Must(v.t, err)
	v.t.Cleanup(func() {
		if err := lease.Unlock(context.Background()); err != nil && !errors.Is(err, lock.ErrNotHeld) {
			v.t.Errorf("Unlock: %v", err)
		}
	})
	return lease
}

// wait stands in line for a lock until the test ends.
func (v *site) wait(m *lock.Lock) {
	v.t.Helper()
	before, err := m.Waiting(context.Background())
	redistest.Must(v.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // ends with ctx, or with a lease that it gives back
		defer close(ended)
		if lease, err := m.Lock(ctx); err == nil {
			_ = lease.Unlock(context.Background())
		}
	}()
	v.t.Cleanup(func() { cancel(); <-ended })
	eventually(v.t, func() bool {
		n, err := m.Waiting(context.Background())
		return err == nil && n > before
	}, "%s has another waiter", m.Key())
}

// find asks for a path until a text is in the answer: the list of locks is up to a second old.
func (v *site) find(path, text string) answer {
	v.t.Helper()
	var a answer
	eventually(v.t, func() bool {
		a = v.get(path)
		return strings.Contains(a.body, text)
	}, "%q is in %s", text, path)
	return a
}

func TestMain(m *testing.M) { redistest.Main(m) }

// forget makes an answer too old.
func forget[T any](s *shared[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = time.Time{}
}

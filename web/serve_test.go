package web

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Every answer, errors too, forbids all but the page's own files.
func TestHeaders(t *testing.T) {
	t.Parallel()
	v := onMini(t, Options{})
	for _, path := range []string{"/", "/key?key=x", "/nothing", "/static/app.js", "/static/nothing.js", "/live?view=x"} {
		h := v.get(path).header
		if got := h.Get("Content-Security-Policy"); got != policy ||
			!strings.HasPrefix(got, "default-src 'none'; script-src 'self';") || strings.Contains(got, "unsafe") {
			t.Errorf("%s: Content-Security-Policy %q", path, got)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") == "" {
			t.Errorf("%s: headers %v", path, h)
		}
	}
	broken := httptest.NewRecorder() // a view that cannot be made is an error, and no half page
	v.page.render(broken, http.StatusOK, "keys", struct{ Title string }{})
	if body := broken.Body.String(); broken.Code != http.StatusInternalServerError ||
		!strings.HasPrefix(body, "the page cannot be rendered") {
		t.Errorf("%d %s", broken.Code, body)
	}
	body := v.get("/keys").body
	for _, inline := range []string{"<script>", "onclick", "<style", " style=", "javascript:"} {
		if strings.Contains(body, inline) {
			t.Errorf("%q is in the page", inline)
		}
	}
}

// An address answers a method that it does not have with a 405 that names those it has.
func TestMethods(t *testing.T) {
	t.Parallel()
	v := onMini(t, Options{RootPath: "/locks", Access: operates})
	for path, allow := range map[string]string{
		"/locks/": "GET, HEAD", "/locks/key": "GET, HEAD", "/locks/rules": "GET, HEAD",
		"/locks/live": "GET, HEAD", "/locks/static/app.js": "GET, HEAD", "/locks/do": "GET, HEAD, POST",
	} {
		methods := []string{http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions}
		if !strings.Contains(allow, "POST") {
			methods = append(methods, http.MethodPost)
		}
		for _, method := range methods {
			a := v.do(method, path, nil).want(http.StatusMethodNotAllowed)
			if got := a.header.Get("Allow"); got != allow {
				t.Errorf("%s %s: Allow %q, want %q", method, path, got, allow)
			}
		}
	}
	v.get("/locks/nothing").want(404, "There is no such page.")
	v.do(http.MethodHead, "/locks/rules", nil).want(200)
}

// Access decides each request; without one everybody reads.
func TestAccess(t *testing.T) {
	t.Parallel()
	v := onMini(t, Options{Access: func(r *http.Request) Access {
		switch r.Header.Get("Who") {
		case "operator":
			return AccessOperate
		case "reader":
			return AccessRead
		}
		return AccessNone
	}})
	for _, path := range []string{"/", "/key?key=" + v.prefix + ":{a}", "/live?view=keys", "/static/app.js", "/nothing"} {
		v.get(path).want(403, "You may not see this page.")
	}
	for _, who := range []string{"operator", "reader"} {
		v.do(http.MethodGet, "/", nil, func(r *http.Request) { r.Header.Set("Who", who) }).want(200)
	}
	v.get("/").want(403)
	other := onMini(t, Options{})
	other.get("/").want(200)
}

// At a path of its own, with and without StripPrefix, every link leads to a page.
func TestRootPath(t *testing.T) {
	t.Parallel()
	links := regexp.MustCompile(`(?:href|src|hx-sse:connect|action)="([^"#][^"]*)"`)
	for name, c := range map[string]struct {
		root  string
		mount func(mux *http.ServeMux, page http.Handler)
	}{
		"its own": {"/locks", func(mux *http.ServeMux, page http.Handler) { mux.Handle("/locks/", page) }},
		"its own, with slash": {"/ops/locks/", func(mux *http.ServeMux,
			page http.Handler) {
			mux.Handle("/ops/locks/", page)
		}},
		"stripped": {"/locks", func(mux *http.ServeMux, page http.Handler) {
			mux.Handle("/locks/", http.StripPrefix("/locks", page))
		}},
		"stripped, unknown": {"", func(mux *http.ServeMux, page http.Handler) {
			mux.Handle("/locks/", http.StripPrefix("/locks", page))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			v := onMini(t, Options{RootPath: c.root})
			mux := http.NewServeMux()
			c.mount(mux, v.page)
			v.server.Config.Handler = mux
			at := "/locks/"
			if strings.HasPrefix(c.root, "/ops") {
				at = "/ops/locks/"
			}
			m := v.locker.Mutex("a")
			v.hold(m)
			body := v.find(at+"keys", "<bdi>a</bdi>").want(200).body
			found := 0
			for _, link := range links.FindAllStringSubmatch(body, -1) {
				path := strings.ReplaceAll(link[1], "&amp;", "&")
				if strings.HasPrefix(path, "./") {
					path = at + path[2:]
				}
				if !strings.HasPrefix(path, at) {
					t.Errorf("%s is outside of %s", path, at)
					continue
				}
				if found++; strings.Contains(path, "live?") {
					continue // does not end
				}
				v.get(path).want(200)
			}
			if found < 8 {
				t.Errorf("%d links, want at least 8", found)
			}
			// Without its last slash the page sends the browser to it, with what was asked for.
			want, handler := at+"?waiting=1", http.Handler(v.page)
			if c.root == "" {
				want, handler = "."+want, http.StripPrefix("/locks", handler)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, strings.TrimSuffix(at, "/")+"?waiting=1", nil))
			if got := w.Result().Header.Get("Location"); w.Code != http.StatusPermanentRedirect || got != want {
				t.Errorf("%d to %q, want %q", w.Code, got, want)
			}
		})
	}
}

// Keys, owners, notes and what is typed are text, wherever they stand.
func TestHostileText(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{AsynqmonPath: "/asynq"})
		hostile := `<script>alert(1)</script>"'><img/src=x>` + "\u202e\u0000"
		key := v.prefix + `:{<script>alert(1)</script>"'>&javascript:}`
		v.hold(v.byKey(key))
		labelled := lock.New(v.rdb, lock.Options{Prefix: v.prefix, Owner: hostile})
		defer labelled.Close()
		its, err := labelled.Mutex("labelled", lock.Note(hostile)).TryLock(context.Background())
		redistest.Must(t, err)
		defer its.Unlock(context.Background())
		planted := v.prefix + ":{" + strings.Repeat("<b>"+hostile, 100) + "}" // no lock's key, and 4 kB of it
		if err := v.rdb.Copy(context.Background(), key, planted, 0, true).Err(); err != nil &&
			s.Kind() == redistest.KindReal {
			t.Fatal(err)
		}
		other := v.locker.Mutex("x")
		lease, err := v.byKey(other.Key()).TryLock(context.Background())
		redistest.Must(t, err)
		defer lease.Unlock(context.Background())
		for _, path := range []string{"/", "/keys?q=" + "%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
			"/keys?longer=%3Cscript%3E", "/keys?rule=%22%3E%3Cscript%3E", keyPath(key),
			keyPath(labelled.Mutex("labelled").Key()), keyPath(planted), "/live%3Cscript%3E"} {
			a := v.get(path)
			a.without("<script>alert", "<img", `">`+"<script", "\u202e", "\x00", "<b><script")
		}
		v.find("/keys", "&lt;script&gt;alert(1)").want(200)
		v.get(keyPath(key)).want(200, "&lt;script&gt;alert(1)")
	})
}

// Files are what their packages published, and stay in the browser as long as they are.
func TestAssets_asPublished(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("assets/README.md")
	redistest.Must(t, err)
	rows := regexp.MustCompile(`(?m)^\| (\S+) \| \[.* ([0-9a-f]{64}) \|$`).FindAllStringSubmatch(string(list), -1)
	if len(rows) != 4 {
		t.Fatalf("%d files are listed, want 4", len(rows))
	}
	for _, row := range rows {
		body, err := os.ReadFile("assets/" + row[1])
		redistest.Must(t, err)
		if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != row[2] {
			t.Errorf("%s is not what its package publishes: SHA-256 %x", row[1], sum)
		}
	}
	v := onMini(t, Options{})
	a := v.get("/static/app.css?v="+versions["app.css"]).want(200, "color-scheme")
	if got := a.header.Get("Cache-Control"); !strings.Contains(got, "immutable") {
		t.Errorf("Cache-Control %q of a file with its version", got)
	}
	v.do(http.MethodGet, "/static/app.css", nil, func(r *http.Request) {
		r.Header.Set("If-None-Match", a.header.Get("ETag"))
	}).want(304)
	v.get("/static/htmx.LICENSE").want(404)
	v.get("/static/..%2fweb.go").want(404)
}

// stream reads a live view; each message comes on the channel, which ends with the stream.
func (v *site) stream(ctx context.Context, path string) <-chan string {
	v.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.server.URL+path, nil)
	redistest.Must(v.t, err)
	resp, err := v.server.Client().Do(req)
	redistest.Must(v.t, err)
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		v.t.Fatalf("%s: %s, %s", path, resp.Status, resp.Header.Get("Content-Type"))
	}
	messages := make(chan string)
	go func() { // ends with the body, which ends with ctx or the stream
		defer close(messages)
		defer resp.Body.Close()
		var b strings.Builder
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if line := lines.Text(); line != "" {
				b.WriteString(strings.TrimPrefix(line, "data: ") + "\n")
				continue
			}
			select {
			case messages <- b.String():
			case <-ctx.Done():
				return
			}
			b.Reset()
		}
	}()
	return messages
}

// await reads messages until one has the text.
func await(t *testing.T, messages <-chan string, text string) {
	t.Helper()
	deadline := time.After(patience)
	last := ""
	for {
		select {
		case m, ok := <-messages:
			if !ok {
				t.Fatalf("the stream ended before %q came; last:\n%s", text, last)
			}
			if last = m; strings.Contains(m, text) {
				return
			}
		case <-deadline:
			t.Fatalf("%q did not come; last:\n%s", text, last)
		}
	}
}

// What happens to the locks comes to the viewers of both views by itself.
func TestLive(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		m := v.locker.Mutex("a")
		keys := v.stream(ctx, "/live?view=keys")
		key := v.stream(ctx, "/live?view=key&key="+m.Key())
		await(t, keys, "No lock is held or waited for.")
		await(t, key, "Nobody holds this lock.")
		lease := v.hold(m)
		await(t, keys, "<bdi>a</bdi>")
		await(t, key, "worker-1:4242")
		v.wait(m)
		await(t, keys, "<b>1</b> in line")
		await(t, key, "<dt>In line</dt><dd>1</dd>")
		redistest.Must(t, lease.Unlock(context.Background()))
	})
}

// goneBrowser is a connection that takes nothing.
type goneBrowser struct{ *httptest.ResponseRecorder }

func (goneBrowser) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// Streams are bounded, and make room when they end: HEAD, which link checkers send, takes none; a browser that is gone
// loses its own at the first message; and Close ends all of them, so that a server can shut down.
func TestLive_ends(t *testing.T) {
	t.Parallel()
	v := onMini(t, Options{})
	if a := v.do(http.MethodHead, "/live?view=keys", nil).want(200); a.header.Get("Content-Type") != eventStream {
		t.Errorf("Content-Type %q", a.header.Get("Content-Type"))
	}
	v.page.ServeHTTP(goneBrowser{httptest.NewRecorder()}, httptest.NewRequestWithContext(t.Context(), http.MethodGet,
		"/live?view=keys", nil))
	eventually(t, func() bool { return len(v.page.streams) == 0 }, "no stream is open")
	for range maxStreams {
		v.page.streams <- struct{}{}
	}
	v.get("/live?view=keys").want(503, "Too many live views")
	<-v.page.streams
	messages := v.stream(context.Background(), "/live?view=keys")
	await(t, messages, "locks")
	redistest.Must(t, v.page.Close())
	deadline := time.After(patience)
	for open := true; open; {
		select {
		case _, open = <-messages:
		case <-deadline:
			t.Fatal("the stream goes on")
		}
	}
	v.get("/").want(503, "closed")
}

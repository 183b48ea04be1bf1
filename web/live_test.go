package web

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// stream reads a live view; each message comes on the channel, which ends with the stream.
func (v *site) stream(ctx context.Context, path string) <-chan string {
	v.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.server.URL+path, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	resp, err := v.server.Client().Do(req)
	if err != nil {
		v.t.Fatal(err)
	}
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

// Close ends the streams at once, so that a server can shut down; afterwards the page
// says that it is closed.
func TestLive_close(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Mini(t), Options{})
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

// Streams are bounded; one that ends makes room.
func TestLive_bounded(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Mini(t), Options{})
	for range maxStreams {
		v.page.streams <- struct{}{}
	}
	v.get("/live?view=keys").want(503, "Too many live views")
	<-v.page.streams
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	await(t, v.stream(ctx, "/live?view=keys"), "locks")
}

// HEAD of a stream, which link checkers send, ends at once and takes no place of a viewer.
func TestLive_head(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Mini(t), Options{})
	if a := v.do(http.MethodHead, "/live?view=keys", nil).want(200); a.header.Get("Content-Type") != eventStream {
		t.Errorf("Content-Type %q", a.header.Get("Content-Type"))
	}
	redistest.Eventually(t, patience, func() bool { return len(v.page.streams) == 0 }, "no stream is open")
}

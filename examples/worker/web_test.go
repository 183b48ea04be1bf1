package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// output is what a run has told so far.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// With -web the page shows the locks of the tasks while they run, and ends with the demo.
func TestRun_web(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out output
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"-web", "127.0.0.1:0"}, strings.NewReader(""), &out, io.Discard) }()
	var url string
	redistest.Eventually(t, patience, func() bool {
		found := regexp.MustCompile(`is at (http://127\.0\.0\.1:\d+/) until`).FindStringSubmatch(out.String())
		if found != nil {
			url = found[1]
		}
		return found != nil
	}, "the demo says where the page is: %s", &out)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path, host string) (int, string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := client.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return 0, err.Error()
		}
		return resp.StatusCode, string(body)
	}
	redistest.Eventually(t, patience, func() bool {
		status, body := get("?waiting=1", "")
		return status == http.StatusOK && strings.Contains(body, "<bdi>repository|"+repositories[0]+"</bdi>")
	}, "the page shows the lock of the busiest repository")
	if status, body := get("rules", ""); status != http.StatusOK || !strings.Contains(body, "action=pause") {
		t.Errorf("the rules: %d\n%s", status, body)
	}
	if status, _ := get("", "evil.example.com"); status != http.StatusMisdirectedRequest {
		t.Errorf("under another host's name: status %d", status)
	}
	cancel()
	if exit := <-ended; exit != exitOK {
		t.Errorf("exit %d\n%s", exit, &out)
	}
	if status, _ := get("", ""); status != 0 {
		t.Errorf("the page answers %d after the end", status)
	}
}

// A page whose listener fails ends the demo with that error, and is closed.
func TestOperators_listenerFails(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	page := &closed{}
	o := &operators{page: page, served: make(chan struct{}), failed: make(chan error, 1), server: &http.Server{ReadHeaderTimeout: patience}}
	go o.serve(listener, end) // ends with the listener
	if err := o.failure(); err != nil {
		t.Errorf("at the start: %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(patience):
		t.Fatal("the demo goes on")
	}
	if err := o.failure(); !errors.Is(err, net.ErrClosed) || !page.yes.Load() {
		t.Errorf("the demo ends with %v, want the listener's error; the page is closed: %v", err, page.yes.Load())
	}
	o.close()
	if err := (*operators)(nil).failure(); err != nil {
		t.Errorf("without a page: %v", err)
	}
}

// closed notes that it was closed.
type closed struct{ yes atomic.Bool }

func (c *closed) Close() error { c.yes.Store(true); return nil }

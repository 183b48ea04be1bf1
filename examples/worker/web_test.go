package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/automutex/automutex/examples/internal/demo"
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
	t.Parallel()
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
		redistest.Must(t, err)
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
		return status == http.StatusOK && strings.Contains(body, "<bdi>repository|"+busiest+"</bdi>")
	}, "the page shows the lock of the busiest repository")
	if status, body := get("rules", ""); status != http.StatusOK || !strings.Contains(body, "action=pause") {
		t.Errorf("the rules: %d\n%s", status, body)
	}
	if status, _ := get("", "evil.example.com"); status != http.StatusMisdirectedRequest {
		t.Errorf("under another host's name: status %d", status)
	}
	cancel()
	if exit := <-ended; exit != demo.ExitOK {
		t.Errorf("exit %d\n%s", exit, &out)
	}
	if status, _ := get("", ""); status != 0 {
		t.Errorf("the page answers %d after the end", status)
	}
}

package main

import (
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
)

// lines is an io.Writer for the handlers, which write at the same time.
type lines struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

var _ io.Writer = (*lines)(nil)

// The steps of each order are done in the order in which they were enqueued, and the webhook that fails twice
// keeps what was enqueued after it waiting.
func TestRun(t *testing.T) {
	var out lines
	if err := run(nil, &out); err != nil {
		t.Fatal(err)
	}
	var first, second []string
	for line := range strings.Lines(out.text.String()) {
		kind, rest, _ := strings.Cut(line, " ")
		if strings.Contains(rest, "fails") {
			kind += " fails"
		}
		if strings.Contains(rest, `"order_id":1`) {
			first = append(first, kind)
		} else {
			second = append(second, kind)
		}
	}
	if want := []string{"order:pay", "order:webhook fails", "order:webhook fails", "order:webhook", "order:refund",
		"order:webhook"}; !slices.Equal(first, want) {
		t.Errorf("order 1: %q, want %q", first, want)
	}
	if want := []string{"order:pay", "order:webhook"}; !slices.Equal(second, want) {
		t.Errorf("order 2: %q, want %q", second, want)
	}
}

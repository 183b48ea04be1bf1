package demo

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const patience = redistest.Patience

// A page whose listener fails ends the demo with that error, and is closed.
func TestOperators_listenerFails(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	redistest.Must(t, err)
	page := &closed{}
	o := &operators{page: page, served: make(chan error, 1), server: &http.Server{ReadHeaderTimeout: patience}}
	go o.serve(listener, end) // ends with the listener
	if err := o.failure(); err != nil {
		t.Errorf("at the start: %v", err)
	}
	redistest.Must(t, listener.Close())
	select {
	case <-ctx.Done():
	case <-time.After(patience):
		t.Fatal("the demo goes on")
	}
	if err := o.failure(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the demo ends with %v, want the listener's error", err)
	}
	if o.close(); !page.yes.Load() {
		t.Error("the page is not closed")
	}
	if err := (*operators)(nil).failure(); err != nil {
		t.Errorf("without a page: %v", err)
	}
}

// closed notes that it was closed.
type closed struct{ yes atomic.Bool }

func (c *closed) Close() error { c.yes.Store(true); return nil }

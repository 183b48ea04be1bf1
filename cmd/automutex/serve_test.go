package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/web"
)

// A listener that fails ends the command with its error, and a listener that cannot be opened
// too; the page is closed, with the stream of somebody who watches.
func TestWeb_listenerFails(t *testing.T) {
	t.Parallel()
	newPage := func() http.Handler {
		page, err := web.New(redistest.Real(t).Client(t), web.Options{Prefix: redistest.Name(t), Logger: slog.New(slog.DiscardHandler)})
		redistest.Must(t, err)
		return page
	}
	isClosed := func(page http.Handler) {
		t.Helper()
		answer := httptest.NewRecorder()
		page.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
		if answer.Code != http.StatusServiceUnavailable {
			t.Errorf("the page answers %d, and was not closed", answer.Code)
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	redistest.Must(t, err)
	page := newPage()
	w := &webCommand{app: &app{out: io.Discard, errs: io.Discard}, listen: listener.Addr().String()}
	ended := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() { ended <- w.serveOn(ctx, page, listener) }() // ends with the listener, or with ctx
	live, err := http.Get("http://" + w.listen + "/live?view=keys")
	redistest.Must(t, err)
	defer live.Body.Close()

	other := newPage()
	if err := w.serve(ctx, other); err == nil {
		t.Error("an address that is taken was listened on")
	}
	isClosed(other)

	redistest.Must(t, listener.Close())
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the command ends with %v, want the listener's error", err)
	}
	isClosed(page)
	if _, err := io.Copy(io.Discard, live.Body); err != nil && ctx.Err() != nil {
		t.Errorf("the stream goes on: %v", err)
	}
}

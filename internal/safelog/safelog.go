// Package safelog keeps a user's slog.Handler from breaking what logs with it: a
// handler that panics would take down a goroutine that owns leases.
package safelog

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
)

// stderr is where a panic of a handler is written to; tests replace it.
var stderr io.Writer = os.Stderr

// New returns a Logger that logs as l does, slog.Default() where l is nil. Should
// l's handler panic, the record is written to standard error, with the stack of
// the panic, and the caller goes on.
func New(l *slog.Logger) *slog.Logger {
	if l == nil {
		l = slog.Default()
	}
	if _, safe := l.Handler().(handler); safe {
		return l
	}
	return slog.New(handler{l.Handler()})
}

// handler recovers from the panics of another one.
type handler struct{ inner slog.Handler }

// Enabled answers false when the inner handler panics.
func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	defer rescue("Enabled", level.String())
	return h.inner.Enabled(ctx, level)
}

func (h handler) Handle(ctx context.Context, record slog.Record) error {
	defer rescue("Handle", record.Message)
	return h.inner.Handle(ctx, record)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with("WithAttrs", func() slog.Handler { return h.inner.WithAttrs(attrs) })
}

func (h handler) WithGroup(name string) slog.Handler {
	return h.with("WithGroup", func() slog.Handler { return h.inner.WithGroup(name) })
}

// with gives what derive makes, or h itself when that panics.
func (h handler) with(method string, derive func() slog.Handler) slog.Handler {
	derived := h
	func() {
		defer rescue(method, "")
		derived = handler{derive()}
	}()
	return derived
}

// rescue is deferred around a call of a handler.
func rescue(method, about string) {
	if p := recover(); p != nil {
		_, _ = fmt.Fprintf(stderr, "automutex: %s of the Logger's handler panicked on %q: %v\n%s", method, about, p, debug.Stack())
	}
}

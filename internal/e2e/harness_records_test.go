package e2e

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// events collects what a guard observes.
type events struct {
	mu   sync.Mutex
	seen []automutex.Event
}

func (e *events) observe(_ context.Context, event automutex.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = append(e.seen, event)
}

// list gives the events of these kinds so far, of all kinds when there is none.
func (e *events) list(kinds ...automutex.EventKind) []automutex.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var found []automutex.Event
	for _, event := range e.seen {
		if len(kinds) == 0 || slices.Contains(kinds, event.Kind) {
			found = append(found, event)
		}
	}
	return found
}

// clear forgets what was seen.
func (e *events) clear() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = nil
}

// kindsOf gives the kinds of the events of one task, in order.
func (e *events) kindsOf(id string) (kinds []automutex.EventKind) {
	for _, event := range e.list() {
		if event.TaskID == id {
			kinds = append(kinds, event.Kind)
		}
	}
	return kinds
}

// awaitEvent waits for the first event of a kind of one task.
func (r *rig) awaitEvent(kind automutex.EventKind, id string) (found automutex.Event) {
	r.t.Helper()
	redistest.Eventually(r.t, patience, func() bool {
		for _, event := range r.seen.list(kind) {
			if event.TaskID == id {
				found = event
				return true
			}
		}
		return false
	}, "event %q of task %s", kind, id)
	return found
}

// logged is a slog.Handler that keeps what is logged.
type logged struct {
	mu      sync.Mutex
	records []slog.Record
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }
func (l *logged) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logged) WithGroup(string) slog.Handler            { return l }

func (l *logged) Handle(_ context.Context, record slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, record)
	return nil
}

func newLogger(l *logged) *slog.Logger { return slog.New(l) }

// text gives the lines at or above a level.
func (l *logged) text(level slog.Level) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, record := range l.records {
		if record.Level >= level {
			b.WriteString(record.Level.String() + " " + record.Message)
			record.Attrs(func(a slog.Attr) bool {
				b.WriteString(" " + a.String())
				return true
			})
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// silent is an asynq.Logger.
type silent struct{}

func (silent) Debug(...any) {}
func (silent) Info(...any)  {}
func (silent) Warn(...any)  {}
func (silent) Error(...any) {}
func (silent) Fatal(...any) {}

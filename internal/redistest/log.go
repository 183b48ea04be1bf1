package redistest

import (
	"context"
	"log/slog"
	"strings"
	"sync"
)

// Silent is an asynq.Logger that says nothing.
type Silent struct{}

// Debug drops its arguments, as all of these do.
func (Silent) Debug(...any) {}
func (Silent) Info(...any)  {}
func (Silent) Warn(...any)  {}
func (Silent) Error(...any) {}
func (Silent) Fatal(...any) {}

// Log keeps what is logged. Safe for concurrent use.
type Log struct {
	mu      sync.Mutex // guards records
	records []slog.Record
}

// Logger logs into it.
func (l *Log) Logger() *slog.Logger { return slog.New((*logHandler)(l)) }

// Text is a line for each record at or above a level: level, message, attributes.
func (l *Log) Text(level slog.Level) string {
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

// String is all that is not for debugging.
func (l *Log) String() string { return l.Text(slog.LevelInfo) }

// logHandler is a Log as slog.Handler. Nobody here makes loggers with attributes of their own.
type logHandler Log

func (l *logHandler) Enabled(context.Context, slog.Level) bool { return true }
func (l *logHandler) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logHandler) WithGroup(string) slog.Handler            { return l }

func (l *logHandler) Handle(_ context.Context, record slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, record.Clone())
	return nil
}

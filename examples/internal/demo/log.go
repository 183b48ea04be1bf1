package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/automutex/automutex"
)

// newLog is where guard and asynq log: to stderr, and only what needs
// attention.
func newLog(stderr io.Writer) *slog.Logger {
	return slog.New(quiet{slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})})
}

// quiet leaves out the line that the guard logs for each task without a key:
// the demo tells at the end which tasks were archived, and why.
type quiet struct{ slog.Handler }

// Handle implements slog.Handler.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	unkeyed := false
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			_, unkeyed = errors.AsType[*automutex.KeyError](err)
		}
		return !unkeyed
	})
	if unkeyed {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

// asynqLog lets asynq log through slog.
type asynqLog struct{ log *slog.Logger }

func (l asynqLog) Debug(args ...any) { l.log.Debug("asynq: " + fmt.Sprint(args...)) }
func (l asynqLog) Info(args ...any)  { l.log.Info("asynq: " + fmt.Sprint(args...)) }
func (l asynqLog) Warn(args ...any)  { l.log.Warn("asynq: " + fmt.Sprint(args...)) }
func (l asynqLog) Error(args ...any) { l.log.Error("asynq: " + fmt.Sprint(args...)) }
func (l asynqLog) Fatal(args ...any) { l.log.Error("asynq: " + fmt.Sprint(args...)) }

// sharedWriter lets many goroutines write to one stream, a call at a time.
type sharedWriter struct {
	mu sync.Mutex // guards w
	w  io.Writer
}

func (s *sharedWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

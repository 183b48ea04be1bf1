package safelog

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
)

// explosive panics wherever it can.
type explosive struct{}

func (explosive) Enabled(context.Context, slog.Level) bool  { panic("enabled") }
func (explosive) Handle(context.Context, slog.Record) error { panic("handle") }
func (explosive) WithAttrs([]slog.Attr) slog.Handler        { panic("attrs") }
func (explosive) WithGroup(string) slog.Handler             { panic("group") }

// enabled is explosive, but says that it is enabled.
type enabled struct{ explosive }

func (enabled) Enabled(context.Context, slog.Level) bool { return true }

func TestNew_handlerPanics(t *testing.T) {
	var out bytes.Buffer
	old := stderr
	stderr = &out
	defer func() { stderr = old }()
	for _, h := range []slog.Handler{explosive{}, enabled{}} {
		l := New(slog.New(h))
		l.With("a", 1).WithGroup("g").Warn("the message")
	}
	for _, want := range []string{"Enabled", "Handle", "WithAttrs", "WithGroup", "the message", "safelog_test.go"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in %s", want, out.String())
		}
	}
}

func TestNew_logsAsBefore(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{AddSource: true, Level: slog.LevelWarn})))
	if New(l) != l {
		t.Error("a safe Logger is wrapped again")
	}
	l.Info("too quiet")
	l.With("a", 1).WithGroup("g").Warn("loud", "b", 2)
	for _, want := range []string{"loud", "a=1", "g.b=2", "safelog_test.go"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in %s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "too quiet") {
		t.Errorf("the level is lost: %s", out.String())
	}
	if New(nil).Handler().(handler).inner != slog.Default().Handler() {
		t.Error("no Logger is not the default one")
	}
}

package automutextest

import (
	"errors"
	"strings"
	"testing"

	"github.com/automutex/automutex"
)

func TestPause(t *testing.T) {
	t.Parallel()
	g := New(t, turns(busy(automutex.Skip)))
	server := Serve(t, g, g.Middleware(returns(nil)))
	resume := Pause(t, g, "work")
	task := server.Enqueue(t, work(one))
	task.Becomes(t, HandedBack)
	var e *automutex.BusyError
	if err := g.run(work(one)); !errors.As(err, &e) || e.Reason != "paused" || !strings.Contains(err.Error(), t.Name()) {
		t.Errorf("got %v, want who paused it", err)
	}
	resume()
	resume()
	task.Again(t)
	task.Becomes(t, Done)
}

func TestPause_mistake(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	if got := record(t, func(t testing.TB) { Pause(t, g, "wo{rk") }); !strings.Contains(got, "a target is a scope") {
		t.Errorf("got %q", got)
	}
}

package automutextest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// run runs a task through the guard, outside of asynq.
func (g *Guard) run(task *asynq.Task) error {
	return g.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })).
		ProcessTask(context.Background(), task)
}

func TestHold(t *testing.T) {
	t.Parallel()
	g := New(t, turns(busy(automutex.Fail)))
	release := Hold(t, g, work(one))

	var e *automutex.BusyError
	if err := g.run(work(one)); !errors.As(err, &e) {
		t.Fatalf("the key is not busy: %v", err)
	}
	if !strings.HasPrefix(e.Holder, "the Hold at hold_test.go:") {
		t.Errorf("the holder is %q", e.Holder)
	}
	if err := g.run(work(two)); err != nil {
		t.Errorf("another key is busy: %v", err)
	}
	release()
	release()
	if err := g.run(work(one)); err != nil {
		t.Errorf("released, and busy: %v", err)
	}
	Hold(t, g, work(one))
}

func TestHold_endsWithTheTest(t *testing.T) {
	t.Parallel()
	g := New(t, turns(busy(automutex.Fail)))
	if got := record(t, func(t testing.TB) { Hold(t, g, work(one)) }); got != "" {
		t.Fatal(got)
	}
	if err := g.run(work(one)); err != nil {
		t.Error(err)
	}
}

// A key that is held fails Hold at once, whatever the rule does with busy tasks, and
// nothing more is held then.
func TestHold_heldKey(t *testing.T) {
	t.Parallel()
	for _, policy := range []automutex.Policy{automutex.Retry, automutex.Skip, automutex.Allow, automutex.Park} {
		g := New(t, turns(busy(policy), func(r *automutex.Rule) { r.Wait = time.Hour }))
		Hold(t, g, work(one))
		fails(t, func(t testing.TB) { Hold(t, g, work(one)) },
			"nothing to hold", `rule "turns"`, "automutex:{work|1}", "held by the Hold at hold_test.go:")
	}

	g := New(t, automutex.Config{Rules: []automutex.Rule{
		{Task: "transfer", Name: "from", Scope: "account", On: []string{"from"}},
		{Task: "transfer", Name: "to", Scope: "account", On: []string{"to"}},
	}})
	Hold(t, g, asynq.NewTask("transfer", []byte(`{"from": "y", "to": "z"}`)))
	fails(t, func(t testing.TB) { Hold(t, g, asynq.NewTask("transfer", []byte(`{"from": "x", "to": "z"}`))) }, "{account|z}")
	Hold(t, g, asynq.NewTask("transfer", []byte(`{"from": "w", "to": "x"}`)))
}

func TestHold_limit(t *testing.T) {
	t.Parallel()
	g := New(t, turns(busy(automutex.Fail), func(r *automutex.Rule) { r.Limit = 2 }))
	Hold(t, g, work(one))
	if err := g.run(work(one)); err != nil {
		t.Errorf("one of two slots is held, and the lock is busy: %v", err)
	}
	Hold(t, g, work(one))
	if err := g.run(work(one)); !errors.Is(err, automutex.ErrBusy) {
		t.Errorf("both slots are held, and the lock is not busy: %v", err)
	}
	fails(t, func(t testing.TB) { Hold(t, g, work(one)) }, "nothing to hold")
}

// A Hold is no run: no cooldown comes of it, and the test's own observer is not
// told.
func TestHold_isNoRun(t *testing.T) {
	t.Parallel()
	cfg := turns(busy(automutex.Fail), func(r *automutex.Rule) { r.Cooldown = time.Hour })
	events := 0
	cfg.Observe = func(context.Context, automutex.Event) { events++ }
	g := New(t, cfg)
	release := Hold(t, g, work(one))
	if err := g.run(work(one)); !errors.Is(err, automutex.ErrBusy) || events != 1 {
		t.Errorf("got %v and %d events", err, events)
	}
	release()
	if err := g.run(work(one)); err != nil {
		t.Error(err)
	}
}

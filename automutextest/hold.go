package automutextest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// errReleased is what the handler of a Hold returns: with a success the rule's
// Cooldown would begin.
var errReleased = errors.New("automutextest: released")

// Hold takes the locks of a task, as its handler would, until release is called or
// the test ends. When release returns the locks are free, or another task has them. release
// may be called more than once.
//
// With a Limit above 1 Hold takes one of the slots; call it Limit times to take all. If a
// lock has no free slot, Hold fails the test at once, whatever the rule's Wait and policy.
// The holder's label is the line of the test that called Hold.
func Hold(tb testing.TB, g *Guard, task *asynq.Task) (release func()) {
	tb.Helper()
	g.explain(tb, "Hold", task)
	where := "a Hold"
	if _, file, line, ok := runtime.Caller(1); ok {
		where = fmt.Sprintf("the Hold at %s:%d", filepath.Base(file), line)
	}
	holder := g.holder(tb, "Hold", where)
	held, let, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	handler := holder.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		close(held)
		<-let
		return errReleased
	}))
	// Ends when let is closed, which the end of the test sees to, or without a lock.
	go func() { ended <- handler.ProcessTask(context.Background(), task) }()
	select {
	case <-held:
	case err := <-ended:
		_ = holder.Close(context.Background()) // nothing is under way
		tb.Fatalf("automutextest: Hold: nothing to hold: %v", err)
	}
	release = sync.OnceFunc(func() {
		close(let)
		if err := <-ended; !errors.Is(err, errReleased) {
			tb.Errorf("automutextest: Hold: %v", err)
		}
		_ = holder.Close(context.Background()) // nothing is under way
	})
	tb.Cleanup(release)
	return release
}

// holder makes a Guard of the same locks, that never waits and has nothing to tell.
func (g *Guard) holder(tb testing.TB, what, owner string) *automutex.Guard {
	tb.Helper()
	cfg := g.cfg
	cfg.Owner, cfg.Observe, cfg.Logger, cfg.MaxWaiting = owner, nil, slog.New(slog.DiscardHandler), 0
	cfg.Rules = slices.Clone(cfg.Rules)
	for i := range cfg.Rules {
		rule := &cfg.Rules[i]
		rule.Busy, rule.Wait, rule.MaxHold, rule.Cooldown = automutex.Fail, 0, 0, 0
	}
	holder, err := automutex.New(g.rdb, cfg)
	if err != nil {
		tb.Fatalf("automutextest: %s: %v", what, err)
	}
	return holder
}

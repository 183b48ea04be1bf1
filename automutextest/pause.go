package automutextest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex"
)

// Pause pauses a scope ("report") or a key ("report|acme"), as an operator does with automutex
// pause, until resume is called or the test ends. The pause is in force when Pause returns.
// Until resume, tasks return to asynq without spending an attempt, whatever the policy of
// their rule: they become [HandedBack]. After resume, [Task.Again] runs them. A parked task
// runs by itself. resume may be called more than once.
func Pause(tb testing.TB, g *Guard, target string) (resume func()) {
	tb.Helper()
	if err := g.Controls().Pause(context.Background(), target, time.Time{}, "the test "+tb.Name()); err != nil {
		tb.Fatalf("automutextest: Pause: %v", err)
	}
	resume = sync.OnceFunc(func() {
		tb.Helper()
		if err := g.Controls().Resume(context.Background(), target); err != nil && !errors.Is(err, automutex.ErrClosed) {
			tb.Errorf("automutextest: Pause: %v", err)
		}
	})
	tb.Cleanup(resume)
	return resume
}

package documented

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// What the guide says under "Pause and limit" of a repair calls its function when every process obeys the pause and the
// tenant's running report has ended, and resumes afterwards. The tenant's name is one
// that stands escaped in its key.
func TestGuide_repairWaitsForRunningTasks(t *testing.T) {
	t.Parallel()
	const tenant = "50% |~acme"
	s := redistest.Mini(t)
	guard, err := automutex.New(s.Client(t), automutex.Config{
		Logger: slog.New(slog.DiscardHandler),
		Rules:  []automutex.Rule{{Task: "report:", Scope: "report", On: []string{"tenant.id"}, Limit: 3}},
	})
	redistest.Must(t, err)
	t.Cleanup(func() { _ = guard.Close(context.Background()) })
	quiet := lock.Options{Logger: slog.New(slog.DiscardHandler)}
	repairer, elsewhere := lock.New(s.Client(t), quiet), lock.New(s.Client(t), quiet)
	t.Cleanup(func() { _, _ = repairer.Close(), elsewhere.Close() })
	report := elsewhere.Semaphore("report", 3, lock.Parts(tenant))
	running, err := report.TryLock(t.Context())
	redistest.Must(t, err)

	var ended, called atomic.Bool
	begun, failed, done := time.Now(), errors.New("f failed"), make(chan error, 1)
	go func() {
		done <- repair(t.Context(), guard, repairer, tenant, func() error {
			called.Store(true)
			if took := time.Since(begun); took < lock.ControlDelay {
				t.Errorf("f was called %s after the pause: other processes obey within %s", took, lock.ControlDelay)
			}
			if !ended.Load() {
				t.Error("f was called while a report of the tenant was running")
			}
			return failed
		})
	}()
	redistest.Eventually(t, redistest.Patience, func() bool {
		lease, err := report.TryLock(t.Context())
		if err == nil {
			err = lease.Unlock(t.Context())
		}
		var busy *lock.BusyError
		return errors.As(err, &busy) && busy.Reason == lock.ReasonPaused
	}, "the pause, in another process")
	redistest.Eventually(t, redistest.Patience, func() bool { return called.Load() || time.Since(begun) > lock.ControlDelay+time.Second }, "the time that a change takes")
	ended.Store(true)
	if err := running.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, failed) {
		t.Errorf("repair: %v, want the error of f", err)
	}
	if list, err := guard.Controls().List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("left in force: %v, %v", list, err)
	}
}

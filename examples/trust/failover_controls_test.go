package trust

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A hold that was answered with MinReplicas 1 survives the death of the master at once
// after it: nobody starts after the failover until it is over, or an operator ends it.
func TestSentinel_hold(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	master := redistest.StartReal(t)
	redistest.StartReplica(t, master)
	watch := redistest.StartSentinels(t, master, 1)
	options := lock.Options{Prefix: redistest.Name(t), Logger: slog.New(slog.DiscardHandler), MinReplicas: 1}
	holder := lock.New(watch.Client(t), options)
	options.MinReplicas = 0 // there is no replica after the failover
	comes := lock.New(watch.Client(t), options)
	defer func() { _, _ = holder.Close(), comes.Close() }()
	lease, err := holder.Semaphore("report", 2).TryLock(t.Context())
	redistest.Must(t, err)
	redistest.Must(t, inner.CloseGate(t.Context(), lease, time.Hour))
	old := watch.Master(t)
	master.Kill(t)
	redistest.Eventually(t, 3*crowdSoon, func() bool { now := watch.Master(t); return now != "" && now != old }, "another master")
	m := comes.Semaphore("report", 2)
	redistest.Eventually(t, crowdSoon, func() bool {
		lease, err := m.TryLock(t.Context())
		if err == nil {
			_ = lease.Unlock(t.Context())
			t.Fatal("taken after the failover, although it is on hold")
		}
		var busy *lock.BusyError
		return errors.As(err, &busy) && busy.Reason == lock.ReasonClosed && busy.ExpiresIn > 30*time.Minute
	}, "an answer after the failover")
	if _, err := m.BreakAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, crowdSoon, func() bool {
		lease, err := m.TryLock(t.Context())
		return err == nil && lease.Unlock(t.Context()) == nil
	}, "the lock after the hold was ended")
}

// A pause that a replica has survives the death of the master: nobody gets the lock
// after the failover, neither who knew of the pause nor who comes new, until it is
// resumed.
func TestSentinel_pause(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	master := redistest.StartReal(t)
	redistest.StartReplica(t, master)
	watch := redistest.StartSentinels(t, master, 1)
	rdb := watch.Client(t)
	options := lock.Options{Prefix: redistest.Name(t), Logger: slog.New(slog.DiscardHandler)}
	knows, comes := lock.New(rdb, options), lock.New(watch.Client(t), options)
	defer func() { _, _ = knows.Close(), comes.Close() }()
	redistest.Must(t, knows.Controls().Pause(t.Context(), "report", time.Time{}, "repair"))
	if n, err := rdb.Wait(t.Context(), 1, 10*time.Second).Result(); n < 1 || err != nil {
		t.Fatalf("%d replicas have the pause, %v", n, err)
	}
	old := watch.Master(t)
	master.Kill(t)
	redistest.Eventually(t, 3*crowdSoon, func() bool { now := watch.Master(t); return now != "" && now != old }, "another master")
	for name, l := range map[string]*lock.Locker{"knows of the pause": knows, "comes new": comes} {
		redistest.Eventually(t, crowdSoon, func() bool {
			lease, err := l.Mutex("report").TryLock(t.Context())
			if err == nil {
				_ = lease.Unlock(t.Context())
				t.Fatalf("a Locker that %s took the lock after the failover", name)
			}
			var busy *lock.BusyError
			return errors.As(err, &busy) && busy.Reason == lock.ReasonPaused
		}, "an answer to a Locker that %s", name)
	}
	redistest.Eventually(t, crowdSoon, func() bool { return comes.Controls().Resume(t.Context(), "report") == nil }, "a resume on the new master")
	redistest.Eventually(t, crowdSoon, func() bool {
		lease, err := knows.Mutex("report").TryLock(t.Context())
		return err == nil && lease.Unlock(t.Context()) == nil
	}, "the lock after the resume")
}

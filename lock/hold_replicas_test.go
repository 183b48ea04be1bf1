package lock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// With MinReplicas a CloseGate that was answered is known to the replica, and the lease is as
// long as it was. One that no replica acknowledges says so, and is in force all the same.
func TestMinReplicas_hold(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	replica := redistest.StartReplica(t, s)
	rdb := replica.Client(t)
	l := newLocker(t, s.Client(t), minReplicas(1))
	for range 20 {
		m := l.Mutex(redistest.Name(t))
		le := mustTry(t, m)
		before := le.Deadline()
		redistest.Must(t, le.closeGate(t.Context(), time.Hour))
		gates, err := rdb.ZRangeByScore(t.Context(), m.Key(), &redis.ZRangeBy{Min: "1e9", Max: "1e11"}).Result()
		if err != nil || len(gates) != 1 || !strings.HasPrefix(gates[0], "g:closed:") {
			t.Errorf("the replica has the gate %q, %v", gates, err)
		}
		if after := le.Deadline(); after.Before(before) {
			t.Errorf("the lease ends at %s, before CloseGate at %s", after, before)
		}
		acknowledged(t, rdb, le)
		mustUnlock(t, le)
	}

	m := l.Mutex(redistest.Name(t))
	le := mustTry(t, m)
	replica.Pause(t)
	if err := le.closeGate(t.Context(), time.Hour); !errors.Is(err, ErrNotReplicated) {
		t.Errorf("CloseGate with a frozen replica: %v, want ErrNotReplicated", err)
	}
	_ = le.Unlock(t.Context()) // its own deadline may have passed on a slow machine
	if busy := wantBusy(t, mustNotTry(t, newLocker(t, s.Client(t)).Mutex(m.name))); busy.Reason != ReasonClosed {
		t.Errorf("busy for %q, want a hold", busy.Reason)
	}
}

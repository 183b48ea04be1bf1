package lock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
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

// A failover forgets a lease while its caller waits for replicas: it is not handed out, and a CloseGate says so.
func TestMinReplicas_goneMeanwhile(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	redistest.StartReplica(t, s)
	rdb, admin := s.Client(t), s.Client(t)
	hook := &redistest.FailHook{}
	rdb.AddHook(hook)
	l := newLocker(t, rdb, minReplicas(1))
	forgetAfter := func(name, key string) {
		hook.After(func(cmd redis.Cmder) error {
			if scriptName(cmd) == name && slices.Contains(cmd.Args(), any(key)) {
				return admin.Del(context.Background(), key).Err()
			}
			return nil
		})
	}
	m := asksAlways(l).Mutex(redistest.Name(t))
	warm(t, m)
	forgetAfter(wire.AskScript.Name, m.Key())
	for what, take := range map[string]func() error{
		"TryLock": func() error { return second(m.TryLock(t.Context())) },
		"Lock":    func() error { return second(m.Lock(t.Context())) },
	} {
		if err := take(); !errors.Is(err, ErrNotReplicated) || !strings.Contains(err.Error(), "it was gone when replicas were to be waited for") {
			t.Errorf("%s: %v, want that the lease was gone", what, err)
		}
	}
	hook.After(nil)
	le := mustTry(t, m)
	forgetAfter(wire.CloseScript.Name, m.Key())
	if err := le.closeGate(t.Context(), time.Hour); !errors.Is(err, ErrNotHeld) || !strings.Contains(err.Error(), "was gone when replicas were to be waited for") {
		t.Errorf("CloseGate: %v, want that the lease was gone", err)
	}
	hook.After(nil)
	if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
		t.Errorf("Unlock: %v, want ErrNotHeld", err)
	}
	free(t, m, soon)
}

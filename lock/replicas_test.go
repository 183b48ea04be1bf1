package lock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// What was handed out is known to who is promoted, however it was: taken, granted or extended.
func TestMinReplicas_failover(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	for name, hand := range map[string]func(l, other *lock.Locker) *lock.Lease{
		"taken": func(l, _ *lock.Locker) *lock.Lease { return mustTry(t, l.Mutex("x")) },
		"granted": func(l, other *lock.Locker) *lock.Lease {
			le := mustTry(t, other.Mutex("x"))
			w := inLine(t, l.Mutex("x"), 1)
			mustUnlock(t, le)
			return w.got(t)
		},
		"extended": func(l, _ *lock.Locker) *lock.Lease {
			le := mustTry(t, l.Mutex("x"))
			redistest.Must(t, le.Extend(t.Context(), time.Hour))
			return le
		},
		"with a gate that it has closed": func(l, _ *lock.Locker) *lock.Lease {
			le := mustTry(t, l.Semaphore("x", 2, lock.TTL(time.Minute)))
			redistest.Must(t, insider.CloseGate(t.Context(), le, time.Hour))
			return le
		},
		"one of several": func(l, other *lock.Locker) *lock.Lease {
			mustTry(t, other.Semaphore("x", 2))
			return mustTry(t, l.Semaphore("x", 2))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.StartReal(t)
			replica := redistest.StartReplica(t, s)
			le := hand(lockerOn(t, s, minReplicas(1)), lockerOn(t, s))
			s.Kill(t)
			replica.Promote(t)
			m := newLocker(t, replica.Client(t)).Semaphore("x", 2)
			d, ok := left(t, m, le)
			if here := time.Until(le.Deadline()); !ok || d < here {
				t.Errorf("the one that was promoted knows it for %s, %v; we believe for %s", d, ok, here)
			}
			if strings.Contains(name, "gate") && mustBeBusy(t, m).Reason != lock.ReasonClosed {
				t.Error("the gate is open")
			}
		})
	}
}

// A replica that is frozen acknowledges nothing.
func TestMinReplicas_frozen(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.StartReal(t)
	replica := redistest.StartReplica(t, s)
	l := lockerOn(t, s, minReplicas(1))
	m := l.Mutex("x")
	takesAndUnlocks(t, m) // connected, and known to work
	kept := mustTry(t, l.Mutex("kept", lock.TTL(10*time.Minute)))
	replica.Pause(t)
	refused := func(err error) {
		t.Helper()
		if !errors.Is(err, lock.ErrNotReplicated) || !errors.Is(err, lock.ErrBackend) || errors.Is(err, lock.ErrBusy) {
			t.Errorf("%v; want ErrNotReplicated", err)
		}
	}
	_, err := m.TryLock(t.Context())
	refused(err)
	if !strings.Contains(err.Error(), "0 of the 1 of MinReplicas acknowledged within") {
		t.Errorf("the error does not say how many: %v", err)
	}
	free(t, m)
	refused(second(m.Lock(t.Context())))
	free(t, m)
	// By a grant: the one before it does not ask for replicas, and is not held up.
	le := mustTry(t, handle(lockerOn(t, s), m))
	w := inLine(t, m, 1)
	mustUnlock(t, le)
	refused(w.failed(t))
	free(t, m)
	before := kept.Deadline()
	refused(kept.Extend(t.Context(), time.Hour))
	if !kept.Deadline().Equal(before) || !kept.Held() {
		t.Error("an Extend that does not count changed the deadline")
	}
	replica.Resume(t)
	eventually(t, func() bool { return kept.Extend(t.Context(), 2*time.Hour) == nil }, "an Extend that counts")
	takesAndUnlocks(t, m)
	free(t, m)
}

// A renewal that no replica has does not count: the lease ends where the last one that counted said.
func TestMinReplicas_renewals(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	replica := redistest.StartReplica(t, s)
	le := mustTry(t, lockerOn(t, s, minReplicas(1)).Mutex("x", lock.TTL(9*time.Second)))
	bound, first := le.Bind(t.Context()), le.Deadline()
	eventually(t, func() bool { return le.Deadline().After(first) || !le.Held() }, "a renewal")
	if !le.Held() {
		t.Fatal("not renewed while the replica was there")
	}
	replica.Pause(t)
	ends(t, bound, lock.ErrLost)
	replica.Resume(t)
}

// A failover forgets a lease while its caller waits for replicas: it is not handed out.
func TestMinReplicas_goneMeanwhile(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	redistest.StartReplica(t, s)
	rdb, admin, hook := s.Client(t), s.Client(t), &redistest.FailHook{}
	rdb.AddHook(hook)
	m := newLocker(t, rdb, minReplicas(1)).Semaphore("x", 2)
	takesAndUnlocks(t, m)
	for what, take := range map[string]func(context.Context) (*lock.Lease, error){"TryLock": m.TryLock, "Lock": m.Lock} {
		var once sync.Once
		hook.After(func(cmd redis.Cmder) (err error) {
			if touching(m)(cmd) && cmd.Err() == nil {
				once.Do(func() { err = admin.Del(context.Background(), m.Key(), m.Key()+":holders", m.Key()+":info").Err() })
			}
			return err
		})
		wantErr(t, second(take(t.Context())), lock.ErrNotReplicated, "%s", what)
	}
	hook.After(nil)
	free(t, m)
}

// What cannot wait for replicas says so: a Redis that has none, a user that may not, a client of which nobody knows
// whom it asks.
func TestMinReplicas_impossible(t *testing.T) {
	t.Parallel()
	m := lockerOn(t, redistest.Mini(t), minReplicas(1)).Mutex(redistest.Name(t))
	wantErr(t, second(m.TryLock(t.Context())), lock.ErrNotReplicated, "without replicas")
	free(t, m)
	s := redistest.StartReal(t)
	m = newLocker(t, withUser(t, s, s.Client(t), "impatient", "-wait"), minReplicas(1)).Mutex("x")
	_, err := m.TryLock(t.Context())
	if !errors.Is(err, lock.ErrBackend) || !strings.Contains(err.Error(), "WAIT, which MinReplicas needs") ||
		!strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("without the right: %v", err)
	}
	eventually(t, func() bool { return !inUse(t, m) }, "nothing left")
	rdb := redistest.Mini(t).Client(t)
	for n, want := range map[int]string{-1: "MinReplicas is -1", 1: "does not go with a lock_test.otherClient"} {
		l := lock.New(otherClient{rdb}, lock.Options{MinReplicas: n})
		if err := insider.LockErr(l.Mutex("any")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v, want %q", n, err, want)
		}
	}
	redistest.Must(t, insider.LockErr(lock.New(otherClient{rdb}, lock.Options{}).Mutex("any")))
}

// otherClient is a Client that is neither of go-redis'.
type otherClient struct{ redis.UniversalClient }

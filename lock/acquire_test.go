package lock_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Nobody takes more slots than there are, nor one that somebody in line is to get; a lower number takes effect as
// holders leave.
func TestRule01_AtMostNHolders(t *testing.T) { each(t, holdsAtMostN) }

func holdsAtMostN(t *testing.T, s *redistest.Server) {
	l := lockerOn(t, s)
	name := redistest.Name(t)
	one, three := l.Mutex(name), l.Semaphore(name, 3)
	first := mustTry(t, one) // callers differ in N while a new version is deployed
	mustBeBusy(t, one)
	leases := []*lock.Lease{first, mustTry(t, three), mustTry(t, three)}
	mustBeBusy(t, three)
	wantAvailable(t, one, 0)
	mustUnlock(t, leases[1])
	wantErr(t, leases[1].Unlock(t.Context()), lock.ErrNotHeld, "second Unlock")
	leases[1] = mustTry(t, three) // what is released twice frees one slot
	mustBeBusy(t, three)
	wantHeld(t, three, 3)
	for _, le := range leases {
		mustBeBusy(t, one)
		mustUnlock(t, le)
	}
	held, waiter := mustTry(t, one), inLine(t, one, 1)
	fresh(t, l)
	takesAndUnlocks(t, three) // a slot is granted by the limit of who grants it, to the waiter first
	mustUnlock(t, waiter.got(t))
	mustUnlock(t, held)
	free(t, one)
}

func TestBusyErrorTellsWhoHolds(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		name := redistest.Name(t)
		held := mustTry(t, hers.Mutex(name, lock.Note("task 17"), lock.TTL(10*time.Second)))
		busy := mustBeBusy(t, his.Mutex(name))
		if busy.Name != name || busy.Reason != lock.ReasonHeld || busy.Holder != "alice" || busy.Note != "task 17" ||
			busy.Waited != 0 || busy.Place != 0 {
			t.Errorf("busy: %+v", busy)
		}
		if busy.ExpiresIn <= 0 || busy.ExpiresIn > 10*time.Second+time.Millisecond {
			t.Errorf("busy expires in %s, want about 10s", busy.ExpiresIn)
		}
		for _, part := range []string{name, "alice"} {
			if !strings.Contains(busy.Error(), part) {
				t.Errorf("%q does not name %q", busy.Error(), part)
			}
		}
		w := inLine(t, his.Mutex(name), 1)
		if busy := mustBeBusy(t, his.Mutex(name)); busy.Place != 1 {
			t.Errorf("with one in line: place %d, want 1", busy.Place)
		}
		w.cancel()
		if err := w.failed(t); wantBusy(t, err).Holder != "alice" || wantBusy(t, err).Waited <= 0 ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("Lock: %v", err)
		}
		mustUnlock(t, held)
		if err := held.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) || !strings.Contains(err.Error(), name) {
			t.Errorf("Unlock: %v, want that it names the lock", err)
		}
	})
}

func TestLockWithAnEndedContext(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		m := mutexOn(t, s)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for what, err := range map[string]error{
			"Lock": second(m.Lock(ended)), "TryLock": second(m.TryLock(ended)), "Available": second(m.Available(ended)),
			"Locked": second(m.Locked(ended)),
			"Do":     m.Do(ended, func(context.Context) error { t.Error("Do ran its function"); return nil }),
		} {
			if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "busy") {
				t.Errorf("%s: %v, want context.Canceled, and not that it is busy", what, err)
			}
		}
		free(t, m)
	})
}

// A lock that is got when ctx has ended is given back, and Do does not run f: whoever asks, and also if the lock became
// free only after ctx had ended.
func TestALeaseThatComesAfterTheContextEndedIsGivenBack(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb, hook := s.Client(t), &redistest.FailHook{}
		rdb.AddHook(hook)
		l, other := newLocker(t, rdb), lockerOn(t, s)
		warm(t, l)
		for name, take := range map[string]func(context.Context, *lock.Lock) error{
			"TryLock": func(ctx context.Context, m *lock.Lock) error { return second(m.TryLock(ctx)) },
			"Lock":    func(ctx context.Context, m *lock.Lock) error { return second(m.Lock(ctx)) },
			"Acquire": func(ctx context.Context, m *lock.Lock) error { _, _, err := m.Acquire(ctx, time.Minute); return err },
			"Do": func(ctx context.Context, m *lock.Lock) error {
				return m.Do(ctx, func(context.Context) error { t.Error("Do ran f"); return nil })
			},
		} {
			m := l.Mutex(redistest.Name(t) + name)
			held := mustTry(t, handle(other, m))
			ctx, cancel := context.WithCancel(t.Context())
			hook.Before(func(cmd redis.Cmder) error {
				if touching(m)(cmd) && ctx.Err() == nil {
					cancel()
					return held.Unlock(t.Context())
				}
				return nil
			})
			err := take(ctx, m)
			hook.Before(nil)
			wantErr(t, err, context.Canceled, "%s", name)
			free(t, m)
		}
	})
}

// The fence grows from holder to holder, whether the lock was taken or granted, and whoever takes it without a fence
// between. It is known from the grant, after the end of the lease too.
func TestRule11_FenceGrows(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Mutex(redistest.Name(t), lock.Fenced())
		last := int64(0)
		grown := func(le *lock.Lease) {
			t.Helper()
			fence := fenceOf(t, le)
			if fence <= last {
				t.Fatalf("fence %d after %d", fence, last)
			}
			last = fence
			mustUnlock(t, le)
			if again := fenceOf(t, le); again != fence {
				t.Errorf("after Unlock the fence is %d, was %d", again, fence)
			}
		}
		for range 20 {
			le, w := mustTry(t, m), inLine(t, handle(his, m, lock.Fenced()), 1)
			grown(le)
			grown(w.got(t))
			plain := mustTry(t, handle(his, m))
			if fence, err := plain.Fence(); fence != 0 || !errors.Is(err, lock.ErrNotFenced) {
				t.Errorf("without the option: %d, %v; want ErrNotFenced", fence, err)
			}
			w = inLine(t, m, 1)
			mustUnlock(t, plain)
			grown(w.got(t))
		}
	})
}

// In a split brain the first holder's fence is below that of its successor, whoever looks at its own first: the number
// comes with the grant.
func TestForm_fenceAfterASplit(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	replica := redistest.StartReplica(t, s)
	name := redistest.Name(t)
	a, b := lockerOn(t, s), newLocker(t, replica.Client(t))
	takesAndUnlocks(t, a.Mutex("warm"))
	replica.Forget(t) // the replica does not hear of what comes now
	old := mustTry(t, a.Mutex(name, lock.Fenced()))
	replica.Promote(t)
	nextFence := fenceOf(t, mustTry(t, b.Mutex(name, lock.Fenced())))
	if oldFence := fenceOf(t, old); oldFence >= nextFence {
		t.Errorf("the fence of the earlier holder is above that of its successor, by %d", oldFence-nextFence)
	}
}

// A bad client, option or definition is the error of each call, which says what is wrong.
func TestBadDefinitions(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	l, none := newLocker(t, rdb), lock.Options{}
	for want, m := range map[string]*lock.Lock{
		"empty":                    l.Mutex(""),
		"at least 1":               l.Semaphore("x", 0),
		"-3 holders":               l.Semaphore("x", -3),
		"at least 100ms":           l.Mutex("x", lock.TTL(99*time.Millisecond)),
		"did you mean 5s?":         l.Mutex("x", lock.TTL(5)),
		"TTL of \"x\" is 0s":       l.Mutex("x", lock.TTL(0)),
		"TTL of \"y\" is -1s: ":    l.Mutex("y", lock.TTL(-time.Second)),
		"TTL of \"long\"":          l.Mutex("long", lock.TTL(inside.MaxTTL+time.Millisecond)),
		"TTL of \"longest\"":       l.Mutex("longest", lock.TTL(1<<63-1)),
		"MaxHold is -1ns":          l.Mutex("x", lock.MaxHold(-1)),
		"did you mean 10s?":        l.Mutex("x", lock.MaxHold(10)),
		"bound, or at least 100ms": l.Mutex("x", lock.MaxHold(100*time.Millisecond-1)),
		"0 starts":                 l.Mutex("x", lock.Rate(0, time.Second, 1)),
		"-1 starts":                l.Mutex("x", lock.Rate(-1, time.Second, 1)),
		"per 0s":                   l.Mutex("x", lock.Rate(1, 0, 1)),
		"per -1s":                  l.Mutex("x", lock.Rate(1, -time.Second, 1)),
		"one a microsecond":        l.Mutex("x", lock.Rate(2, time.Microsecond, 1)),
		"at most 8760h":            l.Mutex("x", lock.Rate(1, 365*24*time.Hour+1, 1)),
		"burst of -5":              l.Mutex("x", lock.Rate(1, time.Second, -5)),
		"smaller burst":            l.Mutex("x", lock.Rate(1, time.Second, math.MaxInt)),
		"Options.TTL is 1ms":       lock.New(rdb, lock.Options{TTL: time.Millisecond}).Mutex("x"),
		"prefix \"{a}\"":           lock.New(rdb, lock.Options{Prefix: "{a}"}).Mutex("x"),
		"prefix \"a b\"":           lock.New(rdb, lock.Options{Prefix: "a b"}).Mutex("x"),
		"is nil":                   lock.New(nil, none).Mutex("x"),
		"nil *redis.Client":        lock.New((*redis.Client)(nil), none).Mutex("x"),
		"nil *redis.ClusterClient": lock.New((*redis.ClusterClient)(nil), none).Mutex("x"),
		"nil *redis.Ring":          lock.New((*redis.Ring)(nil), none).Mutex("x"),
		"*redis.Ring cannot":       lock.New(ring, none).Mutex("x"),
	} {
		for what, err := range map[string]error{
			"LockErr": insider.LockErr(m), "TryLock": second(m.TryLock(t.Context())), "Lock": second(m.Lock(t.Context())),
			"Available": second(m.Available(t.Context())), "Holders": second(m.Holders(t.Context())),
			"Do": m.Do(t.Context(), func(context.Context) error { return nil }),
		} {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "lock: ") {
				t.Errorf("%s: error is %v, want one with %q", what, err, want)
			}
		}
	}
	for _, good := range []lock.Option{
		lock.TTL(engine.MinTTL), lock.TTL(inside.MaxTTL), lock.TTL(time.Minute + 1), lock.Rate(1, 365*24*time.Hour, 1),
		lock.Rate(1_000_000, time.Second, 1_000_000), lock.Rate(7, time.Second, 0),
	} {
		redistest.Must(t, insider.LockErr(l.Mutex("x", good)))
	}
	// Of calls that are no lock's too.
	bad := lock.New(rdb, lock.Options{TTL: time.Millisecond})
	for what, err := range map[string]error{
		"Pause": bad.Controls().Pause(t.Context(), "x", time.Time{}, ""), "Resume": bad.Controls().Resume(t.Context(), "x"),
		"SetLimit": bad.Controls().SetLimit(t.Context(), "x", 1, ""), "List": second(bad.Controls().List(t.Context())),
		"Sweep": second(insider.Sweep(t.Context(), bad)), "Lead": bad.Lead(t.Context(), "x",
			func(context.Context) error { return nil }),
	} {
		if err == nil || !strings.Contains(err.Error(), "Options.TTL is 1ms") {
			t.Errorf("%s: %v, want one that names the option", what, err)
		}
	}
	redistest.Must(t, lock.New(nil, none).Close())
}

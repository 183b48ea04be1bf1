package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// The context ends with ErrLost at MaxHold, and the lock is free a TTL later at
// the latest: nothing is released while the work may still run.
func TestMaxHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const ttl, most = 3 * time.Second, 1200 * time.Millisecond
		rdb := s.Client(t)
		l := newLocker(t, rdb)
		m := l.Mutex(redistest.Name(t), TTL(ttl), MaxHold(most))
		began := time.Now()
		le := mustTry(t, m)
		ctx := le.Bind(t.Context())
		come(t, ctx.Done(), "the end of the lease")
		if held := time.Since(began); held < most {
			t.Errorf("held for %s, want %s", held, most)
		}
		if cause := context.Cause(ctx); !errors.Is(cause, ErrLost) || !strings.Contains(cause.Error(), "MaxHold") {
			t.Errorf("cause %v, want ErrLost with a word of MaxHold", cause)
		}
		next := lockBeside(t, handle(l, m, TTL(time.Minute), Fenced())).got(t)
		if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock after MaxHold: %v, want ErrNotHeld", err)
		}
		mustUnlock(t, next)
	})
}

// MaxHold counts from when the lock was granted, not from when the waiter last
// asked before.
func TestMaxHoldOfAGrantedLease(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	w := hearing(l.Mutex(redistest.Name(t), MaxHold(2*time.Second)), 1000, 500*time.Millisecond)
	granted := time.Now()
	l.line.onMessage(wire.Message{Token: w.lease.token, Fence: 7, ServerUS: 2000})
	if !w.finished() {
		t.Fatal("not believed")
	}
	l.renewer.mu.Lock()
	w.lease.renewAt = time.Time{}
	end := l.renewer.nextDue(w.lease)
	l.renewer.mu.Unlock()
	if end.Before(granted.Add(1900 * time.Millisecond)) {
		t.Errorf("a lease with a MaxHold of 2 s ends %s after it was granted", end.Sub(granted))
	}
}

// Without renewal it ends a TTL after it was taken, and is not renewed.
func TestNoRenew(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		k := newTap(rdb)
		m := newLocker(t, rdb).Mutex(redistest.Name(t), TTL(500*time.Millisecond), NoRenew())
		le := mustTry(t, m)
		deadline := le.Deadline()
		ended(t, le, ErrLost)
		if late := time.Since(deadline); late < 0 {
			t.Errorf("ended %s after its deadline", late)
		}
		if n := k.count(wire.RenewScript); n != 0 {
			t.Errorf("renewed %d times", n)
		}
		redistest.Eventually(t, soon, func() bool { n, err := m.Available(t.Context()); return n == 1 && err == nil }, "a free lock")
	})
}

// Extend makes it longer, here and in Redis, with and without renewal.
func TestExtend(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, options := range map[string][]Option{"renewed": {TTL(10 * time.Second)}, "not renewed": {TTL(10 * time.Second), NoRenew()}} {
			m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), options...)
			le := mustTry(t, m)
			before := serverNow(t, m)
			if err := le.Extend(t.Context(), time.Minute); err != nil {
				t.Fatalf("%s: Extend: %v", name, err)
			}
			audit(t, m)
			deadline, ok := holds(t, le)
			if !ok || deadline.Before(before.Add(time.Minute-time.Millisecond)) {
				t.Errorf("%s: extended to %v, want a minute after %v", name, deadline, before)
			}
			if left := time.Until(le.Deadline()); left < 50*time.Second || left > time.Minute {
				t.Errorf("%s: the local deadline is in %s", name, left)
			}

			// Never shorter.
			local := le.Deadline()
			for _, d := range []time.Duration{time.Millisecond, time.Second} {
				if err := le.Extend(t.Context(), d); err != nil {
					t.Errorf("%s: Extend(%s): %v", name, d, err)
				}
			}
			if now, ok := holds(t, le); !ok || !now.Equal(deadline) || !le.Deadline().Equal(local) {
				t.Errorf("%s: a shorter Extend moved the deadline from %v to %v, here from %v to %v", name, deadline, now, local, le.Deadline())
			}
			for _, d := range []time.Duration{0, -time.Second} {
				if err := le.Extend(t.Context(), d); err == nil || errors.Is(err, ErrNotHeld) {
					t.Errorf("%s: Extend(%s): %v, want a refusal", name, d, err)
				}
			}
			mustUnlock(t, le)
			if err := le.Extend(t.Context(), time.Minute); !errors.Is(err, ErrNotHeld) {
				t.Errorf("%s: Extend after Unlock: %v, want ErrNotHeld", name, err)
			}
			free(t, m, soon)
		}
	})
}

// Extend finds out that the lease is gone, and ends its contexts.
func TestExtendOfALostLease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		le := mustTry(t, m)
		ctx := le.Bind(t.Context())
		redistest.Must(t, raw(m).Del(t.Context(), m.Key()).Err())
		if err := le.Extend(t.Context(), time.Hour); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Extend: %v, want ErrNotHeld", err)
		}
		if !errors.Is(context.Cause(ctx), ErrLost) {
			t.Errorf("cause %v, want ErrLost", context.Cause(ctx))
		}
		free(t, m, soon)
	})
}

func TestBind(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		type key struct{}
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		le := mustTry(t, m)
		parent, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		child, other := le.Bind(parent), le.Bind(t.Context())
		if child.Err() != nil || child.Value(key{}) != "value" {
			t.Errorf("bound: %v, value %v", child.Err(), child.Value(key{}))
		}
		cancel()
		if come(t, child.Done(), "the end of the context"); !errors.Is(context.Cause(child), context.Canceled) || other.Err() != nil {
			t.Errorf("after the parent's end: %v and %v", context.Cause(child), other.Err())
		}
		mustUnlock(t, le)
		if other.Err() == nil || !errors.Is(context.Cause(other), context.Canceled) || errors.Is(context.Cause(other), ErrLost) {
			t.Errorf("after Unlock: cause %v, want context.Canceled", context.Cause(other))
		}
		if after := le.Bind(t.Context()); !errors.Is(context.Cause(after), context.Canceled) {
			t.Errorf("bound after Unlock: cause %v, want context.Canceled", context.Cause(after))
		}
	})
}

func TestBindOfALostLease(t *testing.T) {
	t.Parallel()
	m := newLocker(t, redistest.Mini(t).Client(t)).Mutex(redistest.Name(t), TTL(inside.MinTTL), NoRenew())
	le := mustTry(t, m)
	ctx := le.Bind(t.Context())
	come(t, ctx.Done(), "the end of the lease")
	for _, ctx := range []context.Context{ctx, le.Bind(t.Context())} {
		if !errors.Is(context.Cause(ctx), ErrLost) {
			t.Errorf("cause %v, want ErrLost", context.Cause(ctx))
		}
	}
}

// An ask whose answer came after the lease's end: nobody starts to work under
// it, be the alarm ever so late.
func TestBindPastTheDeadline(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	l.renewer.alarm.Ring = func() {}
	m := l.Mutex(redistest.Name(t), TTL(time.Second))
	for age, over := range map[time.Duration]bool{time.Second: true, time.Hour: true, 0: false} {
		le := m.newLease()
		l.renewer.add(le, 7, "", time.Now().Add(-age), m.ttl, false)
		ctx := le.Bind(t.Context())
		if lost := errors.Is(context.Cause(ctx), ErrLost); lost != over || le.Held() == over {
			t.Errorf("asked for %s ago: cause %v, held %v", age, context.Cause(ctx), le.Held())
		}
		// Who was told that it is lost is not told otherwise later.
		if l.renewer.noteRenewed(le, time.Now(), m.ttl) == over || le.Held() == over {
			t.Errorf("asked for %s ago: an extension that Redis confirms late counts: %t", age, !over)
		}
		l.renewer.drop(le, time.Now())
	}
}

// A long lease that is bound often does not grow.
func TestManyBindsDoNotGrow(t *testing.T) {
	t.Parallel()
	m := newLocker(t, redistest.Mini(t).Client(t)).Mutex(redistest.Name(t))
	le := mustTry(t, m)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 1000 {
		le.Bind(ended)
		ctx, cancel := context.WithCancel(t.Context())
		le.Bind(ctx)
		cancel()
	}
	m.locker.renewer.mu.Lock()
	if n := cap(le.bindings); n > 8 {
		t.Errorf("room for %d, though all have ended", n)
	}
	m.locker.renewer.mu.Unlock()
	live := make([]context.Context, 100) // who lives stays, whatever ends beside
	for i := range live {
		live[i] = le.Bind(t.Context())
		le.Bind(ended)
	}
	mustUnlock(t, le)
	for i, ctx := range live {
		if ctx.Err() == nil {
			t.Errorf("context %d outlives the lease", i)
		}
	}
}

func TestTokensDiffer(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		seen := map[string]bool{}
		for range 3 {
			m := newLocker(t, rdb).Mutex(redistest.Name(t))
			for range 10 {
				le := mustTry(t, m)
				if seen[le.Token()] || le.Token() == "" {
					t.Errorf("token %q twice", le.Token())
				}
				seen[le.Token()] = true
				mustUnlock(t, le)
			}
		}
	})
}

// An extended lease is watched each third of its TTL, as any other: a lock that was broken is
// noticed then, and not at the far end of the lease.
func TestExtendedLeaseIsWatched(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, asks := range []bool{false, true} {
			a, b := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
			if asks {
				asksAlways(a)
			}
			const ttl = 600 * time.Millisecond
			m := a.Mutex(fmt.Sprint(redistest.Name(t), asks), TTL(ttl))
			le := mustTry(t, m)
			ctx := le.Bind(t.Context())
			redistest.Must(t, le.Extend(t.Context(), time.Minute))
			time.Sleep(2 * ttl) // the looks go on, and keep the extension
			if left := time.Until(le.Deadline()); left < 50*time.Second || !le.Held() {
				t.Errorf("%s after an Extend by a minute %s are left", 2*ttl, left)
			}
			if ok, err := handle(b, m).Break(t.Context(), le.Token()); !ok || err != nil {
				t.Fatal(ok, err)
			}
			broken := time.Now()
			come(t, ctx.Done(), "the end of a broken lease")
			if took := time.Since(broken); took > 2*ttl {
				t.Errorf("the holder learned of the Break after %s; its TTL is %s", took, ttl)
			}
		}
	})
}

package lock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// listening makes l hear its channel: somebody waits there, for another lock.
func listening(t *testing.T, l *Locker) {
	t.Helper()
	m := l.Mutex(redistest.Name(t))
	mustTry(t, m)
	inLine(t, m, 1)
	heard(t, m)
}

// endsWithin waits for ctx to end, and wants the cause ErrLost.
func ends(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
		if cause := context.Cause(ctx); !errors.Is(cause, ErrLost) {
			t.Errorf("the context ended with cause %v, want ErrLost", cause)
		}
	case <-time.After(soon):
		t.Error("the context has not ended")
	}
}

func TestBreakOneOfSeveral(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, b, c := newLocker(t, s.Client(t)), newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		m := a.Semaphore(redistest.Name(t), 3, TTL(time.Minute))
		broken, kept, foreign := mustTry(t, m), mustTry(t, m), mustTry(t, handle(b, m))
		ctx, keptCtx, foreignCtx := broken.Bind(t.Context()), kept.Bind(t.Context()), foreign.Bind(t.Context())
		listening(t, a)
		w := inLine(t, handle(c, m), 1)
		calm(t, c, 1)
		second := inLine(t, handle(b, m), 2)

		if ok, err := handle(b, m).Break(t.Context(), broken.Token()); !ok || err != nil {
			t.Fatalf("Break: %v, %v", ok, err)
		}
		audit(t, m)
		// In the same script, and told at once: the next renewal is 20 s away.
		if n, _ := band(t, m, "h:"), band(t, m, "e:"); n != 3 {
			t.Errorf("%d holders after a Break with two in line, want 3; %s", n, dump(m))
		}
		w.got(t)
		ends(t, ctx)
		if broken.Held() || !kept.Held() || !foreign.Held() || keptCtx.Err() != nil || foreignCtx.Err() != nil || !second.pending() {
			t.Error("Break of one hit others")
		}

		// It is over, and its successor is left alone.
		if err := broken.Extend(t.Context(), time.Hour); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Extend of a broken lease: %v, want ErrNotHeld", err)
		}
		if err := broken.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock of a broken lease: %v, want ErrNotHeld", err)
		}
		if n := band(t, m, "h:"); n != 3 || !second.pending() {
			t.Errorf("Unlock of a broken lease left %d holders, want 3; %s", n, dump(m))
		}
		if ok, err := m.Break(t.Context(), broken.Token()); ok || err != nil {
			t.Errorf("second Break: %v, %v", ok, err)
		}
	})
}

func TestBreakOfNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		if ok, err := m.Break(t.Context(), "nobody.100.1"); ok || err != nil {
			t.Errorf("Break of an idle lock: %v, %v", ok, err)
		}
		if n, err := m.BreakAll(t.Context()); n != 0 || err != nil {
			t.Errorf("BreakAll of an idle lock: %d, %v", n, err)
		}
		le := mustTry(t, m)
		for _, token := range []string{"nobody.100.1", le.Token() + "1", le.Token()[:10], "%", "*"} {
			if ok, err := m.Break(t.Context(), token); ok || err != nil {
				t.Errorf("Break(%q): %v, %v", token, ok, err)
			}
		}
		if ok, err := m.Break(t.Context(), ""); ok || err == nil {
			t.Errorf("Break without a token: %v, %v; want an error", ok, err)
		}
		if _, ok := holds(t, le); !ok {
			t.Errorf("a Break of others took the lock; %s", dump(m))
		}
		mustUnlock(t, le)

		// Past its deadline it is no holder any more.
		expired := handle(m.locker, m, TTL(inside.MinTTL), NoRenew()).newLease()
		mustAsk(t, expired.lock, expired, 0)
		deadline, _ := holds(t, expired)
		redistest.Eventually(t, soon, func() bool { return serverNow(t, m).After(deadline) }, "the deadline")
		if ok, err := m.Break(t.Context(), expired.Token()); ok || err != nil {
			t.Errorf("Break of an expired holder: %v, %v", ok, err)
		}
	})
}

// A holder in the Locker that breaks its lock is told before the call returns,
// though nobody waits and its Locker is not subscribed.
func TestBreakTellsTheOwnLockerAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		told := func(what string, le *Lease, end func(context.Context) error) {
			t.Helper()
			ctx := le.Bind(t.Context())
			if err := end(t.Context()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if !errors.Is(context.Cause(ctx), ErrLost) || le.Held() {
				t.Errorf("after %s the holder's context has the cause %v", what, context.Cause(ctx))
			}
		}
		m := l.Semaphore(redistest.Name(t), 2)
		one, other := mustTry(t, m), mustTry(t, m)
		told("Break", one, func(ctx context.Context) error { return second(m.Break(ctx, one.Token())) })
		if !other.Held() {
			t.Error("Break of one holder ended another")
		}
		told("BreakAll", other, func(ctx context.Context) error { return second(m.BreakAll(ctx)) })
		told("Delete", mustTry(t, m), m.Delete)
		p := l.Pool(redistest.Name(t))
		if _, err := p.Put(t.Context(), "a", "b"); err != nil {
			t.Fatal(err)
		}
		taken, err := p.m.TryLock(t.Context())
		redistest.Must(t, err)
		told("Delete of a pool", taken, func(ctx context.Context) error {
			n, err := p.Delete(ctx)
			if n != 2 {
				t.Errorf("%d values deleted, want 2", n)
			}
			return err
		})
	})
}

// A Locker that does not listen finds out by renewal, long before the deadline.
func TestBreakIsToldAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, b := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		m := a.Mutex(redistest.Name(t), TTL(time.Hour))
		le := mustTry(t, m)
		ctx := le.Bind(t.Context())
		if ok, err := handle(b, m).Break(t.Context(), le.Token()); !ok || err != nil {
			t.Fatalf("Break: %v, %v", ok, err)
		}
		renewNow(a)
		ends(t, ctx)
	})
}

// Nothing renews it, its Locker is not subscribed: the deadline ends it.
func TestBreakWithoutRenewalIsToldAtTheDeadline(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(2*time.Second), NoRenew())
		other := handle(newLocker(t, s.Client(t)), m)
		mustUnlock(t, mustTry(t, other)) // is connected
		le := mustTry(t, m)
		if ok, err := other.Break(t.Context(), le.Token()); !ok || err != nil {
			t.Fatalf("Break: %v, %v", ok, err)
		}
		next := mustTry(t, m) // free at once
		ends(t, le.Bind(t.Context()))
		if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock: %v, want ErrNotHeld", err)
		}
		if err := next.Unlock(t.Context()); err != nil && !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock: %v", err)
		}
	})
}

// Do says that its function may not have been alone.
func TestBreakDuringDo(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		err := m.Do(t.Context(), func(ctx context.Context) error {
			holders, err := m.Holders(ctx)
			if err != nil || len(holders) != 1 {
				return fmt.Errorf("holders: %v, %w", holders, err)
			}
			if ok, err := m.Break(ctx, holders[0].Token); !ok || err != nil {
				return fmt.Errorf("Break: %v, %w", ok, err)
			}
			ends(t, ctx)
			return context.Cause(ctx)
		})
		if !errors.Is(err, ErrLost) {
			t.Errorf("Do of a broken lock: %v, want ErrLost", err)
		}
	})
}

func TestBreakAll(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a, b := newLocker(t, s.Client(t)), newLocker(t, s.Client(t))
		m := a.Semaphore(redistest.Name(t), 3, TTL(time.Minute))
		first, second := mustTry(t, m), mustTry(t, m)
		redistest.Must(t, mustTry(t, m).Cooldown(t.Context(), time.Hour))
		listening(t, a)
		var waiters []*attempt
		for i := range 4 {
			waiters = append(waiters, inLine(t, handle(b, m), i+1))
		}
		calm(t, b, 4)
		if n, err := handle(b, m).BreakAll(t.Context()); n != 3 || err != nil {
			t.Fatalf("BreakAll: %d, %v; want 2 holders and the gate", n, err)
		}
		for _, w := range waiters[:3] {
			w.got(t)
		}
		for _, le := range []*Lease{first, second} {
			ends(t, le.Bind(t.Context()))
		}
		if !waiters[3].pending() || band(t, m, "h:") != 3 || band(t, m, "g:") != 0 {
			t.Errorf("BreakAll let more in than there are slots; %s", dump(m))
		}
		audit(t, m)
	})
}

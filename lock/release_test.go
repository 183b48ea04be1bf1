package lock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// A holder that was away past its deadline finds a successor and leaves it alone.
func TestRule02_LateReleaseLeavesTheSuccessorAlone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		a, b := newLocker(t, rdb), newLocker(t, rdb)
		m := a.Mutex(redistest.Name(t), TTL(inside.MinTTL), NoRenew())
		late := mustTry(t, m)
		successor := lockBeside(t, handle(b, m, TTL(time.Minute))).got(t)
		behind := inLine(t, handle(b, m, TTL(time.Minute)), 1)
		deadline, ok := holds(t, successor)
		if !ok {
			t.Fatalf("the successor is not stored; %s", dump(m))
		}

		if err := late.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("late Unlock: %v, want ErrNotHeld", err)
		}
		if err := late.Extend(t.Context(), time.Hour); !errors.Is(err, ErrNotHeld) {
			t.Errorf("late Extend: %v, want ErrNotHeld", err)
		}
		// And so if the local state knew nothing of it.
		if _, held, err := late.release(t.Context()); held || err != nil {
			t.Errorf("late release: held %v, %v", held, err)
		}
		hence := time.Now().Add(time.Hour)
		late.cooldownEnd.Store(&hence)
		if _, held, err := late.release(t.Context()); held || err != nil {
			t.Errorf("late release with a cooldown: held %v, %v", held, err)
		}
		if reply := mustRenew(t, late, time.Hour); reply != wire.RenewLost {
			t.Errorf("late renew is answered %d, want lost", reply)
		}

		if now, ok := holds(t, successor); !ok || now.Before(deadline) || now.After(deadline.Add(time.Minute)) {
			t.Errorf("the successor's deadline went from %v to %v (stored: %v)", deadline, now, ok)
		}
		if !behind.pending() {
			t.Error("the late release let the next one in")
		}
		if n := band(t, m, "h:") + band(t, m, "g:"); n != 1 {
			t.Errorf("%d slots are taken, want 1; %s", n, dump(m))
		}
		mustUnlock(t, successor)
		mustUnlock(t, behind.got(t))
	})
}

// Renewal by another token than the holder's changes nothing.
func TestRule02_OnlyTheGrantedTokenRenews(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(5*time.Second), NoRenew())
		held := mustTry(t, m)
		deadline, _ := holds(t, held)
		if reply := mustRenew(t, m.newLease(), time.Hour); reply != wire.RenewLost {
			t.Errorf("a foreign renew is answered %d, want lost", reply)
		}
		if now, ok := holds(t, held); !ok || now.Sub(deadline).Abs() > time.Minute || band(t, m, "h:") != 1 {
			t.Errorf("deadline %v became %v; %s", deadline, now, dump(m))
		}
	})
}

func mustRenew(t testing.TB, le *Lease, length time.Duration) int64 {
	t.Helper()
	reply, err := le.lock.locker.conn.Run(t.Context(), wire.RenewScript, le.lock.keys, []any{le.body, length.Milliseconds()})
	redistest.Must(t, err)
	audit(t, le.lock)
	return reply.(int64)
}

// The reply to the release is lost after it ran; go-redis sends it again and is
// told "absent".
func TestRule03_ResentReleaseIsSuccess(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := far.Mutex(redistest.Name(t))
		warm(t, m)

		le := mustTry(t, m)
		p.DropReplyTo(isRelease(m), 1)
		if free, err := le.Release(t.Context()); free != 1 || err != nil {
			t.Errorf("Release with its reply lost: %d free, %v; want 1 free", free, err)
		}
		if n := int(le.releases.Copies()); n != 1 {
			t.Errorf("%d copies of the release have no reply, want 1", n)
		}

		// With a successor there already.
		le = mustTry(t, m)
		w := inLine(t, handle(near, m), 1)
		p.DropReplyTo(isRelease(m), 1)
		if free, err := le.Release(t.Context()); free != 0 || err != nil {
			t.Errorf("Release with its reply lost: %d free, %v; want 0 free", free, err)
		}
		next := w.got(t)
		if _, ok := holds(t, next); !ok {
			t.Errorf("the successor is gone; %s", dump(m))
		}
		mustUnlock(t, next)

		le = mustTry(t, m)
		p.DropReplyTo(isScript(wire.ReleaseScript, m), 1)
		if err := le.Cooldown(t.Context(), time.Minute); err != nil {
			t.Errorf("Cooldown with its reply lost: %v", err)
		}
		if band(t, m, "g:") != 1 {
			t.Errorf("no cooldown; %s", dump(m))
		}
	})
}

// "Absent" to a release that was sent once is no success.
func TestRule03_AbsentWithoutAResendIsNotHeld(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		warm(t, m)
		le := mustTry(t, m)
		redistest.Must(t, raw(m).Del(t.Context(), m.Key()).Err())
		if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock of a deleted lock: %v, want ErrNotHeld", err)
		}
	})
}

// Nor is it when the release goes out a second time only because the server did
// not know the script.
func TestRule03_AbsentAfterNoscriptIsNotHeld(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
	le := mustTry(t, m)
	redistest.Must(t, raw(m).Del(t.Context(), m.Key()).Err())
	redistest.Must(t, raw(m).ScriptFlush(t.Context()).Err())
	if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
		t.Errorf("Unlock of a deleted lock: %v, want ErrNotHeld", err)
	}
}

// A release whose outcome is not known is tried again beside.
func TestRule03_UnknownReleaseIsRepeated(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s, func(o *redis.UniversalOptions) {
			o.MaxRetries, o.ReadTimeout = -1, time.Second
		})
		m := near.Mutex(redistest.Name(t), TTL(time.Minute))
		warm(t, m)
		le := mustTry(t, handle(far, m))
		held := p.Hold(isRelease(m), 1)
		defer held.Release()
		if err := le.Unlock(t.Context()); !errors.Is(err, ErrBackend) {
			t.Fatalf("Unlock without an answer: %v, want ErrBackend", err)
		}
		free(t, m, soon)
	})
}

// Release runs when the context of the work has ended.
func TestRule10_UnlockWorksOnAnEndedContext(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		le := mustTry(t, m)
		if err := le.Extend(ended, time.Minute); err != nil {
			t.Errorf("Extend: %v", err)
		}
		if err := le.Unlock(ended); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		free(t, m, soon)

		le = mustTry(t, m)
		if err := le.Cooldown(ended, time.Minute); err != nil {
			t.Errorf("Cooldown: %v", err)
		}
		if band(t, m, "g:") != 1 {
			t.Errorf("no cooldown; %s", dump(m))
		}
	})
}

func TestDoubleUnlock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		le := mustTry(t, m)
		mustUnlock(t, le)
		next := mustTry(t, m)
		if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("second Unlock: %v, want ErrNotHeld", err)
		}
		mustUnlock(t, next)

		// Of several at once, one is told that it was the one.
		le = mustTry(t, m)
		errs := make([]error, 8)
		var wg sync.WaitGroup
		for i := range errs {
			redistest.Go(&wg, func() { errs[i] = le.Unlock(t.Context()) })
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else if !errors.Is(err, ErrNotHeld) {
				t.Errorf("Unlock: %v", err)
			}
		}
		if won != 1 {
			t.Errorf("%d of 8 Unlocks succeeded, want 1", won)
		}
	})
}

func TestReleaseTellsWhatIsFree(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Semaphore(redistest.Name(t), 3)
		a, b, c := mustTry(t, m), mustTry(t, m), mustTry(t, m)
		w := inLine(t, m, 1)
		for i, step := range []struct {
			le   *Lease
			free int
		}{{a, 0}, {b, 1}, {c, 2}} {
			if free, err := step.le.Release(t.Context()); free != step.free || err != nil {
				t.Errorf("release %d: %d free, %v; want %d", i, free, err, step.free)
			}
		}
		if free, err := w.got(t).Release(t.Context()); free != 3 || err != nil {
			t.Errorf("last release: %d free, %v; want 3", free, err)
		}
	})
}

// What ended by its deadline is not ours to release, taken over or not.
func TestUnlockAfterTheDeadline(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(inside.MinTTL), NoRenew())
		le := mustTry(t, m)
		ended(t, le, ErrLost)
		if err := le.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("Unlock: %v, want ErrNotHeld", err)
		}
		free(t, m, soon)
	})
}

// ended waits for the lease to end and looks at the cause.
func ended(t testing.TB, le *Lease, cause error) {
	t.Helper()
	ctx := le.Bind(context.Background())
	come(t, ctx.Done(), "the end of the lease")
	if got := context.Cause(ctx); !errors.Is(got, cause) {
		t.Fatalf("the lease ended with cause %v, want %v", got, cause)
	}
}

// A release finds the slots of holders that have died, and gives them to the
// line as well.
func TestReleaseGrantsWhatHasRunOut(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	l := newLocker(t, s.Client(t))
	now := time.Now()
	s.SetTime(t, now)
	m := l.Semaphore(redistest.Name(t), 3, TTL(time.Minute))
	dead := handle(l, m, TTL(time.Second))
	lives := m.newLease()
	for _, le := range []*Lease{lives, dead.newLease(), dead.newLease()} {
		mustAsk(t, le.lock, le, 0)
	}
	var line []*Lease
	for range 4 {
		le := m.newLease()
		mustAsk(t, m, le, turn.EntryLifetime)
		line = append(line, le)
	}
	s.SetTime(t, now.Add(2*time.Second))
	if free, held, err := lives.release(t.Context()); free != 0 || !held || err != nil {
		t.Fatal(free, held, err)
	}
	for i, le := range line {
		if _, ok := holds(t, le); ok != (i < 3) {
			t.Errorf("the one in place %d is granted a slot: %t; %s", i, ok, dump(m))
		}
	}
}

package lock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// The context ends with ErrLost at MaxHold, and the lock is free a TTL later at the latest: nothing is released while
// the work may still run. Without renewal it ends a TTL after it was taken.
func TestMaxHoldAndNoRenew(t *testing.T) { each(t, endsByItself) }

func endsByItself(t *testing.T, s *redistest.Server) {
	l := lockerOn(t, s)
	for name, test := range map[string]struct {
		least   time.Duration
		word    string
		options []lock.Option
	}{
		"MaxHold": {1200 * time.Millisecond, "MaxHold", []lock.Option{lock.TTL(3 * time.Second),
			lock.MaxHold(1200 * time.Millisecond)}},
		"NoRenew": {0, "", []lock.Option{lock.TTL(500 * time.Millisecond), lock.NoRenew()}},
	} {
		m := l.Mutex(redistest.Name(t)+name, test.options...)
		began := time.Now()
		le := mustTry(t, m)
		deadline, ctx := le.Deadline(), le.Bind(t.Context())
		ends(t, ctx, lock.ErrLost)
		if held := time.Since(began); held < test.least || time.Now().Before(deadline) {
			t.Errorf("%s: held for %s", name, held)
		}
		if cause := context.Cause(ctx); !strings.Contains(cause.Error(), test.word) {
			t.Errorf("%s: cause %v, want a word of it", name, cause)
		}
		next := lockBeside(t, handle(l, m)).got(t)
		wantErr(t, le.Unlock(t.Context()), lock.ErrNotHeld, "%s: Unlock", name)
		mustUnlock(t, next)
	}
}

// Extend makes it longer, here and in Redis, with and without renewal, and never shorter.
func TestExtend(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		l := lockerOn(t, s)
		for name, options := range map[string][]lock.Option{"renewed": {lock.TTL(10 * time.Second)},
			"not renewed": {lock.TTL(10*time.Second + 1), lock.NoRenew()}} {
			m := l.Mutex(redistest.Name(t), options...)
			le := mustTry(t, m)
			// Redis knows no fractions of milliseconds
			for _, d := range []time.Duration{time.Hour, time.Nanosecond, time.Minute + 1} {
				if err := le.Extend(t.Context(), d); err != nil {
					t.Errorf("%s: Extend(%s): %v", name, d, err)
				}
				if there, ok := left(t, m, le); !ok || there < time.Hour-soon || there > time.Hour+time.Second {
					t.Errorf("%s: after Extend(%s) it lasts for %s", name, d, there)
				}
				if here := time.Until(le.Deadline()); here < 50*time.Minute || here > time.Hour {
					t.Errorf("%s: the local deadline is in %s", name, here)
				}
			}
			for _, d := range []time.Duration{0, -time.Second, inside.MaxTTL + 1, 1<<63 - 1} {
				if err := le.Extend(t.Context(), d); err == nil || errors.Is(err, lock.ErrNotHeld) {
					t.Errorf("%s: Extend(%s): %v", name, d, err)
				}
			}
			mustUnlock(t, le)
			wantErr(t, le.Extend(t.Context(), time.Minute), lock.ErrNotHeld, "%s: Extend", name)
			free(t, m)
		}
	})
}

// An extension lasts for MaxHold and a TTL at most: then the slot is free, though its holder hangs.
func TestExtend_maxHold(t *testing.T) {
	t.Parallel()
	l := lockerOn(t, redistest.Mini(t))
	for most, want := range map[time.Duration]time.Duration{time.Hour: time.Hour, 1<<63 - 1: 50 * time.Hour} {
		const ttl = 40 * time.Second
		m := l.Mutex(redistest.Name(t)+most.String(), lock.TTL(ttl), lock.MaxHold(most))
		le := mustTry(t, m)
		redistest.Must(t, le.Extend(t.Context(), 50*time.Hour))
		if there, ok := left(t, m, le); !ok || there < want-soon || there > want+ttl {
			t.Errorf("MaxHold %s: it lasts for %s", most, there)
		}
	}
}

// An extended lease is watched as any other: a lock that was broken is noticed by the next renewal, and not at the far
// end of the lease, by a Locker that waits for nothing too.
func TestBreakIsToldAtTheNextRenewal(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		for _, extend := range []time.Duration{0, time.Hour} {
			m := hers.Mutex(redistest.Name(t), lock.TTL(9*time.Second))
			le := mustTry(t, m)
			if extend > 0 {
				redistest.Must(t, le.Extend(t.Context(), extend))
			}
			if ok, err := handle(his, m).Break(t.Context(), le.Token()); !ok || err != nil {
				t.Fatal(ok, err)
			}
			ends(t, le.Bind(t.Context()), lock.ErrLost)
			if extend > 0 && time.Until(le.Deadline()) < 0 {
				t.Error("noticed after the lease's end")
			}
		}
	})
}

func TestBind(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		type key struct{}
		m := mutexOn(t, s)
		le := mustTry(t, m)
		parent, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		child, other := le.Bind(parent), le.Bind(t.Context())
		if bound, ok := lock.FromContext(child); child.Err() != nil || child.Value(key{}) != "value" || !ok || bound != le {
			t.Errorf("bound: %v, value %v, lease %v", child.Err(), child.Value(key{}), bound)
		}
		cancel()
		ends(t, child, context.Canceled)
		live := make([]context.Context, 100) // who lives stays, whatever ends beside
		for i := range live {
			live[i] = le.Bind(t.Context())
			le.Bind(parent)
		}
		if other.Err() != nil {
			t.Errorf("after another parent's end: %v", other.Err())
		}
		mustUnlock(t, le)
		for _, ctx := range slices.Concat(live, []context.Context{other, le.Bind(t.Context())}) {
			if ends(t, ctx, context.Canceled); errors.Is(context.Cause(ctx), lock.ErrLost) {
				t.Error("a lease that was released is lost")
			}
		}
	})
}

// An ask whose answer comes after the lease's end: nobody starts to work under it.
func TestReplyPastTheDeadline(t *testing.T) {
	t.Parallel()
	_, far, p := through(t, redistest.Mini(t))
	warm(t, far)
	p.Delay(600 * time.Millisecond)
	if le, err := far.Mutex(redistest.Name(t), lock.TTL(200*time.Millisecond),
		lock.NoRenew()).TryLock(t.Context()); le != nil || !errors.Is(err, lock.ErrBackend) {
		t.Errorf("%v, %v; want ErrBackend", le, err)
	}
}

// A release whose reply is lost is sent again, here after the lease's end, and finds nothing: the lease was not lost.
func TestReleaseSentAgainLate(t *testing.T) {
	t.Parallel()
	var from atomic.Int64 // when what is sent is sent again; 0: never
	rdb := redistest.Mini(t).Client(t)
	rdb.AddHook(redistest.Resend(func(redis.Cmder) bool {
		at := from.Load()
		time.Sleep(time.Until(time.UnixMicro(at)))
		return at > 0
	}))
	le := mustTry(t, newLocker(t, rdb).Mutex(redistest.Name(t), lock.TTL(2*time.Second), lock.NoRenew()))
	from.Store(le.Deadline().Add(100 * time.Millisecond).UnixMicro())
	if err := le.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// Break takes the lock from one holder, grants it to the line in the same step, and leaves the others alone.
func TestBreakOneOfSeveral(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		hers, his := twoProcesses(t, s)
		m := hers.Semaphore(redistest.Name(t), 3, lock.TTL(10*time.Second)) // a renewal tells, if no message does
		broken, kept, foreign := mustTry(t, m), mustTry(t, m), mustTry(t, slots(his, m, 3))
		first, second := inLine(t, slots(his, m, 3), 1), inLine(t, m, 2)
		ctx := broken.Bind(t.Context())
		for _, token := range []string{"nobody.100.1", broken.Token() + "1", broken.Token()[:10], "%", "*"} {
			if ok, err := m.Break(t.Context(), token); ok || err != nil {
				t.Errorf("Break(%q): %v, %v", token, ok, err)
			}
		}
		if ok, err := m.Break(t.Context(), ""); ok || err == nil {
			t.Errorf("without a token: %v, %v", ok, err)
		}
		fresh(t, his)
		if ok, err := slots(his, m, 3).Break(t.Context(), broken.Token()); !ok || err != nil {
			t.Fatalf("Break: %v, %v", ok, err)
		}
		wantHeld(t, m, 3)
		first.got(t)
		ends(t, ctx, lock.ErrLost)
		if broken.Held() || !kept.Held() || !foreign.Held() || !second.pending() {
			t.Error("Break of one hit others")
		}
		wantErr(t, broken.Extend(t.Context(), time.Hour), lock.ErrNotHeld, "Extend when broken")
		wantErr(t, broken.Unlock(t.Context()), lock.ErrNotHeld, "Unlock when broken")
		if wantHeld(t, m, 3); !second.pending() {
			t.Error("Unlock of a broken lease freed a slot")
		}
		if ok, err := m.Break(t.Context(), broken.Token()); ok || err != nil {
			t.Errorf("again: %v, %v", ok, err)
		}
		if n, err := hers.Mutex(redistest.Name(t)).BreakAll(t.Context()); n != 0 || err != nil {
			t.Errorf("BreakAll: %d, %v", n, err)
		}
	})
}

// Close ends waits and operations with ErrClosed, and not leases: these can be extended and released, and end at their
// deadline, since nothing is renewed.
func TestClose(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l, other := newLocker(t, rdb), newLocker(t, rdb)
		m := l.Mutex(redistest.Name(t), lock.TTL(time.Minute))
		held, short := mustTry(t, m), mustTry(t, l.Mutex(redistest.Name(t), lock.TTL(2*time.Second)))
		bound := held.Bind(t.Context())
		var waiters []*attempt
		for i := range 3 {
			waiters = append(waiters, inLine(t, m, i+1))
		}
		behind := inLine(t, handle(other, m), 4)
		redistest.Must(t, l.Close())
		for _, w := range waiters {
			wantErr(t, w.failed(t), lock.ErrClosed, "Lock")
		}
		waiting(t, handle(other, m), 1) // they have left the line
		for what, err := range map[string]error{
			"TryLock": second(m.TryLock(t.Context())), "Lock": second(m.Lock(t.Context())),
			"Available": second(m.Available(t.Context())),
			"Do":        m.Do(t.Context(), func(context.Context) error { t.Error("Do ran"); return nil }),
			"List":      second(l.Controls().List(t.Context())), "Resume": l.Controls().Resume(t.Context(), "x"),
		} {
			wantErr(t, err, lock.ErrClosed, "%s", what)
		}
		redistest.Must(t, l.Close())
		if bound.Err() != nil {
			t.Errorf("the lease ended with Close: %v", context.Cause(bound))
		}
		redistest.Must(t, held.Extend(t.Context(), 2*time.Minute))
		mustUnlock(t, held)
		mustUnlock(t, behind.got(t)) // and the client is open
		ends(t, short.Bind(t.Context()), lock.ErrLost)
		wantErr(t, short.Unlock(t.Context()), lock.ErrNotHeld, "not renewed")
		free(t, handle(other, m))
	})
}

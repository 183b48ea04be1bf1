package lock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		m := newLocker(t, rdb, owner("a")).Semaphore(redistest.Name(t), 2, Note("first"), TTL(time.Minute))
		other := handle(newLocker(t, rdb, owner("b")), m, Note("second"), TTL(time.Hour))
		check := func(when string, available, waiting, holders int) []Holder {
			t.Helper()
			n, err1 := m.Available(t.Context())
			w, err2 := m.Waiting(t.Context())
			h, err3 := m.Holders(t.Context())
			locked, err4 := m.Locked(t.Context())
			redistest.Must(t, errors.Join(err1, err2, err3, err4))
			if n != available || w != waiting || len(h) != holders || locked != (available == 0) {
				t.Errorf("%s: %d available, %d waiting, locked %v, holders %+v; want %d, %d, %d holders",
					when, n, w, locked, h, available, waiting, holders)
			}
			return h
		}
		check("nobody", 2, 0, 0)
		b := mustTry(t, other)
		check("one", 1, 0, 1)
		a := mustTry(t, m)
		h := check("two", 0, 0, 2)
		if len(h) == 2 { // first deadline first
			if h[0].Owner != "a" || h[0].Note != "first" || h[0].Token != a.Token() ||
				h[0].ExpiresIn <= 0 || h[0].ExpiresIn > time.Minute+time.Millisecond {
				t.Errorf("first holder %+v", h[0])
			}
			if h[1].Owner != "b" || h[1].Note != "second" || h[1].Token != b.Token() || h[1].ExpiresIn < 59*time.Minute {
				t.Errorf("second holder %+v", h[1])
			}
		}
		w := inLine(t, m, 1)
		check("one waiting", 0, 1, 2)
		mustUnlock(t, a)
		a = w.got(t)
		check("granted", 0, 0, 2)
		mustUnlock(t, a)
		mustUnlock(t, b)
		check("nobody again", 2, 0, 0)
	})
}

// A mutex with one holder looks the same whether it is stored as a string or as a sorted set.
func TestForm_inspectedAlike(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), Note("first"), TTL(time.Minute))
		check := func(form string) {
			t.Helper()
			wantForm(t, m, form)
			info, err := m.inspect(t.Context(), 1, "nobody's")
			redistest.Must(t, err)
			if len(info.Holders) != 1 || info.Holders[0].Note != "first" {
				t.Errorf("the %s: holders %+v, want one", form, info.Holders)
			}
			if info.Granted > soon {
				t.Errorf("the %s: granted %s ago, want just now", form, info.Granted)
			}
			got := [...]int{info.Held, info.Waiting, info.Parked, info.Called, info.Queued, info.Place}
			if want := [...]int{1, 0, 0, 0, 0, -1}; got != want || info.Gate.Reason != "" || info.Gate.OpensIn != 0 || info.Head.State != "" {
				t.Errorf("the %s: held, waiting, parked, called, queued and place are %v, want %v; gate %+v, head %+v",
					form, got, want, info.Gate, info.Head)
			}
		}
		le := mustTry(t, m)
		check("string")
		redistest.Must(t, le.Extend(t.Context(), 10*time.Minute)) // longer than its token says
		check("zset")
		mustUnlock(t, le)
	})
}

// A holder whose deadline has passed does not count, though it is still stored.
func TestInspectDoesNotCountTheExpired(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		m := l.Semaphore(redistest.Name(t), 2, TTL(inside.MinTTL), NoRenew())
		mustTry(t, handle(l, m, TTL(time.Minute))) // keeps the key
		mustTry(t, m)
		redistest.Eventually(t, soon, func() bool { n, err := m.Available(t.Context()); return n == 1 && err == nil }, "a free slot")
		if h, err := m.Holders(t.Context()); len(h) != 1 || err != nil || h[0].ExpiresIn < 30*time.Second {
			t.Errorf("holders %+v, %v", h, err)
		}
		if locked, err := m.Locked(t.Context()); locked || err != nil {
			t.Errorf("Locked: %v, %v", locked, err)
		}
		if n := band(t, m, "h:"); n != 2 {
			t.Errorf("%d holders stored: looking has changed something", n)
		}
	})
}

func TestInspectWithALowerN(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		for range 3 {
			mustTry(t, l.Semaphore(name, 3))
		}
		if n, err := l.Mutex(name).Available(t.Context()); n != 0 || err != nil {
			t.Errorf("Available: %d, %v; want 0", n, err)
		}
	})
}

func TestInspectOnAnEndedContext(t *testing.T) {
	t.Parallel()
	m := newLocker(t, redistest.Mini(t).Client(t)).Mutex(redistest.Name(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Available(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Available: %v", err)
	}
	if locked, err := m.Locked(ctx); locked || !errors.Is(err, context.Canceled) {
		t.Errorf("Locked: %v, %v", locked, err)
	}
}

// What stands under the key is no lock: an error, and nothing is changed.
func TestForeignKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		redistest.Must(t, raw(m).Set(t.Context(), m.Key(), "somebody's", time.Minute).Err())
		_, err1 := m.TryLock(t.Context())
		_, err2 := m.Lock(t.Context())
		_, err3 := m.Available(t.Context())
		for i, err := range []error{err1, err2, err3} {
			if !errors.Is(err, ErrBackend) || errors.Is(err, ErrBusy) {
				t.Errorf("error %d is %v, want ErrBackend", i, err)
			}
		}
		if v := raw(m).Get(t.Context(), m.Key()).Val(); v != "somebody's" {
			t.Errorf("the value is now %q", v)
		}
	})
}

// A lock that cannot be looked at has no free slots to tell of.
func TestAvailable_withAnError(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	hook := &redistest.FailHook{}
	rdb.AddHook(hook)
	m := newLocker(t, rdb).Semaphore(redistest.Name(t), 2)
	if n, err := m.Available(t.Context()); n != 2 || err != nil {
		t.Fatalf("Available of a free lock: %d, %v", n, err)
	}
	hook.Before(func(cmd redis.Cmder) error {
		if scriptName(cmd) == wire.InspectScript.Name {
			return redistest.ReplyError("ERR refused")
		}
		return nil
	})
	if n, err := m.Available(t.Context()); n != 0 || !errors.Is(err, ErrBackend) {
		t.Errorf("Available when Redis refuses: %d, %v; want 0 and ErrBackend", n, err)
	}
}

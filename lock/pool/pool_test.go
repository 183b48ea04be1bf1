package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/lock/pool"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func newLocker(t *testing.T, rdb redis.UniversalClient) *lock.Locker {
	l := lock.New(rdb, lock.Options{Owner: "taker"})
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func put(t *testing.T, p *pool.Pool, added int, values ...string) {
	t.Helper()
	if n, err := p.Put(t.Context(), values...); n != added || err != nil {
		t.Fatalf("Put of %d values: %d, %v; want %d", len(values), n, err, added)
	}
}

func take(t *testing.T, p *pool.Pool, want string) *pool.Lease {
	t.Helper()
	le, err := p.Take(t.Context())
	if err != nil || le.Value() != want {
		t.Fatalf("Take: %v, %v; want %q", le, err, want)
	}
	return le
}

func inspect(t *testing.T, p *pool.Pool) pool.Info {
	t.Helper()
	info, err := p.Inspect(t.Context())
	redistest.Must(t, err)
	return info
}

func unlock(t *testing.T, le *pool.Lease) {
	t.Helper()
	redistest.Must(t, le.Unlock(t.Context()))
}

func consume(t *testing.T, le *pool.Lease) {
	t.Helper()
	redistest.Must(t, le.Consume(t.Context()))
}

// has wants the pool to be these free values, in any order, and so many that are taken.
func has(t *testing.T, p *pool.Pool, taken int, values ...string) {
	t.Helper()
	info := inspect(t, p)
	got := slices.Sorted(slices.Values(info.Values))
	if slices.Sort(values); info.Taken != taken || info.Free != len(values) || !slices.Equal(got, values) {
		t.Errorf("%+v; want %d taken, and %q", info, taken, values)
	}
}

// Two values are taken, one comes back, one is gone, and who was in line gets the first.
func TestPool(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := pool.New(newLocker(t, s.Client(t)), redistest.Name(t), lock.Note("a note"))
		put(t, p, 2, "a|b %", "b")
		put(t, p, 0, "b", "a|b %")
		a, b := take(t, p, "a|b %"), take(t, p, "b")
		put(t, p, 1, "c")
		info := inspect(t, p)
		if info.Free != 1 || info.Taken != 2 || !slices.Equal(info.Values, []string{"c"}) || len(info.Holders) != 2 {
			t.Fatalf("Inspect: %+v", info)
		}
		if h := info.Holders[0]; h.Value != "a|b %" || h.Token != a.Token() || h.Owner != "taker" || h.Note != "a note" ||
			h.ExpiresIn <= 0 {
			t.Errorf("the first holder: %+v", h)
		}
		redistest.Must(t, a.Extend(t.Context(), time.Hour))
		if h := inspect(t, p).Holders; h[1].Value != "a|b %" || h[1].ExpiresIn < 59*time.Minute {
			t.Errorf("extended by an hour: %+v", h)
		}
		if free, err := a.Release(t.Context()); free != 2 || err != nil {
			t.Errorf("Release: %d free, %v; want 2", free, err)
		}
		if err := errors.Join(b.Consume(t.Context()), take(t, p, "c").Cooldown(t.Context(), time.Hour)); err != nil {
			t.Error(err)
		}
		if err := b.Consume(t.Context()); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("second Consume: %v, want ErrNotHeld", err)
		}
		if info := inspect(t, p); !slices.Equal(info.Values, []string{"a|b %", "c"}) || info.Taken != 0 {
			t.Errorf("Inspect: %+v", info)
		}
		if n, err := p.Delete(t.Context()); n != 2 || err != nil {
			t.Errorf("Delete: %d, %v; want 2", n, err)
		}
	})
}

func TestPool_definitions(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	for want, p := range map[string]*pool.Pool{
		"the name is empty": pool.New(l, ""), "at least 100ms": pool.New(l, "x", lock.TTL(time.Millisecond)),
		"a pool has no Rate": pool.New(l, "x", lock.Rate(1, time.Second, 1)),
	} {
		_, err1 := p.Put(t.Context(), "v")
		_, err2 := p.Put(t.Context())
		_, err3 := p.Take(t.Context())
		_, err4 := p.Inspect(t.Context())
		_, err5 := p.Delete(t.Context())
		for i, err := range []error{err1, err2, err3, err4, err5} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d: %v, want an error with %q", i+1, err, want)
			}
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pool.New(l, "x").Put(ended, "v"); !errors.Is(err, context.Canceled) {
		t.Errorf("Put with an ended context: %v", err)
	}
	if _, err := pool.New(l, "x").Take(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Take with an ended context: %v", err)
	}
	for _, values := range [][]string{{""}, {"a", ""}, {"", "a"}} {
		if n, err := pool.New(l, "x").Put(t.Context(), values...); n != 0 || err == nil ||
			!strings.Contains(err.Error(), "is empty") {
			t.Errorf("Put(%q): %d, %v", values, n, err)
		}
	}
	put(t, pool.New(l, "x"), 0)
}

// A pool and a lock of one name have nothing to do with each other, and a key that is something else is an error.
func TestPool_isNoLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, name := s.Client(t), redistest.Name(t)
		l := newLocker(t, rdb)
		p, m := pool.New(l, name), l.Mutex(name)
		put(t, p, 1, "v")
		taken := take(t, p, "v")
		_, err := m.TryLock(t.Context())
		redistest.Must(t, err)
		if ok, err := m.Break(t.Context(), taken.Token()); ok || err != nil {
			t.Errorf("Break of a pool's token: %v, %v", ok, err)
		}
		if n, err := m.BreakAll(t.Context()); n != 1 || err != nil {
			t.Errorf("BreakAll: %d, %v", n, err)
		}
		redistest.Must(t, m.Delete(t.Context()))
		unlock(t, taken)
		le, err := m.TryLock(t.Context())
		redistest.Must(t, err)
		if n, err := p.Delete(t.Context()); n != 1 || err != nil {
			t.Errorf("Delete: %d, %v", n, err)
		}
		redistest.Must(t, le.Unlock(t.Context()))

		redistest.Must(t, rdb.LPush(t.Context(), m.Key()+":pool", "x").Err())
		if _, err := p.Put(t.Context(), "v"); !errors.Is(err, lock.ErrBackend) {
			t.Errorf("Put on a foreign key: %v, want ErrBackend", err)
		}
		if _, err := p.Take(t.Context()); !errors.Is(err, lock.ErrBackend) || errors.Is(err, lock.ErrBusy) {
			t.Errorf("Take on a foreign key: %v, want ErrBackend", err)
		}
	})
}

// More values lapse at once than one call takes back: all are free at once for those who look, and each can be taken.
func TestPool_manyLapseAtOnce(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	now := time.Now()
	s.SetTime(t, now)
	p := pool.New(newLocker(t, s.Client(t)), redistest.Name(t), lock.TTL(time.Minute), lock.NoRenew())
	const n = 150
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprint(i)
	}
	put(t, p, n, values...)
	for _, value := range values {
		take(t, p, value)
	}
	s.SetTime(t, now.Add(2*time.Minute))
	has(t, p, 0, values...)
	got := map[string]bool{}
	for range n {
		le, err := p.Take(t.Context())
		redistest.Must(t, err)
		got[le.Value()] = true
	}
	if len(got) != n {
		t.Errorf("took %d different values, want %d", len(got), n)
	}
	has(t, p, n)
}

// Each command runs twice, as when its reply was lost and go-redis sent it again: one value is taken, given back, or
// consumed.
func TestPool_eachCommandTwice(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		rdb.AddHook(redistest.Resend(func(cmd redis.Cmder) bool { return strings.HasPrefix(cmd.Name(), "eval") }))
		p := pool.New(newLocker(t, rdb), redistest.Name(t))
		if _, err := p.Put(t.Context(), "a", "b"); err != nil {
			t.Errorf("Put: %v", err)
		}
		a := take(t, p, "a")
		has(t, p, 1, "b")
		unlock(t, a)
		consume(t, take(t, p, "b"))
		has(t, p, 0, "a")
	})
}
